package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"octet/checkpoint"
)

// This file writes the checkpoint of several ranks: rank 0 makes a hidden folder and tells its
// name, each rank writes its shard while steps run, and rank 0 publishes the folder once all
// ranks have written theirs.

// shards is a checkpoint to which the ranks write.
type shards struct {
	step    int
	choices []byte
	synced  bool
	start   time.Time
	begun   *checkpoint.Sharded // of rank 0; nil if it failed

	writing chan shard // receives this rank's shard
	mine    *shard     // received
}

// shard is what a rank tells the others about its shard.
type shard struct {
	Part  checkpoint.Part
	Error string // empty: none
}

// startShards starts to write this rank's shard of the copied state.
func (r *Run) startShards(ctx context.Context, step int, choices []byte, synced bool) error {
	s := &shards{step: step, choices: choices, synced: synced, start: time.Now(), writing: make(chan shard, 1)}
	partial, err := r.tell(ctx, "the folder of a checkpoint", func() (partial string, err error) {
		if err = r.folder.checkInPlace(); err != nil {
			return "", err
		}
		if s.begun, err = checkpoint.BeginSharded(r.folder.checkpoints(), step, r.group.Size()); err != nil {
			return "", err
		}
		return s.begun.Partial(), nil
	})
	r.shards = s
	if err != nil {
		s.writing <- shard{Error: err.Error()}
		return r.group.Err()
	}
	go func() {
		var mine shard
		var err error
		if mine.Part, err = checkpoint.WriteShard(partial, r.rank(), r.group.Size(), r.saver.copied.Shard()); err != nil {
			mine.Error = err.Error()
		}
		s.writing <- mine
	}()
	return nil
}

// written reports whether this rank has written its shard.
func (s *shards) written() bool {
	if s == nil {
		return false
	}
	if s.mine == nil {
		select {
		case mine := <-s.writing:
			s.mine = &mine
		default:
		}
	}
	return s.mine != nil
}

// discard waits for this rank's shard and gives up the checkpoint.
func (s *shards) discard() {
	if s == nil {
		return
	}
	if s.mine == nil {
		<-s.writing
	}
	if s.begun != nil {
		_ = s.begun.Discard() // a resumed run removes what is left
	}
}

// gatherShards waits until all ranks have written their shards. Rank 0 then publishes the
// checkpoint in a goroutine; saver.result returns its result.
func (r *Run) gatherShards(ctx context.Context) error {
	s := r.shards
	if s == nil {
		return nil
	}
	if s.mine == nil {
		mine := <-s.writing
		s.mine = &mine
	}
	message, err := json.Marshal(s.mine)
	if err != nil {
		return err
	}
	all, err := r.group.Exchange(ctx, "the shards of a checkpoint", message)
	if err != nil {
		return err
	}
	r.shards = nil
	if r.rank() > 0 {
		return nil
	}
	r.publishing(s.step, s.synced, func() (string, error) {
		parts, err := partsOf(all)
		if err != nil {
			return "", errors.Join(err, s.begun.Discard())
		}
		return r.write(s.step, s.choices, s.start, func() (string, error) {
			return s.begun.Finish(parts, r.saver.copied.HFConfig(), r.saver.copied.State())
		})
	})
	return nil
}

// partsOf returns the parts of all ranks, or the first error.
func partsOf(messages [][]byte) ([]checkpoint.Part, error) {
	parts := make([]checkpoint.Part, len(messages))
	for rank, message := range messages {
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
