package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"octet/checkpoint"
)

// This file writes the checkpoint of several ranks: rank 0 makes a hidden folder and tells its
// name, each rank writes its shard while steps run, and rank 0 publishes the folder once all
// ranks have written theirs.

// startShard begins a checkpoint and returns a function that writes this rank's shard of the
// copied state and, on rank 0, publishes the checkpoint and returns its path.
func (r *Run) startShard(ctx context.Context, step int) (write func() (string, error), err error) {
	var begun *checkpoint.Sharded // on rank 0
	partial, err := r.tell(ctx, "the folder of a checkpoint", func() (partial string, err error) {
		if err = r.folder.checkInPlace(); err != nil {
			return "", err
		}
		if begun, err = checkpoint.BeginSharded(r.folder.checkpoints(), step, r.group.Size()); err != nil {
			return "", err
		}
		return begun.Partial(), nil
	})
	switch {
	case r.group.Err() != nil:
		return nil, r.group.Err()
	case err != nil && r.rank() > 0:
		return func() (string, error) { return "", nil }, nil // rank 0 decides whether the run ends
	case err != nil:
		return func() (string, error) { return "", err }, nil
	}
	return func() (string, error) {
		parts, err := r.writeShard(ctx, partial)
		if r.rank() > 0 {
			return "", nil
		}
		if err != nil {
			return "", errors.Join(err, begun.Discard())
		}
		return begun.Finish(parts, r.saver.copied.HFConfig(), r.saver.copied.State(), r.saver.copied.Tokenizer...)
	}, nil
}

// shard is what a rank tells the others about its shard.
type shard struct {
	Part  checkpoint.Part
	Error string // empty: none
}

// writeShard writes this rank's shard and returns the parts of all ranks once they have written
// theirs.
func (r *Run) writeShard(ctx context.Context, partial string) ([]checkpoint.Part, error) {
	var mine shard
	var err error
	if mine.Part, err = checkpoint.WriteShard(partial, r.rank(), r.group.Size(), r.saver.copied.Shard()); err != nil {
		mine.Error = err.Error()
	}
	message, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := r.group.ExchangeInBackground(context.WithoutCancel(ctx), "the shards of a checkpoint", message)
	if err != nil {
		return nil, err
	}
	parts := make([]checkpoint.Part, len(all))
	for rank, message := range all {
		var s shard
		if err := json.Unmarshal(message, &s); err != nil {
			return nil, err
		}
		if s.Error != "" {
			return nil, fmt.Errorf("rank %d: %s", rank, s.Error)
		}
		parts[rank] = s.Part
	}
	return parts, nil
}
