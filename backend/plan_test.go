package backend_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// randomProgram returns a program whose nodes read earlier temps, or views of them, and
// write new ones, in random blocks and on random queues.
func randomProgram(rng *rand.Rand) *backend.Program {
	vars := backend.NewVars()
	out := vars.Tensor(backend.Output, "out", fp8.F32, 1)
	p := vars.Program("random")
	var temps []*backend.Tensor
	block := 0
	for i := range 5 + rng.IntN(40) {
		q := p
		if rng.IntN(4) == 0 {
			block++
		}
		if block%3 > 0 {
			q = q.Block(fmt.Sprintf("block%d", block))
		}
		if rng.IntN(6) == 0 {
			q = q.On(backend.CommQueue)
		}
		if len(temps) > 0 && rng.IntN(4) == 0 {
			q.Add(&backend.Amax{X: temps[rng.IntN(len(temps))].RowRange(0, 1), Out: out})
			continue
		}
		t := q.Temp(fmt.Sprintf("t%d", i), fp8.F32, 1+rng.IntN(5), 1+rng.IntN(70))
		if len(temps) == 0 || rng.IntN(3) == 0 {
			q.Add(&backend.Fill{Out: t})
		} else {
			x := temps[max(0, len(temps)-1-rng.IntN(4))]
			t = q.Temp(fmt.Sprintf("u%d", i), fp8.F32, x.Shape...)
			q.Add(&backend.Quantize{X: x, Out: to(t)})
		}
		temps = append(temps, t)
	}
	return p
}

func touches(n *backend.Node, t *backend.Tensor, write bool) bool {
	for _, o := range n.Operands() {
		if o.Tensor.Root() == t && (!write || o.Access != backend.In) {
			return true
		}
	}
	return false
}

// alive reports, for every node, whether t must be live while that node runs. It computes
// this in another way than the planner: t is live between any two nodes that use it, and
// while a node on another queue that uses it may still run.
func alive(p *backend.Program, t *backend.Tensor, blocks bool) []bool {
	nodes := p.Nodes()
	used := make([]bool, len(nodes))
	mark := func(i int) {
		used[i] = true
		for j := range nodes {
			if lo, hi := min(i, j), max(i, j); blocks && nodes[i].Block != "" && sameBlock(nodes[lo:hi+1]) {
				used[j] = true
			}
		}
	}
	for i, n := range nodes {
		if !touches(n, t, false) {
			continue
		}
		mark(i)
		if n.Queue == backend.ComputeQueue {
			continue
		}
		// It may run until a later compute node needs what it wrote.
		for j := i + 1; j < len(nodes); j++ {
			used[j] = true
			if nodes[j].Queue == backend.ComputeQueue && waits(n, nodes[j]) {
				break
			}
		}
	}
	first, last := -1, -1
	for i, u := range used {
		if u {
			last = i
			if first < 0 {
				first = i
			}
		}
	}
	for i := range used {
		used[i] = first >= 0 && i >= first && i <= last
	}
	return used
}

func waits(comm, compute *backend.Node) bool {
	for _, o := range comm.Operands() {
		if o.Access != backend.In && touches(compute, o.Tensor.Root(), false) {
			return true
		}
	}
	return false
}

func sameBlock(nodes []*backend.Node) bool {
	for _, n := range nodes {
		if n.Block != nodes[0].Block {
			return false
		}
	}
	return true
}

// grouping launches the nodes of a block together, or every node by itself.
func grouping(blocks bool) backend.Grouping {
	if !blocks {
		return backend.PerOp
	}
	return func(nodes []*backend.Node, i int) (first, end int) {
		if nodes[i].Block == "" {
			return i, i
		}
		first, end = i, i
		for first > 0 && sameBlock(nodes[first-1:i+1]) {
			first--
		}
		for end+1 < len(nodes) && sameBlock(nodes[i:end+2]) {
			end++
		}
		return first, end
	}
}

