package backend

import (
	"fmt"

	"octet/fp8"
)

// RecomputeForward trades time for memory (activation checkpointing). It drops the temps
// that a segment of forward nodes keeps for the backward, and computes them again just
// before the backward first reads them. segment returns a forward node's segment, "" for
// none; the nodes of a segment are consecutive. Temps that forward nodes outside the
// segment read (a layer's output) are kept as inputs of the next segment.
//
// The copied nodes compute the same bits from the same inputs. They also merge the same
// amaxes into the step's maxima again, which changes nothing.
func RecomputeForward(p *Program, segment func(*Node) string) (*Program, error) {
	nodes := p.Nodes()
	segmentOf := make([]string, len(nodes))
	writer := map[*Tensor][]int{} // temp -> forward nodes of a segment that write it
	for i, n := range nodes {
		if n.Phase == Forward {
			segmentOf[i] = segment(n)
		}
		for _, o := range n.operands {
			if root := o.Tensor.Root(); segmentOf[i] != "" && o.Access != In && root.Class == Temp {
				writer[root] = append(writer[root], i)
			}
		}
	}
	writerSegment := func(t *Tensor) string {
		if w := writer[t]; len(w) > 0 {
			return segmentOf[w[0]]
		}
		return ""
	}
	kept := map[*Tensor]bool{} // read by the forward outside its segment
	for i, n := range nodes {
		for _, o := range n.operands {
			root := o.Tensor.Root()
			if own := writerSegment(root); own != "" && n.Phase == Forward && segmentOf[i] != own {
				kept[root] = true
			}
		}
	}

	r := &recomputation{
		nodes: nodes, writer: writer, kept: kept, renamed: map[*Tensor]*Tensor{}, emitted: map[int]bool{}, begun: map[*Tensor]bool{},
	}
	q, err := Rewrite(p, func(q *Rewriter, n *Node) {
		if n.Phase != Forward {
			for _, o := range n.operands {
				r.emitTensor(q.rec, o.Tensor, n)
			}
			n = n.with(ReplaceOperands(n.Op, r.rename))
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
	emitted map[int]bool        // nodes that are computed again
	begun   map[*Tensor]bool    // roots that emitFor has begun
	err     error
}

// emitTensor appends the nodes that compute a tensor again, and its scale, unless they are kept or
// have been computed again.
func (r *recomputation) emitTensor(rec *record, t *Tensor, user *Node) {
	for _, x := range []*Tensor{t.Scale, t} {
		if x == nil {
			continue
		}
		if root := x.Root(); len(r.writer[root]) > 0 && !r.kept[root] && !r.begun[root] {
			r.emitFor(rec, root, user)
		}
	}
}

// emitFor appends the nodes that compute t again, after the nodes that compute their
// inputs. It recomputes only what the backward reads, not the whole segment.
func (r *recomputation) emitFor(rec *record, t *Tensor, user *Node) {
	r.begun[t] = true
	for _, i := range r.writer[t] {
		for _, o := range r.nodes[i].operands {
			if o.Access != Out {
				r.emitTensor(rec, o.Tensor, user)
			}
		}
	}
	for _, i := range r.writer[t] {
		n := r.nodes[i]
		if r.emitted[i] { // for another temp that it writes
			continue
		}
		r.emitted[i] = true
		if stochastic(n.Op) && r.err == nil {
			r.err = fmt.Errorf("%s: a stochastic cast in a recomputed forward would draw other random bits", n.Path())
		}
		for _, o := range n.operands {
			if root := o.Tensor.Root(); o.Access != In && root.Class == Temp && r.renamed[root] == nil {
				r.declare(rec, root)
			}
		}
		m := n.with(ReplaceOperands(n.Op, r.rename))
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

// rename returns the recomputed copy of t, a tensor or a view, and t itself if it is not
// recomputed.
func (r *recomputation) rename(t *Tensor) *Tensor {
	if again := r.renamed[t]; again != nil {
		return again
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
