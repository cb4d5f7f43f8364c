//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/fp8"
)

// peers are ranks in this process. Each has a program with collectives of x.
type peers struct {
	groups  []*world.Group
	devices []backend.Backend
	vars    []*backend.Vars
	x       []*backend.Tensor
	run     []backend.Executable
}

// openPair opens two ranks, which all-reduce x.
func openPair(t *testing.T, device string, timeout time.Duration) *peers {
	t.Helper()
	return openPeers(t, 2, device, timeout, backend.Group{})
}

// openPeers opens n ranks, which all-reduce x over each of the groups.
func openPeers(t *testing.T, n int, device string, timeout time.Duration, over ...backend.Group) *peers {
	t.Helper()
	return openProgram(t, n, device, timeout, recordOver(over))
}

// recordOver returns the record of a program that all-reduces x over groups.
func recordOver(groups []backend.Group) record {
	return func(v *backend.Vars, p *backend.Program, x *backend.Tensor) {
		p.Add(&backend.Add{A: x, B: x, Out: []backend.Cast{{Out: v.Tensor(backend.Stash, "twice", fp8.F32, 4)}}})
		for _, g := range groups {
			p.Add(&backend.AllReduce{X: x, Group: g})
		}
	}
}

// record adds the nodes of a program of x.
type record func(v *backend.Vars, p *backend.Program, x *backend.Tensor)

// openProgram opens n ranks with a program of x and other tensors.
func openProgram(t *testing.T, n int, device string, timeout time.Duration, nodes record) *peers {
	t.Helper()
	standin.Only(t, "NCCL does not report a missing rank")
	p := &peers{world.Local(n, timeout), make([]backend.Backend, n), make([]*backend.Vars, n), make([]*backend.Tensor, n), make([]backend.Executable, n)}
	t.Cleanup(func() {
		if t.Failed() { // closing would wait for a collective that a rank has not joined
			p.groups[0].Fail(world.CodeFailed, context.Canceled)
		}
		require.NoError(t, p.each(func(rank int) error { return p.devices[rank].Close() }))
	})
	require.NoError(t, world.Each(p.groups, func(g *world.Group) (err error) {
		p.devices[g.Rank()], err = open(device, backend.Options{Group: g})
		return err
	}))
	require.NoError(t, p.each(func(rank int) error { return p.load(rank, nodes) }))
	return p
}

func (p *peers) load(rank int, nodes record) error {
	v := backend.NewVars()
	p.vars[rank], p.x[rank] = v, v.Tensor(backend.Stash, "x", fp8.F32, 4)
	program := v.Program("collectives")
	nodes(v, program, p.x[rank])
	list, err := p.devices[rank].Load(program)
	if err == nil {
		p.run[rank] = list[0]
	}
	return err
}

func (p *peers) write(t *testing.T, rank int, x float32) {
	t.Helper()
	require.NoError(t, p.devices[rank].Write(p.x[rank], floats(4, func(int) float32 { return x })))
}

func (p *peers) read(rank int) (float32, error) {
	raw, x := make([]byte, 16), make([]float32, 4)
	err := p.devices[rank].Read(p.x[rank], raw)
	fp8.F32.Decode(x, raw)
	return x[3], err
}

// allocs is testing.AllocsPerRun, the least of several: a slow machine gives the beats of a group
// and the samples of a meter the time to allocate in between.
func allocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// each runs f for all ranks at once.
func (p *peers) each(f func(rank int) error) error {
	var g errgroup.Group
	for rank := range p.devices {
		g.Go(func() error { return f(rank) })
	}
	return g.Wait()
}

// ends requires that the group has ended for all ranks, with a one-line error that
// contains words.
func (p *peers) ends(t *testing.T, err error, words ...string) {
	t.Helper()
	for rank := range p.devices {
		<-p.groups[rank].Done() // which another rank may have ended a moment ago
		_, read := p.read(rank)
		for _, err := range []error{err, read, p.run[rank].Run(t.Context())} {
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.NotContains(t, err.Error(), "\n")
			for _, w := range words {
				require.ErrorContains(t, err, w)
			}
		}
	}
}
