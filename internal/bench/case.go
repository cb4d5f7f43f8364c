package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"octet/backend"
	"octet/backend/cost"
	"octet/fp8"
	"octet/internal/hostmem"
)

// Case is one op to measure: its program and the contents of its tensors.
type Case struct {
	bench, name, shape string
	program            *backend.Program
	prepare            *backend.Program // runs once before the measurement; may be nil
	fill               contents
	limit              limit
}

// limit selects the peak that a case is compared with.
type limit uint8

const (
	byFLOPs limit = iota
	byBytes
)

// contents maps tensors to their bytes. A Stash tensor that is not listed holds random
// values; any other tensor holds zeros.
type contents map[*backend.Tensor][]byte

// one declares an F32 tensor of one element with the value 1.
func (c contents) one(vars *backend.Vars, name string) *backend.Tensor {
	t := vars.Tensor(backend.State, name, fp8.F32, 1)
	c[t] = []byte{0, 0, 0x80, 0x3f}
	return t
}

// control declares step.control. The learning rate is small, as in training, because the
// gradient stays the same, and where it is near 0 so is the second moment.
func (c contents) control(vars *backend.Vars) *backend.Tensor {
	t := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	c[t] = backend.Control{Seed: 1, Step: 1, LR: 1e-4, InvTokens: 1e-3}.AppendTo(nil)
	return t
}

// check returns the cases, or an error if one of them is invalid or does not fit into
// memory.
func (b *Bench) check(cases []Case) ([]Case, error) {
	for _, c := range cases {
		if err := c.program.Err(); err != nil {
			return nil, err
		}
		if c.prepare != nil && c.prepare.Err() != nil {
			return nil, c.prepare.Err()
		}
		if !b.spec.HostMemory {
			continue
		}
		var need, largest int64
		for t := range c.program.Vars().All() {
			need += t.Bytes()
			largest = max(largest, t.Bytes())
		}
		need += largest // the copy from which its content is written
		if err := hostmem.Check(fmt.Sprintf("bench %s of %s", c.bench, c.shape), need, "name smaller shapes"); err != nil {
			return nil, err
		}
	}
	return cases, nil
}

// Measure runs a case, interleaved with the peak that limits it.
func (b *Bench) Measure(ctx context.Context, c Case) (r Result, err error) {
	r = Result{Bench: c.bench, Name: c.name, Shape: c.shape, Backend: b.spec.Backend, Device: b.spec.Device}
	device, err := b.open(b.o.Threads)
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, device.Close())
		debug.FreeOSMemory() // before the next case's operands are allocated
	}()
	x, node, err := load(ctx, device, c)
	if errors.Is(err, backend.ErrUnsupported) {
		r.Unsupported = err.Error()
		return r, nil
	}
	if err != nil {
		return r, err
	}
	work, err := repeated(func() error { return x.Run(ctx) }, waiting(device, c.program.Vars()))
	if err != nil {
		return r, err
	}
	bursts := []burst{work}
	if b.meter != nil {
		bursts = append(bursts, rate([...]func() float64{byFLOPs: b.meter.FLOPs, byBytes: b.meter.Bytes}[c.limit]))
	}
	samples, err := interleave(b.o.Seconds, bursts...)
	if err != nil {
		return r, err
	}
	peak := 0.0
	if b.meter != nil {
		peak = median(samples[1])
	}
	r = b.result(r, samples[0], c.program.Nodes()[0].Cost(), c.limit, peak)
	if node != nil {
		b.sample(c.bench, cost.Sample{Key: cost.Key(node), Cost: node.Cost(), Seconds: r.Median})
	}
	return r, nil
}

// waiting returns a function that reads the smallest tensor, which waits for all work that
// the device was given.
func waiting(device backend.Backend, vars *backend.Vars) func() error {
	var smallest *backend.Tensor
	for t := range vars.All() {
		if smallest == nil || t.Bytes() < smallest.Bytes() {
			smallest = t
		}
	}
	raw := make([]byte, smallest.Bytes())
	return func() error { return device.Read(smallest, raw) }
}

// load returns the program of a case, ready to run, and its op as the device runs it; nil if
// the device runs several.
func load(ctx context.Context, device backend.Backend, c Case) (backend.Executable, *backend.Node, error) {
	programs := []*backend.Program{c.program}
	if c.prepare != nil {
		programs = append(programs, c.prepare)
	}
	lowered, err := backend.Lower(device.Spec(), programs...)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := device.Load(lowered...)
	if err != nil {
		return nil, nil, err
	}
	var node *backend.Node
	if nodes := lowered[0].Nodes(); len(nodes) == 1 {
		node = nodes[0]
	}
	for t := range c.program.Vars().All() {
		raw := c.fill[t]
		if raw == nil && t.Class == backend.Stash {
			raw = normal(t)
		}
		if raw == nil {
			continue
		}
		if err := device.Write(t, raw); err != nil {
			return nil, nil, err
		}
	}
	if c.prepare != nil {
		return loaded[0], node, loaded[1].Run(ctx)
	}
	return loaded[0], node, nil
}
