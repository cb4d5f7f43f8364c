package emu

import (
	"context"
	"fmt"

	"octet/backend"
	"octet/backend/emu/gemm"
)

// kernel runs one op, or several MatMuls (grouped.go). It allocates nothing: everything it needs is
// bound at load time.
type kernel func(context.Context) error

type executable struct {
	binder   *binder
	nodes    []*backend.Node
	kernels  []kernel // of each node, for RunObserved
	launches []launch // for Run
	waits    []int    // of each launch, if collectives run beside the others: see waits
	paths    []string // of the collectives, likewise
}

// launch is a kernel that runs the nodes from first to end.
type launch struct {
	first, end int
	run        kernel
}

// load binds the nodes of p. Those that together groups are one launch.
func (b *binder) load(p *backend.Program, together backend.Grouping) (*executable, error) {
	x := &executable{binder: b, nodes: p.Nodes()}
	b.gemms = map[*backend.Node]gemm.Bound{}
	defer func() { b.gemms = nil }()
	for _, n := range x.nodes {
		k, err := b.bind(n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Path(), err)
		}
		x.kernels = append(x.kernels, b.invalidating(k, n))
	}
	for i := 0; i < len(x.nodes); {
		_, end := together(x.nodes, i)
		run := x.kernels[i]
		if end > i {
			run = b.groupedGEMM(x.nodes[i : end+1])
		}
		x.launches = append(x.launches, launch{i, end, run})
		i = end + 1
	}
	if b.exchanger != nil {
		x.waits = waits(x.nodes, x.launches)
		for _, n := range x.nodes {
			if n.IsCollective() {
				x.paths = append(x.paths, n.Path())
			}
		}
	}
	return x, nil
}

func (x *executable) Run(ctx context.Context) error {
	if err := x.interrupted(ctx); err != nil {
		return err
	}
	if x.waits != nil {
		return x.runBeside(ctx)
	}
	for _, l := range x.launches {
		if err := l.run(ctx); err != nil {
			return x.failed(l.first, err)
		}
		for range l.end + 1 - l.first {
			x.binder.group.RanOp()
		}
	}
	return nil
}

// failed returns the error of a node and ends the group, so that the other ranks
// stop too.
func (x *executable) failed(node int, err error) error {
	x.binder.group.fail(err)
	return fmt.Errorf("%s: %w", x.nodes[node].Path(), err)
}

// interrupted returns ctx's error. If there is one, it ends the group: the other
// ranks would wait for this one in the next collective.
func (x *executable) interrupted(ctx context.Context) error {
	err := ctx.Err()
	if err != nil {
		x.binder.group.fail(err)
	}
	return err
}

func (x *executable) RunObserved(ctx context.Context, observe backend.Observer) error {
	for i, k := range x.kernels {
		err := x.interrupted(ctx) // cheap compared with observing an op
		if err == nil {
			err = k(ctx)
		}
		if err != nil {
			return x.failed(i, err)
		}
		x.binder.group.RanOp()
		if err := observe(x.nodes[i], observed{x.binder}); err != nil {
			x.binder.group.fail(err)
			return err
		}
	}
	return nil
}

// copyOut returns a copy of t's elements without the gaps between its rows.
func (b *binder) copyOut(t *backend.Tensor) []byte {
	src := b.bytes(t)
	row, ld := t.DType.Bytes(t.Cols()), t.DType.Bytes(t.LD)
	out := make([]byte, 0, t.Bytes())
	for r := range t.Rows() {
		out = append(out, src[r*ld:r*ld+row]...)
	}
	return out
}

// observed is the backend.Memory of an observer.
type observed struct{ b *binder }

func (o observed) Read(t *backend.Tensor) ([]byte, error) { return o.b.copyOut(t), nil }

func (o observed) Write(t *backend.Tensor, raw []byte) error {
	if int64(len(raw)) != t.Bytes() {
		return fmt.Errorf("emu: %s takes %d bytes, got %d", t, t.Bytes(), len(raw))
	}
	o.b.changed(t)
	dst := o.b.bytes(t)
	row, ld := t.DType.Bytes(t.Cols()), t.DType.Bytes(t.LD)
	for r := range t.Rows() {
		copy(dst[r*ld:], raw[r*row:(r+1)*row])
	}
	return nil
}
