package backend

import (
	"cmp"
	"fmt"
	"slices"
)

// This file holds tensors of which each rank stores a part: stage 3 of ZeRO (Rajbhandari et al.
// 2020). Programs read them as a whole. GatherShards replaces these reads by those of temps, which
// all-gathers fill shortly before.

// Gathered declares a tensor whose rows are those of shard on the ranks of a group, one after another. It has no
// memory of its own, and programs only read it: [GatherShards] replaces it before they are lowered.
func (v *Vars) Gathered(name string, shard *Tensor, rows int, g Group) *Tensor {
	t := &Tensor{
		Name: name, DType: shard.DType, Shape: append([]int{rows}, shard.Shape[1:]...), Class: Stash,
		Scale: shard.Scale, Block: shard.Block, Outer: shard.Outer, LD: shard.LD, shard: shard, sharedBy: g,
	}
	if v.byName[name] != nil {
		v.fail(fmt.Errorf("tensor %s is declared twice", name))
	}
	v.byName[name] = t
	return t
}

// Shard returns this rank's rows of a tensor of [Vars.Gathered] or of a view of it; nil for any other.
func (t *Tensor) Shard() *Tensor { return t.Root().shard }

// GatherShards returns p with every tensor of [Vars.Gathered] replaced by temps, each filled by an
// AllGather. Nodes of one block share a temp, and so do those between two blocks. The gather of a temp
// precedes the nodes that use the temp before it, so that it can run beside them: two of them are live
// at a time.
func GatherShards(p *Program) (*Program, error) {
	nodes := p.Nodes()
	uses, err := usesOf(nodes)
	if err != nil || len(uses) == 0 {
		return p, err
	}
	before, at, ahead := map[int][]use{}, uses[0].first, uses[0].first // by node: what is gathered before it
	for _, u := range uses {
		if u.first > ahead {
			at, ahead = ahead, u.first
		}
		before[at] = append(before[at], u)
	}
	g := &gathering{temps: map[stretch]*Tensor{}, views: map[*Tensor]*Tensor{}}
	i := 0
	return Rewrite(p, func(r *Rewriter, n *Node) {
		if i > 0 && n.Block != nodes[i-1].Block {
			g.run++
			clear(g.views)
		}
		for _, u := range before[i] {
			r.Add(&Node{Phase: Comm, Queue: CommQueue}, &AllGather{X: u.root.shard, Out: g.temp(r, u.stretch), Group: u.root.sharedBy})
		}
		r.Add(n, ReplaceOperands(n.Op, func(t *Tensor) *Tensor { return g.replaced(r, t) }))
		i++
	})
}

// stretch is the use of a gathered tensor by a run of nodes: those of a block, or between two blocks.
type stretch struct {
	index int
	root  *Tensor
}

// use is a stretch with its first node, of a block the first one of all.
type use struct {
	stretch
	first int
}

// usesOf returns the uses of gathered tensors, in the order of their first nodes.
func usesOf(nodes []*Node) (list []use, err error) {
	known, index, start := map[stretch]bool{}, 0, 0
	for i, n := range nodes {
		if i > 0 && n.Block != nodes[i-1].Block {
			index, start = index+1, i
		}
		add := func(root *Tensor) {
			u := use{stretch{index, root}, i}
			if root.shard == nil || known[u.stretch] {
				return
			}
			if n.Block != "" {
				u.first = start
			}
			known[u.stretch] = true
			list = append(list, u)
		}
		for _, o := range n.operands {
			if root := o.Tensor.Root(); root.shard != nil && o.Access != In {
				return nil, fmt.Errorf("%s: %s writes %s, which is gathered: write its shard", n.Path(), o.Field, root)
			}
			if s := o.Tensor.Scale; s != nil {
				add(s.Root()) // before the codes, for ops that follow their gather
			}
			add(o.Tensor.Root())
		}
	}
	slices.SortStableFunc(list, func(a, b use) int { return cmp.Compare(a.first, b.first) })
	return list, nil
}

type gathering struct {
	run   int
	temps map[stretch]*Tensor
	views map[*Tensor]*Tensor // of the current run
}

// temp returns the temp of a stretch.
func (g *gathering) temp(r *Rewriter, u stretch) *Tensor {
	if t := g.temps[u]; t != nil {
		return t
	}
	t := r.Temp(u.root.Name+".gathered", u.root.DType, u.root.Shape...)
	g.temps[u] = t
	t.Scale, t.Block, t.Outer = u.root.Scale, u.root.Block, u.root.Outer
	if t.Scale != nil && t.Scale.Root().shard != nil {
		t.Scale = g.temp(r, stretch{u.index, t.Scale.Root()})
	}
	return t
}

// replaced returns what a node of the current run reads in place of t.
func (g *gathering) replaced(r *Rewriter, t *Tensor) *Tensor {
	root := t.Root()
	if root.shard == nil {
		return t
	}
	temp := g.temp(r, stretch{g.run, root})
	if t == root {
		return temp
	}
	if v := g.views[t]; v != nil {
		return v
	}
	v := *t
	v.Base, v.Scale, v.Class = temp, temp.Scale, Temp
	if t.Scale != nil && t.Scale != root.Scale {
		v.Scale = g.replaced(r, t.Scale)
	}
	g.views[t] = &v
	return &v
}
