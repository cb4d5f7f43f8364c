package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// The arguments of each collective: elements of a reduction, bytes otherwise, bit
// patterns of magnitudes for a maximum, and a mark.
func TestCollectivesAreBound(t *testing.T) {
	v := backend.NewVars()
	x, part := v.Tensor(backend.Stash, "x", fp8.F32, 6), v.Tensor(backend.Stash, "part", fp8.F32, 2)
	codes, whole := v.Tensor(backend.Stash, "codes", fp8.E4M3, 5), v.Tensor(backend.Stash, "all", fp8.E4M3, 15)
	codes.Scale = v.Tensor(backend.Stash, "scale", fp8.F32, 1)
	whole.Scale = codes.Scale
	p := v.Program("p")
	p.Add(&backend.AllReduce{X: x})
	p.Add(&backend.AllReduce{X: x, Reduce: backend.ReduceMax})
	p.Add(&backend.ReduceScatter{X: x, Out: part})
	p.Add(&backend.AllGather{X: codes, Out: whole})
	others := v.Tensor(backend.Stash, "others", fp8.E4M3, 15)
	others.Scale = codes.Scale
	p.Add(&backend.AllToAll{X: whole, Out: others})
	require.NoError(t, p.Err())

	m := newMap()
	b := binder{address: m.of, ranks: 3, tableAt: 1 << 42}
	calls, err := b.bindAll([]*backend.Program{p})
	require.NoError(t, err)
	of := func(x *backend.Tensor) uint64 { return m.of(x) }
	var got []collective
	for i, list := range calls[0] {
		if i == 1 {
			require.Equal(t, "magnitudes", list[0].launch.kernel)
			list = list[1:]
		}
		require.Len(t, list, 1)
		got = append(got, *list[0].collective)
	}
	mark, all := uint64(1<<42), backend.Group{}
	require.Equal(t, []collective{
		{allReduceSum, of(x), of(x), 6, all, 3, "allreduce of x:fp32[6]", mark},
		{allReduceMax, of(x), of(x), 6, all, 3, "allreduce of x:fp32[6]", mark + 16},
		{reduceScatter, of(x), of(part), 2, all, 3, "reducescatter of x:fp32[6]", mark + 32},
		{allGather, of(codes), of(whole), 5, all, 3, "allgather of " + codes.String(), mark + 48},
		{allToAll, of(whole), of(others), 5, all, 3, "alltoall of " + whole.String(), mark + 64},
	}, got)
	require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b.tables)
	require.Len(t, b.marks, 5)
	require.Zero(t, b.scratch, "calls of another stream may use the scratch memory at the same time")
}

// A collective for another number of ranks is refused.
func TestCollectivesOfOtherRanks(t *testing.T) {
	for want, op := range map[string]func(f func(n int) *backend.Tensor) backend.Op{
		"reducescatter: unsupported by backend cuda: with 2 ranks, X is ": func(f func(int) *backend.Tensor) backend.Op {
			return &backend.ReduceScatter{X: f(6), Out: f(2)}
		},
		"allgather: unsupported by backend cuda: with 2 ranks, X is ": func(f func(int) *backend.Tensor) backend.Op {
			return &backend.AllGather{X: f(2), Out: f(6)}
		},
		"allgather: unsupported by backend cuda: with 1 ranks, X is ": func(f func(int) *backend.Tensor) backend.Op {
			return &backend.AllGather{X: f(2), Out: f(4), Group: backend.Group{Size: 1, Stride: 2}}
		},
		"allreduce: unsupported by backend cuda: 2 ranks do not divide into groups of 3 ranks 1 apart": func(f func(int) *backend.Tensor) backend.Op {
			return &backend.AllReduce{X: f(4), Group: backend.Group{Size: 3, Stride: 1}}
		},
		"alltoall: unsupported by backend cuda: operand X is x3:fp32[3], which has no equal parts for 2 ranks": func(f func(int) *backend.Tensor) backend.Op {
			x := f(3)
			return &backend.AllToAll{X: x, Out: x}
		},
	} {
		v := backend.NewVars()
		p := v.Program("p")
		p.Add(op(func(n int) *backend.Tensor { return v.Tensor(backend.Stash, fmt.Sprint("x", n), fp8.F32, n) }))
		require.NoError(t, p.Err())
		b := binder{address: newMap().of, ranks: 2}
		_, err := b.bindAll([]*backend.Program{p})
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
}
