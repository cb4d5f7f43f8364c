package backend

import (
	"fmt"

	"octet/fp8"
)

// RecomputeForward trades time for memory: the temps that a group of forward
// nodes leaves for the backward are dropped and computed again just before the
// backward first reads them. group names the group of a forward node, "" for
// none; a group's nodes are consecutive. What forward nodes outside the group
// read (a layer's output) is kept: it is the next group's input.
//
// The copies compute the same bits from the same inputs. They fold the same
// amaxes into the step's maxima a second time, which changes nothing.
func RecomputeForward(p *Program, group func(*Node) string) (*Program, error) {
	nodes := p.Nodes()
	groupOf := make([]string, len(nodes))
	writer := map[*Tensor][]int{} // temp -> forward nodes of a group that write it
	for i, n := range nodes {
		if n.Phase == Forward {
			groupOf[i] = group(n)
		}
		for _, o := range n.operands {
			if root := o.Tensor.Root(); groupOf[i] != "" && o.Access != In && root.Class == Temp {
				writer[root] = append(writer[root], i)
			}
		}
	}
	homeOf := func(t *Tensor) string {
		if w := writer[t]; len(w) > 0 {
			return groupOf[w[0]]
		}
		return ""
	}
	kept := map[*Tensor]bool{} // read by the forward outside its group
	for i, n := range nodes {
		for _, o := range n.operands {
			root := o.Tensor.Root()
			if home := homeOf(root); home != "" && n.Phase == Forward && groupOf[i] != home {
				kept[root] = true
			}
		}
	}

	r := &recomputation{nodes: nodes, writer: writer, kept: kept, renamed: map[*Tensor]*Tensor{}}
	q, err := Rewrite(p, func(q *Rewriter, n *Node) {
		if n.Phase != Forward {
			for _, o := range n.operands {
				if root := o.Tensor.Root(); homeOf(root) != "" && !kept[root] && r.renamed[root] == nil {
					r.emitFor(q.rec, root, n)
				}
			}
			n = n.with(cloneOp(n.Op, r.rename))
		}
		q.rec.add(n)
	})
	if err == nil {
		err = r.err
	}
	return q, err
}

type recomputation struct {
	nodes   []*Node
	writer  map[*Tensor][]int
	kept    map[*Tensor]bool
	renamed map[*Tensor]*Tensor // originals, roots and views, to the recomputed tensors
	err     error
}

// emitFor appends the nodes that compute t again, and first what they need.
// It recomputes what the backward asks for, and no more of the group.
func (r *recomputation) emitFor(rec *record, t *Tensor, user *Node) {
	for _, i := range r.writer[t] {
		for _, o := range r.nodes[i].operands {
			root := o.Tensor.Root()
			if o.Access == In && len(r.writer[root]) > 0 && !r.kept[root] && r.renamed[root] == nil {
				r.emitFor(rec, root, user)
			}
		}
	}
	for _, i := range r.writer[t] {
		n := r.nodes[i]
		if stochastic(n.Op) && r.err == nil {
			r.err = fmt.Errorf("%s: a stochastic cast in a recomputed forward would draw other random bits", n.Path())
		}
		for _, o := range n.operands {
			if root := o.Tensor.Root(); o.Access != In && root.Class == Temp && r.renamed[root] == nil {
				r.declare(rec, root)
			}
		}
		m := n.with(cloneOp(n.Op, r.rename))
		m.Phase, m.Block = Recompute, user.Block
		rec.add(m)
	}
}

func (r *recomputation) declare(rec *record, t *Tensor) {
	again := *t
	again.Name += "#again"
	r.renamed[t] = &again
	rec.declare(&again)
	if t.Scale != nil {
		again.Scale = r.rename(t.Scale)
		if again.Scale == t.Scale && t.Scale.Root().Class == Temp && !r.kept[t.Scale.Root()] && len(r.writer[t.Scale.Root()]) > 0 {
			r.declare(rec, t.Scale.Root())
			again.Scale = r.rename(t.Scale)
		}
	}
}

// rename maps a tensor, or a view of one, to its recomputed twin.
func (r *recomputation) rename(t *Tensor) *Tensor {
	if twin := r.renamed[t]; twin != nil {
		return twin
	}
	base := r.renamed[t.Root()]
	if t.Base == nil || base == nil {
		return t
	}
	view := *t
	view.Base, view.Scale = base, base.Scale
	r.renamed[t] = &view
	return &view
}

func stochastic(op Op) bool {
	for c := range Casts(op) {
		if c.Rounding == fp8.Stochastic {
			return true
		}
	}
	return false
}
