// Package conformance tests a backend against the specification of every op. It yields
// cases; each writes data to the backend under test and to backend ref, runs the same
// program on both and compares all variables. It does not import package testing, so
// that octet doctor can run it:
//
//	for c := range conformance.Cases() {
//		if err := c.Run(ctx, driver, "0"); err != nil { … }
//	}
//
// How results are compared:
//
//   - Exactly, by default: casts of given values, copies, single additions, maxima,
//     scales, and every tensor that the op must not write, the gaps of views included.
//   - By ‖out − ref‖ relative to ‖ref‖, where the op's FP32 result depends on the order
//     of a sum or on an approximation of a function. compare.go derives the tolerance
//     from the length of the sum and the formats of operands and result.
//   - In either case NaN and infinities must be at the same elements.
//
// A case uses the driver as training does: Spec, Lower, Open, Load, Run.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"octet/backend"
	"octet/backend/ref"
	"octet/backend/world"
)

// Case is one program with its data.
type Case struct {
	Name  string // "matmul/e4m3-e5m2/17x33x5/ta"
	ranks int
	build func(*fixture) // called once per rank
}

// Cases yields every case, in a fixed order.
func Cases() iter.Seq[Case] {
	var s suite
	s.matMul()
	s.quantize()
	s.hadamard()
	s.scales()
	s.layers()
	s.attention()
	s.mlp()
	s.moe()
	s.loss()
	s.optimizer()
	s.health()
	s.collectives()
	s.sumParts()
	s.roundedSums()
	s.chains()
	return slices.Values(s.cases)
}

type suite struct{ cases []Case }

func (s *suite) add(build func(*fixture), format string, args ...any) {
	s.addRanks(1, build, format, args...)
}

func (s *suite) addRanks(ranks int, build func(*fixture), format string, args ...any) {
	s.cases = append(s.cases, Case{Name: fmt.Sprintf(format, args...), ranks: ranks, build: build})
}

// Run opens the driver's device, runs the case and compares. Its error wraps
// backend.ErrUnsupported if the backend lacks the op or its operand formats, or draws
// random bits other than fp8.Random's.
func (c Case) Run(ctx context.Context, d backend.Driver, device string) error {
	if err := c.run(ctx, d, device); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// Ranks returns the number of ranks of the case.
func (c Case) Ranks() int { return c.ranks }

// RunRank is Run for devices that need a process each: all ranks of the group, as many as the
// case has, call it.
func (c Case) RunRank(ctx context.Context, d backend.Driver, device string, g *world.Group) error {
	if err := c.runOn(ctx, d, device, g); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

func (c Case) run(ctx context.Context, d backend.Driver, device string) error {
	return c.runOn(ctx, d, device, nil)
}

// runOn runs the ranks of the case in this process or, with a group, its rank of them. The
// reference runs all ranks.
func (c Case) runOn(ctx context.Context, d backend.Driver, device string, own *world.Group) error {
	spec, err := d.Spec(device)
	if err != nil {
		return err
	}
	fixtures := c.fixtures(spec)
	if fixtures[0].random && !spec.Stochastic {
		return fmt.Errorf("backend %s draws its own random bits: %w", spec.Backend, backend.ErrUnsupported)
	}
	timeout, err := world.Timeout()
	if err != nil {
		return err
	}
	reference := world.Local(c.ranks, timeout)
	tested := make([]backend.Backend, c.ranks)
	defer closeAll(tested)
	groups := world.Local(c.ranks, timeout)
	if own != nil {
		groups = []*world.Group{own}
	}
	if err := world.Each(groups, func(g *world.Group) (err error) {
		tested[g.Rank()], err = d.Open(device, backend.Options{Group: g})
		return err
	}); err != nil {
		return err
	}
	var runs []backend.Executable
	models, lowered := make([]*ref.Backend, c.ranks), make([][]*backend.Program, c.ranks)
	for rank, b := range fixtures {
		want := ref.Open(reference[rank], ref.Rounded)
		models[rank] = want
		b.declared = slices.Collect(b.vars.All()) // lowering may add others
		if lowered[rank], err = backend.Lower(spec, b.p); err != nil {
			return err
		}
		model, err := want.Load(b.p)
		if err != nil {
			return err
		}
		runs = append(runs, model...)
	}
	loaded, declined := make([][]backend.Executable, c.ranks), make([]error, c.ranks)
	if err := world.Each(groups, func(g *world.Group) (err error) {
		loaded[g.Rank()], err = tested[g.Rank()].Load(lowered[g.Rank()]...)
		if errors.Is(err, backend.ErrUnsupported) { // on all ranks, whose group can go on
			declined[g.Rank()], err = err, nil
		}
		return err
	}); err != nil {
		return err
	}
	if err := errors.Join(declined...); err != nil {
		return declined[groups[0].Rank()]
	}
	for rank, b := range fixtures {
		if err := b.write(models[rank], tested[rank]); err != nil {
			return err
		}
		runs = append(runs, loaded[rank]...)
	}
	if err := runAll(ctx, runs); err != nil {
		return err
	}
	for rank, b := range fixtures {
		if tested[rank] == nil {
			continue
		}
		if err := b.compare(models[rank], tested[rank]); err != nil {
			return err
		}
	}
	return nil
}

// fixtures builds the case's program and data for every rank of the device s.
func (c Case) fixtures(s backend.Spec) []*fixture {
	var list []*fixture
	for rank := range c.ranks {
		b := newFixture(c.Name, s, rank, c.ranks)
		c.build(b)
		list = append(list, b)
	}
	return list
}

// runAll runs the executables concurrently, because ranks wait for each other in
// collectives. The first failure cancels the others.
func runAll(ctx context.Context, runs []backend.Executable) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	for _, r := range runs {
		wait.Go(func() {
			if err := r.Run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}

func closeAll(list []backend.Backend) {
	for _, b := range list {
		if b != nil {
			_ = b.Close() // cannot change the outcome of the comparison
		}
	}
}

// write writes the same bytes to the variables of both backends; got may be nil.
func (b *fixture) write(want *ref.Backend, got backend.Backend) error {
	for _, t := range b.declared {
		if err := want.SetValues(t, b.values[t]); err != nil {
			return err
		}
		raw := make([]byte, t.Bytes())
		if err := want.Read(t, raw); err != nil {
			return err
		}
		if got == nil {
			continue
		}
		if err := got.Write(t, raw); err != nil {
			return err
		}
	}
	return nil
}