func TestPlanNeverSharesLiveBytes(t *testing.T) {
	const align = 64
	for seed := range uint64(150) {
		p := randomProgram(rand.New(rand.NewPCG(seed, 0)))
		require.NoError(t, p.Err())
		for _, blocks := range []bool{false, true} {
			plan := backend.MakePlan(align, grouping(blocks), p)
			var sum, peak int64
			life := map[*backend.Tensor][]bool{}
			for _, temp := range p.Temps() {
				if life[temp] = alive(p, temp, blocks); !contains(life[temp]) {
					continue
				}
				at, placed := plan.Offsets[temp]
				require.True(t, placed && at >= 0 && at%align == 0 && at+temp.Bytes() <= plan.Bytes, "seed %d: %s at %d of %d", seed, temp, at, plan.Bytes)
				sum += (temp.Bytes() + align - 1) / align * align
			}
			for i := range p.Nodes() {
				var now int64
				for a := range life {
					if !life[a][i] {
						continue
					}
					now += a.Bytes()
					for b := range life {
						if a != b && life[b][i] {
							require.True(t, plan.Offsets[a]+a.Bytes() <= plan.Offsets[b] || plan.Offsets[b]+b.Bytes() <= plan.Offsets[a],
								"seed %d, blocks %v, node %d: %s and %s overlap", seed, blocks, i, a, b)
						}
					}
				}
				peak = max(peak, now)
			}
			require.LessOrEqual(t, plan.Bytes, sum)
			require.GreaterOrEqual(t, plan.Bytes, peak)
		}
	}
}

func contains(list []bool) bool {
	for _, b := range list {
		if b {
			return true
		}
	}
	return false
}

// A chain of any length needs two buffers; in one block it needs one for each temp.
func TestPlanReusesBytes(t *testing.T) {
	vars := backend.NewVars()
	p := vars.Program("chain")
	q := p.Block("b")
	for _, r := range []*backend.Program{p, q} {
		r = r.Scope(fmt.Sprint(r == q))
		x := r.Temp("0", fp8.F32, 64)
		r.Add(&backend.Fill{Out: x})
		for i := range 9 {
			y := r.Temp(fmt.Sprint(i+1), fp8.F32, 64)
			r.Add(&backend.Quantize{X: x, Out: to(y)})
			x = y
		}
	}
	require.NoError(t, p.Err())
	require.EqualValues(t, 2*256, backend.MakePlan(256, backend.PerOp, p).Bytes)
	require.EqualValues(t, 10*256, backend.MakePlan(256, grouping(true), p).Bytes)
}

// The backend pads the first temp and keeps the second out of the arena.
func TestPlanUsesTheBackendsSizes(t *testing.T) {
	vars := backend.NewVars()
	p := vars.Program("p")
	a, b := p.Temp("a", fp8.F32, 64), p.Temp("b", fp8.F32, 64)
	p.Add(&backend.Fill{Out: a})
	p.Add(&backend.Quantize{X: a, Out: to(b)})
	require.NoError(t, p.Err())
	plan := backend.MakePlanOf(256, backend.PerOp, func(t *backend.Tensor) int64 {
		if t == b {
			return 0
		}
		return 1000
	}, p)
	require.EqualValues(t, 1024, plan.Bytes)
	require.Equal(t, map[*backend.Tensor]int64{a: 0}, plan.Offsets)
}

func TestProgramsShareTheArena(t *testing.T) {
	vars := backend.NewVars()
	var programs []*backend.Program
	for i := range 3 {
		p := vars.Program(fmt.Sprint(i))
		p.Add(&backend.Fill{Out: p.Temp("x", fp8.F32, 10*(i+1))})
		programs = append(programs, p)
	}
	plan := backend.MakePlan(8, backend.PerOp, programs...)
	require.EqualValues(t, 120, plan.Bytes)
	require.Len(t, plan.Offsets, 3)
}
