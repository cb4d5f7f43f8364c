// Package ref is the reference implementation of all ops: it runs programs in float64,
// one op at a time, directly from the equations in the comments of package backend. It
// is single-threaded and favours clarity over speed. Package conformance compares every
// other backend with it.
//
// Guarantees:
//
//   - Tensors are stored as float64 values of their format: values are rounded when they
//     are stored, so Read returns the codes that a device would hold.
//   - An op's result is computed in float64, rounded once to FP32, then cast by the scalar
//     rounding of package fp8. A device computes in FP32 and may differ in the last bits.
//     Where an op is one addition, multiplication or division it may not differ, because
//     the float64 result rounded to FP32 is the FP32 result.
//   - Temps are filled with NaN before every run, so that reads of unwritten temps show.
//
// In [Exact] mode F32 and BF16 tensors are not rounded; FP8 and F16 tensors are. Central
// differences need it: their gradients differ by far less than the rounding of either
// format.
//
// Accum is ignored: float64 sums need no promotion.
package ref

import (
	"context"
	"fmt"

	"octet/backend"
	"octet/backend/world"
	"octet/fp8"
)

// Mode says whether F32 and BF16 tensors are rounded.
type Mode uint8

const (
	Rounded Mode = iota
	// Exact keeps float64 values in F32 and BF16 tensors.
	Exact
)

// Backend is one rank. It implements backend.Backend.
type Backend struct {
	mode  Mode
	group *world.Group
	vars  backend.DeviceVars
	data  map[*backend.Tensor][]float64 // by root tensor; scales not applied
}

// Open returns the backend of a group's rank. The group also carries the data of collectives.
func Open(g *world.Group, mode Mode) *Backend {
	return &Backend{mode: mode, group: g, data: map[*backend.Tensor][]float64{}}
}

func init() { backend.Register(Driver()) }

// Driver returns the backend's entry in the registry: "ref", and "ref:exact" for Exact
// mode. Its Priority is below that of all other backends.
func Driver() backend.Driver {
	return backend.Driver{
		Name:     "ref",
		Priority: -1,
		Spec: func(device string) (backend.Spec, error) {
			mode, err := modeOf(device)
			return specOf(mode), err
		},
		Open: func(device string, o backend.Options) (backend.Backend, error) {
			mode, err := modeOf(device)
			if err != nil {
				return nil, err
			}
			return Open(o.Group, mode), nil
		},
	}
}

func modeOf(device string) (Mode, error) {
	switch device {
	case "":
		return Rounded, nil
	case "exact":
		return Exact, nil
	}
	return 0, fmt.Errorf("unknown device %q of backend ref (known: exact)", device)
}

func specOf(mode Mode) backend.Spec {
	device := "float64"
	if mode == Exact {
		device = "float64, F32, BF16 and F16 not rounded"
	}
	return backend.Spec{
		Backend: "ref", Device: device, Arithmetic: "float64", E4M3: fp8.E4M3,
		F16: true, Masked: true, BlockMoments: true, BlockSources: true, SeedSigns: true, Experts: true, Stochastic: true, HostMemory: true,
	}
}

// Spec implements backend.Backend.
func (b *Backend) Spec() backend.Spec { return specOf(b.mode) }

// Load implements backend.Backend. It refuses no op of package backend, and no
// backend.CustomOp.
func (b *Backend) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	err := b.vars.Load(programs, func(fresh []*backend.Tensor) error {
		for _, t := range fresh {
			b.data[t] = make([]float64, t.Elems())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		for _, n := range p.Nodes() {
			row, ok := rowOf(n.Op)
			if !ok {
				return nil, fmt.Errorf("%s: backend ref does not implement %T: %w", n.Path(), n.Op, backend.ErrUnsupported)
			}
			if row.check == nil {
				continue
			}
			if err := row.check(b, n.Op); err != nil {
				return nil, fmt.Errorf("%s: %w", n.Path(), err)
			}
		}
		for _, t := range p.Temps() {
			b.data[t] = make([]float64, t.Elems())
		}
	}
	var list []backend.Executable
	for _, p := range programs {
		list = append(list, &executable{b, p})
	}
	return list, nil
}

// Close implements backend.Backend.
func (b *Backend) Close() error {
	b.vars.Close()
	b.data = nil
	return nil
}

type executable struct {
	b       *Backend
	program *backend.Program
}

// Run implements backend.Executable.
func (e *executable) Run(ctx context.Context) error { return e.RunObserved(ctx, nil) }

// RunObserved implements backend.Executable. If it fails, the other ranks' collectives
// return its error.
func (e *executable) RunObserved(ctx context.Context, observe backend.Observer) error {
	err := e.run(ctx, observe)
	if err != nil {
		e.b.group.Fail(world.CodeFailed, err)
	}
	return err
}

func (e *executable) run(ctx context.Context, observe backend.Observer) error {
	if e.b.data == nil {
		return backend.ErrClosed
	}
	e.b.poison(e.program.Temps())
	for _, n := range e.program.Nodes() {
		err := ctx.Err()
		if err == nil {
			row, _ := rowOf(n.Op)
			err = row.run(ctx, e.b, n)
		}
		if err == nil && observe != nil {
			err = observe(n, observed{e.b})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.Path(), err)
		}
	}
	return nil
}

// row holds what this backend knows of a type of op.
type row struct {
	run   func(ctx context.Context, b *Backend, n *backend.Node) error
	check func(b *Backend, op backend.Op) error // refuses an op when its program is loaded; nil accepts every op
}

// ops holds the row of every op. The files that implement ops add them.
var ops backend.Table[row]

// implement adds an op that cannot fail.
func implement[O backend.Op](run func(*Backend, O)) struct{} {
	return implementErr(func(b *Backend, o O) error { run(b, o); return nil })
}

// implementErr adds an op that may fail.
func implementErr[O backend.Op](run func(*Backend, O) error) struct{} {
	var op O
	return ops.Add(op, row{run: func(_ context.Context, b *Backend, n *backend.Node) error { return run(b, n.Op.(O)) }})
}
