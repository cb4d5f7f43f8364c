package backend_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// layered returns a program of blocks, each of which reads a gathered weight twice, in a view, too, with
// a node that reads two others after them.
func layered(layers int) (*backend.Program, *backend.Vars) {
	v := backend.NewVars()
	x := v.Tensor(backend.Input, "x", fp8.F32, 4, 8)
	gathered := func(name string) *backend.Tensor {
		return v.Gathered(name, v.Tensor(backend.Stash, name+".shard", fp8.F32, 2, 8), 4, backend.Group{})
	}
	p := v.Program("layers")
	y := x
	for i := range layers {
		w := gathered(fmt.Sprintf("w%d", i))
		q := p.Scope(fmt.Sprintf("layers.%d", i)).Block(fmt.Sprintf("block%d", i))
		a, b := q.Temp("a", fp8.F32, 4, 8), q.Temp("b", fp8.F32, 4, 8)
		q.Add(&backend.Activation{X: y, Out: to(a)})
		q.Add(&backend.Add{A: a, B: w, Out: to(b)})
		q.Add(&backend.Add{A: b.RowRange(0, 2), B: w.RowRange(2, 2), Out: to(q.Temp("c", fp8.F32, 2, 8))})
		y = b
	}
	head, table := gathered("head"), gathered("table")
	out := p.Temp("sum", fp8.F32, 4, 8)
	p.Add(&backend.Add{A: y, B: head, Out: to(out)})
	p.Add(&backend.Add{A: out, B: table, Out: to(v.Tensor(backend.Output, "out", fp8.F32, 4, 8))})
	return p, v
}

// A gather precedes the nodes that use the weight before it, and a block gathers a weight once.
func TestGatherShards(t *testing.T) {
	p, v := layered(3)
	require.NoError(t, p.Err())
	q, err := backend.GatherShards(p)
	require.NoError(t, err)
	var list []string
	for _, n := range q.Nodes() {
		if g, ok := n.Op.(*backend.AllGather); ok {
			require.Equal(t, backend.CommQueue, n.Queue)
			list = append(list, "gather "+strings.TrimSuffix(g.X.Name, ".shard"))
			continue
		}
		list = append(list, n.Path())
		for _, o := range n.Operands() {
			require.Nil(t, o.Tensor.Shard(), "%s reads %s", n.Path(), o.Tensor)
		}
	}
	require.Equal(t, []string{
		"gather w0", "gather w1",
		"layers.0: activation", "layers.0: add", "layers.0: add", "gather w2",
		"layers.1: activation", "layers.1: add", "layers.1: add", "gather head",
		"layers.2: activation", "layers.2: add", "layers.2: add", "gather table",
		"add", "add",
	}, list)
	names := []string{}
	for x := range v.All() {
		names = append(names, x.Name)
	}
	require.NotContains(t, names, "w0", "a gathered tensor has no memory")
	require.Contains(t, names, "w0.shard")

	// Two weights are live at a time, however many layers there are.
	arena := func(layers int) int64 {
		p, _ := layered(layers)
		q, err := backend.GatherShards(p)
		require.NoError(t, err)
		return backend.MakePlan(1, backend.PerOp, q).Bytes
	}
	require.Equal(t, arena(3), arena(30))
}

// A program without gathered tensors stays as it is; one that writes such a tensor is refused.
func TestGatherShardsRefuses(t *testing.T) {
	p := tower(2, fp8.Nearest)
	q, err := backend.GatherShards(p)
	require.NoError(t, err)
	require.Same(t, p, q)

	v := backend.NewVars()
	w := v.Gathered("w", v.Tensor(backend.Stash, "w.shard", fp8.F32, 2, 8), 4, backend.Group{})
	p = v.Program("writes")
	p.Add(&backend.Fill{Out: w})
	_, err = backend.GatherShards(p)
	require.ErrorContains(t, err, "fill: Out writes w:fp32[4, 8], which is gathered: write its shard")
	v.Gathered("w", w, 8, backend.Group{})
	require.ErrorContains(t, v.Err(), "tensor w is declared twice")
}

// Recomputed nodes gather their weights again: the backward keeps none of the forward's.
func TestRecomputedNodesGather(t *testing.T) {
	v := backend.NewVars()
	x, dx := v.Tensor(backend.Input, "x", fp8.F32, 4, 8), v.Tensor(backend.Output, "dx", fp8.F32, 4, 8)
	w := v.Gathered("w", v.Tensor(backend.Stash, "w.shard", fp8.F32, 2, 8), 4, backend.Group{})
	p := v.Program("p")
	f := p.Scope("layer").Block("fwd")
	a := f.Temp("a", fp8.F32, 4, 8)
	f.Add(&backend.Add{A: x, B: w, Out: to(a)})
	b := p.Scope("layer").Block("bwd").Phase(backend.Backward)
	b.Add(&backend.ActivationGrad{DOut: x, X: a, DX: to(dx)})
	q, err := backend.RecomputeForward(p, func(n *backend.Node) string { return n.Block })
	require.NoError(t, err)
	q, err = backend.GatherShards(q)
	require.NoError(t, err)
	gathers := slices.DeleteFunc(slices.Clone(q.Nodes()), func(n *backend.Node) bool {
		_, ok := n.Op.(*backend.AllGather)
		return !ok
	})
	require.Len(t, gathers, 2)
	require.NotSame(t, gathers[0].Op.(*backend.AllGather).Out, gathers[1].Op.(*backend.AllGather).Out)
}
