package train

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/data"
	"octet/nn"
)

// team is the trainers of all ranks of a run in this process. Its methods call those of all
// ranks; the embedded trainer is that of rank 0.
type team struct {
	*Trainer
	ranks  []*Trainer
	groups []*world.Group
}

// newTeam starts a run of a job. wrap, if set, returns the device that a rank uses.
func newTeam(t *testing.T, newJob func() (*Job, error), threads int, wrap func(backend.Backend) backend.Backend) *team {
	t.Helper()
	return newTeamOn(t, testCorpus(), newJob, threads, wrap)
}

func newTeamOn(t *testing.T, corpus *data.Corpus, newJob func() (*Job, error), threads int, wrap func(backend.Backend) backend.Backend) *team {
	t.Helper()
	j, err := newJob()
	require.NoError(t, err)
	n := j.Config.Train.Ranks
	tm := &team{groups: world.Local(n, time.Minute), ranks: make([]*Trainer, n)}
	devices := make([]backend.Backend, n)
	t.Cleanup(func() {
		for _, d := range devices {
			if d != nil {
				require.NoError(t, d.Close())
			}
		}
	})
	err = world.Each(tm.groups, func(g *world.Group) error {
		j, err := newJob() // ranks do not share a job
		if err != nil {
			return err
		}
		rank := g.Rank()
		open := func() (backend.Backend, error) {
			d, err := backend.Open("emu", backend.Options{Threads: threads, Group: g})
			if err == nil && wrap != nil {
				d = wrap(d)
			}
			devices[rank] = d
			return d, err
		}
		d, err := open()
		if err != nil {
			return err
		}
		if tm.ranks[rank], err = NewTrainer(j, corpus, d, g); err != nil {
			return err
		}
		tm.ranks[rank].Reopen = func() (backend.Backend, error) {
			if err := devices[rank].Close(); err != nil {
				return nil, err
			}
			return open()
		}
		return nil
	})
	require.NoError(t, err)
	tm.Trainer = tm.ranks[0]
	return tm
}

func (tm *team) each(f func(*Trainer) error) error {
	return world.Each(tm.groups, func(g *world.Group) error { return f(tm.ranks[g.Rank()]) })
}

func (tm *team) next(f func(*Trainer) (StepResult, error)) (StepResult, error) {
	list := make([]StepResult, len(tm.ranks))
	err := tm.each(func(tr *Trainer) (err error) {
		list[tr.group.Rank()], err = f(tr)
		return err
	})
	for _, r := range list {
		if math.Float64bits(r.Loss) != math.Float64bits(list[0].Loss) || r.Skipped != list[0].Skipped {
			panic("the ranks have different results")
		}
	}
	return list[0], err
}

func (tm *team) Next(ctx context.Context) (StepResult, error) {
	return tm.next(func(tr *Trainer) (StepResult, error) { return tr.Next(ctx) })
}

func (tm *team) NextAhead(ctx context.Context) (StepResult, error) {
	return tm.next(func(tr *Trainer) (StepResult, error) { return tr.NextAhead(ctx) })
}

func (tm *team) Evaluate(ctx context.Context) (float64, error) {
	losses := make([]float64, len(tm.ranks))
	err := tm.each(func(tr *Trainer) (err error) {
		losses[tr.group.Rank()], err = tr.Evaluate(ctx)
		return err
	})
	for _, x := range losses {
		if math.Float64bits(x) != math.Float64bits(losses[0]) {
			panic("the ranks have different losses")
		}
	}
	return losses[0], err
}

func (tm *team) Health(ctx context.Context) (h Health, err error) {
	err = tm.each(func(tr *Trainer) error {
		own, err := tr.Health(ctx)
		if tr == tm.Trainer {
			h = own
		}
		return err
	})
	return h, err
}

func (tm *team) Init(ctx context.Context) error {
	return tm.each(func(tr *Trainer) error { return tr.Init(ctx) })
}

func (tm *team) Restore(ctx context.Context, c *checkpoint.Checkpoint) error {
	return tm.each(func(tr *Trainer) error { return tr.Restore(ctx, c) })
}

func (tm *team) Rewind(ctx context.Context, c *checkpoint.Checkpoint) error {
	return tm.each(func(tr *Trainer) error { return tr.Rewind(ctx, c) })
}

func (tm *team) prepare(ctx context.Context) error {
	return tm.each(func(tr *Trainer) error { return tr.prepare(ctx) })
}

func (tm *team) Weights(p *nn.Param) (x []float32, err error) {
	err = tm.each(func(tr *Trainer) error {
		own, err := tr.Weights(tr.param(p.Name))
		if tr == tm.Trainer {
			x = own
		}
		return err
	})
	return x, err
}

// param returns a parameter of this trainer's job.
func (t *Trainer) param(name string) *nn.Param {
	for _, p := range t.Model.Params {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// read returns a full tensor, without padding.
func (tm *team) read(x *backend.Tensor) (raw []byte, err error) {
	err = tm.each(func(tr *Trainer) error {
		own := tr.Vars.Lookup(x.Name)
		part, err := tr.readLocal(own)
		if err == nil {
			part, err = tr.wholeOf(context.Background(), own, part)
		}
		if tr == tm.Trainer {
			raw = part
		}
		return err
	})
	return raw, err
}

// write writes a full tensor.
func (tm *team) write(x *backend.Tensor, raw []byte) error {
	return tm.each(func(tr *Trainer) error {
		own := tr.Vars.Lookup(x.Name)
		part := make([]byte, own.Bytes())
		if _, divided := tr.parts[own]; !divided {
			copy(part, raw)
			return tr.device.Write(own, part)
		}
		width, elems := widths(tr.wholeShape(own))
		size := len(part) / own.Elems()
		copyRegion(raw, width, tr.regionOf(own, tr.group.Rank()), part, elems*size, false)
		return tr.device.Write(own, part)
	})
}

// snapshot writes a checkpoint of all ranks and opens it.
func snapshot(t *testing.T, tm *team) *checkpoint.Checkpoint {
	t.Helper()
	dir := t.TempDir()
	var path string
	if len(tm.ranks) == 1 {
		contents, err := tm.Contents("test", "emu")
		require.NoError(t, err)
		path, err = checkpoint.Save(dir, tm.StepsDone(), contents)
		require.NoError(t, err)
	} else {
		s, err := checkpoint.BeginSharded(dir, tm.StepsDone(), len(tm.ranks))
		require.NoError(t, err)
		var parts []checkpoint.Part
		var first Snapshot
		for rank, tr := range tm.ranks {
			var own Snapshot
			require.NoError(t, tr.Snapshot(&own, "test", "emu"))
			part, err := checkpoint.WriteShard(s.Partial(), rank, len(tm.ranks), own.Shard())
			require.NoError(t, err)
			if parts = append(parts, part); rank == 0 {
				first = own
			}
		}
		path, err = s.Finish(parts, first.HFConfig(), first.State())
		require.NoError(t, err)
	}
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
