// Package dump repeats one step of a training run and keeps its tensors.
package dump

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"octet/backend"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/data"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/train"
)

// Options select the run, the step and the tensors.
type Options struct {
	Config      train.Config
	Corpus      *data.Corpus
	Checkpoints string // folder of the run's checkpoints
	Step        int    // from 1
	// Pattern is a glob (see path.Match) of names as octet plan --dump prints them. The
	// prefix that parameters have in checkpoints ("model.") may be omitted.
	Pattern string
	Backend string
	Threads int
}

// Result holds the tensors of a step, by name.
type Result struct {
	Tensors []arrays.Tensor
	From    int // the step of the checkpoint that the repetition began with; 0: the initial weights
	Loss    float64
	Moved   string // the backend and arithmetic that wrote the checkpoint, if they differ from this one's
}

// Run repeats the run from the newest intact checkpoint before the step, which gives the same
// bits on the backend and device model that wrote it, and returns the matching tensors of the
// first rank: as the last op of the forward and backward passes that reads or writes them
// leaves them, in the last micro-batch; those of the update alone as it leaves them.
//
// A tensor with a scale has NAME (codes), NAME.scale_inv, NAME.outer if it has an outer
// factor, and NAME.value, the FP32 values.
func Run(ctx context.Context, o Options) (r Result, err error) {
	if o.Step < 1 || o.Step > o.Config.Train.Steps {
		return r, fmt.Errorf("step %d: the run has the steps 1 to %d", o.Step, o.Config.Train.Steps)
	}
	spec, err := backend.SpecOf(o.Backend)
	if err != nil {
		return r, err
	}
	job, err := train.NewJob(o.Config, spec)
	if err != nil {
		return r, err
	}
	if len(job.Phases) == 1 { // another recipe has other names
		if err := o.check(job); err != nil {
			return r, err
		}
	}
	ranks := o.Config.Train.Ranks
	if ranks > 1 && !spec.HostMemory {
		return r, fmt.Errorf("train.ranks = %d: on backend %s each rank is a process, and this command has one: use backend emu", ranks, spec.Backend)
	}
	timeout, err := world.Timeout()
	if err != nil {
		return r, err
	}
	err = world.Each(world.Local(ranks, timeout), func(g *world.Group) error {
		own, err := o.runRank(ctx, job.Device, g)
		if g.Rank() == 0 {
			r = own
		}
		return err
	})
	return r, err
}

// runRank is Run of one rank.
func (o Options) runRank(ctx context.Context, spec backend.Spec, g *world.Group) (r Result, err error) {
	job, err := train.NewJob(o.Config, spec)
	if err != nil {
		return r, err
	}
	open := func() (backend.Backend, error) {
		return backend.Open(o.Backend, backend.Options{Threads: o.Threads, Group: g})
	}
	device, err := open()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	t, err := train.NewTrainer(job, o.Corpus, device, g)
	if err != nil {
		return r, err
	}
	t.Reopen = func() (backend.Backend, error) {
		if err := device.Close(); err != nil {
			return nil, err
		}
		device, err = open()
		return device, err
	}
	wrote, err := o.restore(ctx, t)
	if err != nil {
		return r, err
	}
	if wrote != "" && wrote != device.Spec().Name() {
		r.Moved = wrote
	}
	r.From = t.StepsDone()
	kept, updated := map[string]arrays.Tensor{}, map[string]arrays.Tensor{}
	for t.StepsDone() < o.Step {
		if t.StepsDone() == o.Step-1 && g.Rank() == 0 {
			t.Execute = o.observed(t, kept, updated)
		}
		result, err := t.Next(ctx)
		if err != nil {
			return r, err
		}
		r.Loss = result.Loss
	}
	maps.Copy(updated, kept)
	if len(updated) == 0 && g.Rank() == 0 {
		return r, o.check(t.Job)
	}
	for _, name := range slices.Sorted(maps.Keys(updated)) {
		r.Tensors = append(r.Tensors, updated[name])
	}
	return r, nil
}

