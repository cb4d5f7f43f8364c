package emu

import (
	"octet/backend"
	"octet/backend/emu/gemm"
)

// This file makes grouped GEMMs of consecutive MatMuls that are independent of each other: those
// of all experts, of queries, keys and values, of wgrad and dgrad. No bit of a result changes.

// grouped returns the Grouping of the MatMuls that [executable.Run] launches together. Programs may
// share nodes.
func grouped(programs ...*backend.Program) backend.Grouping {
	type extent struct{ first, end int }
	of := map[**backend.Node]extent{} // by the node's place in its program
	for _, p := range programs {
		nodes := p.Nodes()
		for first := 0; first < len(nodes); {
			next := first + independent(nodes[first:])
			for i := first; i < next; i++ {
				of[&nodes[i]] = extent{first, next - 1}
			}
			first = next
		}
	}
	return func(nodes []*backend.Node, i int) (first, end int) {
		e := of[&nodes[i]]
		return e.first, e.end
	}
}

// independent returns how many of the first nodes are MatMuls that read and write no output of each
// other; 1 if the first node is another op.
func independent(nodes []*backend.Node) int {
	read, written := map[*backend.Tensor][]*backend.Tensor{}, map[*backend.Tensor][]*backend.Tensor{} // by root
	for i, n := range nodes {
		if _, ok := n.Op.(*backend.MatMul); !ok {
			return max(i, 1)
		}
		for _, o := range n.Operands() {
			root := o.Tensor.Root()
			if overlapsAny(o.Tensor, written[root]) || o.Access != backend.In && overlapsAny(o.Tensor, read[root]) {
				return i
			}
		}
		for _, o := range n.Operands() {
			if root := o.Tensor.Root(); o.Access == backend.In {
				read[root] = append(read[root], o.Tensor)
			} else {
				written[root] = append(written[root], o.Tensor)
			}
		}
	}
	return len(nodes)
}

func overlapsAny(t *backend.Tensor, list []*backend.Tensor) bool {
	for _, u := range list {
		if t.Overlaps(u) {
			return true
		}
	}
	return false
}

// groupedGEMM returns the kernel of a list of bound MatMul nodes.
func (b *binder) groupedGEMM(nodes []*backend.Node) kernel {
	var list []gemm.Bound
	for _, n := range nodes {
		list = append(list, b.gemms[n])
	}
	return b.invalidating(compute(gemm.NewGrouped(b.pool, list).Run), nodes...)
}
