package backend

import (
	"cmp"
	"slices"
)

// Grouping returns the first and last node that a backend launches together with node i.
// The operands of these nodes must not share bytes. Backends that launch each op by
// itself use [PerOp].
type Grouping func(nodes []*Node, i int) (first, end int)

// PerOp is the Grouping in which a temp is freed after its last op.
func PerOp(_ []*Node, i int) (first, end int) { return i, i }

// Plan places the temps of a set of programs in one arena. Programs run one after the
// other and no temp outlives its program, so all programs share the arena.
type Plan struct {
	Offsets map[*Tensor]int64 // of every temp in the arena, in bytes
	Bytes   int64             // size of the arena
}

// MakePlan computes lifetimes in program order and packs temps greedily, largest first,
// each at the lowest address that is free during its lifetime.
func MakePlan(align int, g Grouping, programs ...*Program) *Plan {
	return MakePlanOf(align, g, (*Tensor).Bytes, programs...)
}

// MakePlanOf is MakePlan for a backend whose temps differ in size from Tensor.Bytes.
// bytes returns a temp's size, padded for example; 0 keeps the temp out of the arena.
func MakePlanOf(align int, g Grouping, bytes func(*Tensor) int64, programs ...*Program) *Plan {
	plan := &Plan{Offsets: map[*Tensor]int64{}}
	for _, p := range programs {
		plan.pack(int64(align), lifetimes(p, g, bytes))
	}
	return plan
}

// life is the closed range of node indexes during which a temp is live.
type life struct {
	t          *Tensor
	first, end int
	at, size   int64
}

func lifetimes(p *Program, g Grouping, bytes func(*Tensor) int64) []*life {
	byTensor := map[*Tensor]*life{}
	var list []*life
	nodes := p.Nodes()
	for i, n := range nodes {
		first, end := g(nodes, i)
		_, join := g(nodes, joinOf(nodes, i))
		end = max(end, join)
		for _, o := range n.operands {
			root := o.Tensor.Root()
			if root.Class != Temp || bytes(root) == 0 {
				continue
			}
			l := byTensor[root]
			if l == nil {
				l = &life{t: root, first: first, size: bytes(root)}
				byTensor[root] = l
				list = append(list, l)
			}
			l.first, l.end = min(l.first, first), max(l.end, end)
		}
	}
	return list
}

// blockExtent returns the range of consecutive nodes around i with i's block.
func blockExtent(nodes []*Node, i int) (first, end int) {
	first, end = i, i
	if nodes[i].Block == "" {
		return first, end
	}
	for first > 0 && nodes[first-1].Block == nodes[i].Block {
		first--
	}
	for end+1 < len(nodes) && nodes[end+1].Block == nodes[i].Block {
		end++
	}
	return first, end
}

// joinOf returns the last node during which the operands of node i must stay live: i
// itself on the compute queue, else the first later compute node that uses what i wrote,
// or the last node of the program. That node waits for i (CollectivesBefore), and nodes after it
// come after i. So operands that i only reads live until then, too.
func joinOf(nodes []*Node, i int) int {
	if nodes[i].Queue == ComputeQueue {
		return i
	}
	for j := i + 1; j < len(nodes); j++ {
		if nodes[j].Queue != ComputeQueue {
			continue
		}
		for _, w := range nodes[i].operands {
			for _, r := range nodes[j].operands {
				if w.Access != In && w.Tensor.Root() == r.Tensor.Root() {
					return j
				}
			}
		}
	}
	return len(nodes) - 1
}

func (plan *Plan) pack(align int64, lives []*life) {
	slices.SortStableFunc(lives, func(a, b *life) int {
		return cmp.Or(cmp.Compare(b.size, a.size), a.first-b.first)
	})
	var placed []*life // in order of address
	for _, l := range lives {
		at := int64(0)
		for _, q := range placed {
			if q.end < l.first || l.end < q.first {
				continue
			}
			if at+l.size <= q.at {
				break
			}
			at = max(at, Aligned(q.at+q.size, align))
		}
		l.at = at
		plan.Offsets[l.t] = at
		plan.Bytes = max(plan.Bytes, Aligned(at+l.size, align))
		i, _ := slices.BinarySearchFunc(placed, at, func(q *life, at int64) int {
			return cmp.Compare(q.at, at)
		})
		placed = slices.Insert(placed, i, l)
	}
}