// restore sets the state before the step, or that of an earlier step. It returns the backend
// that wrote the checkpoint, "" without one.
func (o Options) restore(ctx context.Context, t *train.Trainer) (backend string, err error) {
	entries, err := checkpoint.List(o.Checkpoints)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.Step >= o.Step || e.Damage != nil {
			continue
		}
		c, err := checkpoint.Open(e.Path)
		if err != nil {
			continue // damaged: an earlier one gives the same state
		}
		state, err := train.ReadState(c)
		if err == nil {
			err = t.Restore(ctx, c)
		}
		return state.Backend, errors.Join(err, c.Close())
	}
	if o.Config.Model.Init != "" {
		return "", t.InitFrom(ctx, o.Config.Model.Init)
	}
	return "", t.Init(ctx)
}

// programs returns the programs of a step.
func programs(j *train.Job) []*backend.Program {
	list := []*backend.Program{j.Update}
	for _, p := range j.Micro {
		list = append(list, p)
	}
	return list
}

// short returns a name without the prefix of parameters.
func short(j *train.Job, name string) string { return strings.TrimPrefix(name, j.Model.ParamPrefix) }

// check returns an error if no tensor of the step matches.
func (o Options) check(j *train.Job) error {
	names := map[string]bool{}
	for _, p := range programs(j) {
		for _, n := range p.Nodes() {
			for _, operand := range n.Operands() {
				names[operand.Tensor.Name], names[short(j, operand.Tensor.Name)] = true, true
			}
		}
	}
	_, err := arrays.Match(o.Pattern, slices.Sorted(maps.Keys(names)))
	return err
}

// observed returns an Execute for the trainer that keeps the matching tensors of
// micro-batches and those of the update.
func (o Options) observed(t *train.Trainer, kept, updated map[string]arrays.Tensor) func(context.Context, string, backend.Executable) error {
	return func(ctx context.Context, program string, x backend.Executable) error {
		named := func(p *backend.Program) bool { return p.Name() == program }
		if !slices.ContainsFunc(programs(t.Job), named) {
			return x.Run(ctx) // calibration
		}
		into := kept
		if t.Update.Name() == program {
			into = updated
		}
		return x.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
			for _, operand := range n.Operands() {
				tensor := operand.Tensor
				ok, _ := path.Match(o.Pattern, tensor.Name) // check has checked the pattern
				if match, _ := path.Match(o.Pattern, short(t.Job, tensor.Name)); !ok && !match {
					continue
				}
				if operand.Field == "Amaxes" { // scratch, whose contents are undefined
					continue
				}
				if err := keep(into, tensor, m); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// keep reads a tensor, its scales and values.
func keep(kept map[string]arrays.Tensor, t *backend.Tensor, m backend.Memory) error {
	add := func(name string, of *backend.Tensor) error {
		raw, err := m.Read(of)
		if err == nil {
			kept[name] = arrays.Tensor{Name: name, DType: of.DType, Shape: of.Shape, Data: raw}
		}
		return err
	}
	if err := add(t.Name, t); err != nil || t.Scale == nil {
		return err
	}
	codes := kept[t.Name]
	codes.Block = t.Block.String()
	kept[t.Name] = codes
	if err := add(t.Name+".scale_inv", t.Scale); err != nil {
		return err
	}
	if t.Outer != nil {
		if err := add(t.Name+".outer", t.Outer); err != nil {
			return err
		}
	}
	values, err := backend.Values(m, t)
	if err != nil {
		return err
	}
	x := make([]float32, len(values))
	for i, v := range values {
		x[i] = float32(v)
	}
	kept[t.Name+".value"] = arrays.Tensor{Name: t.Name + ".value", DType: fp8.F32, Shape: t.Shape, Data: fp8.AppendFloats(nil, x...)}
	return nil
}
