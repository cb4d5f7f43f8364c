package backend_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// A node waits for the collectives that write what it uses, and for those that read what it writes.
func TestCollectivesBefore(t *testing.T) {
	v := backend.NewVars()
	part := v.Tensor(backend.Stash, "part", fp8.F32, 4)
	other, whole := v.Tensor(backend.Stash, "other", fp8.F32, 4), v.Tensor(backend.Stash, "whole", fp8.F32, 8)
	p := v.Program("p")
	comm := p.On(backend.CommQueue)
	comm.Add(&backend.AllGather{X: part, Out: whole}) // the first collective
	p.Add(&backend.Fill{Out: other})                  // beside it
	p.Add(&backend.Amax{X: part, Out: p.Temp("amax", fp8.F32, 1)})
	p.Add(&backend.Fill{Out: part})
	comm.Add(&backend.AllReduce{X: other})
	p.Add(&backend.Amax{X: whole, Out: p.Temp("amax.whole", fp8.F32, 1)})
	p.Add(&backend.Amax{X: other, Out: p.Temp("amax.other", fp8.F32, 1)})
	p.Add(&backend.AllReduce{X: part})
	require.NoError(t, p.Err())
	require.Equal(t, []int{0, 0, 0, 1, 0, 1, 2, 3}, backend.CollectivesBefore(p.Nodes()))
}

// randomExchanges returns a program of collectives, on both queues, and other nodes. They read earlier
// temps and write new ones, or reduce them in place.
func randomExchanges(rng *rand.Rand) *backend.Program {
	p := backend.NewVars().Program("random")
	var temps []*backend.Tensor
	fresh := func(n int) *backend.Tensor {
		t := p.Temp(fmt.Sprintf("t%d", len(temps)), fp8.F32, n)
		temps = append(temps, t)
		return t
	}
	p.Add(&backend.Fill{Out: fresh(8)})
	for range 5 + rng.IntN(40) {
		q := p
		if rng.IntN(4) > 0 {
			q = p.On(backend.CommQueue)
		}
		x := temps[max(0, len(temps)-1-rng.IntN(5))]
		n := x.Elems()
		switch kind := rng.IntN(7); {
		case kind == 0:
			q.Add(&backend.AllReduce{X: x})
		case kind == 1 && n <= 64:
			q.Add(&backend.AllGather{X: x, Out: fresh(2 * n)})
		case kind == 2 && n > 4:
			q.Add(&backend.ReduceScatter{X: x, Out: fresh(n / 2)})
		case kind == 3:
			p.Add(&backend.Fill{Out: fresh(4 << rng.IntN(4))})
		case kind == 4:
			p.Add(&backend.Amax{X: x, Out: fresh(1)})
		default:
			p.Add(&backend.Quantize{X: x, Out: to(fresh(n))})
		}
	}
	return p
}

// No node that may run beside a collective writes memory that the collective reads or writes, or reads
// what it writes: the memory of temps that it only reads is not used again before a node waits for it.
func TestPlanKeepsTheMemoryOfPendingCollectives(t *testing.T) {
	const align = 16
	beside := 0
	for seed := range uint64(500) {
		p := randomExchanges(rand.New(rand.NewPCG(seed, 1)))
		require.NoError(t, p.Err())
		plan, nodes := backend.MakePlan(align, backend.PerOp, p), p.Nodes()
		overlap := func(a, b *backend.Tensor) bool {
			a, b = a.Root(), b.Root()
			return plan.Offsets[a] < plan.Offsets[b]+b.Bytes() && plan.Offsets[b] < plan.Offsets[a]+a.Bytes()
		}
		before, count := backend.CollectivesBefore(nodes), 0
		for i, n := range nodes {
			if !n.IsCollective() {
				continue
			}
			count++
			for k := i + 1; k < len(nodes) && before[k-1] < count && before[k] < count; k++ {
				if nodes[k].IsCollective() {
					continue // runs after it
				}
				beside++
				for _, a := range n.Operands() {
					for _, b := range nodes[k].Operands() {
						if a.Access != backend.In || b.Access != backend.In {
							require.False(t, overlap(a.Tensor, b.Tensor), "seed %d: node %d uses %s, and node %d %s beside it", seed, i, a.Tensor, k, b.Tensor)
						}
					}
				}
			}
		}
	}
	require.Greater(t, beside, 2000)
}

// Every rank is in one group, and finds itself and the others there.
func TestGroup(t *testing.T) {
	for _, g := range []backend.Group{{}, {Size: 2, Stride: 1}, {Size: 2, Stride: 3}, {Size: 3, Stride: 2}, {Size: 6, Stride: 1}, {Size: 1, Stride: 1}} {
		n, err := g.Ranks(6)
		require.NoError(t, err)
		members := map[int]int{}
		for rank := range 6 {
			require.Equal(t, rank, g.Member(rank, g.Index(rank)), "%s", g)
			for i := range n {
				member := g.Member(rank, i)
				require.Equal(t, i, g.Index(member), "%s", g)
				members[member]++
			}
		}
		require.Len(t, members, 6)
		for _, times := range members {
			require.Equal(t, n, times, "%s", g)
		}
	}
	for _, g := range []backend.Group{{Size: 4, Stride: 1}, {Size: 2, Stride: 2}, {Size: 2}, {Stride: 2}, {Size: -2, Stride: 1}} {
		_, err := g.Ranks(6)
		require.ErrorContains(t, err, "6 ranks do not divide into groups of")
	}
}
