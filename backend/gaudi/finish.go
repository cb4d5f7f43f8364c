package gaudi

import (
	"cmp"
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// A region is a range of bytes of a root on the device, to which a launch binds a
// section.
type region struct {
	root          *backend.Tensor
	offset, bytes int64
}

// finish assigns sections to places and control edges to nodes, and returns the graph
// with the regions of its sections.
//
// Overlapping ranges of a root form one section. A section starts at its first range, not
// at the root, so that the units of equal layers are equal although their records have
// other offsets in the packed vectors.
func (b *builder) finish() (*libsynapse.Graph, []region, error) {
	if b.err != nil {
		return nil, nil, b.err
	}
	b.prune()
	sections := b.sections()
	if err := b.order(); err != nil {
		return nil, nil, err
	}
	b.graph.Sections = len(sections)
	if err := b.graph.Check(); err != nil {
		return nil, nil, fmt.Errorf("backend gaudi: %w", err)
	}
	return &b.graph, sections, nil
}

// prune removes tensors that no node uses, such as unused constants and operands.
func (b *builder) prune() {
	used := make([]bool, len(b.infos))
	b.operands(func(k int) int { used[k] = true; return k })
	number := make([]int, len(b.infos))
	kept := 0
	for k, u := range used {
		if u {
			b.graph.Tensors[kept], b.infos[kept] = b.graph.Tensors[k], b.infos[k]
			number[k] = kept
			kept++
		}
	}
	b.graph.Tensors, b.infos = b.graph.Tensors[:kept], b.infos[:kept]
	b.operands(func(k int) int { return number[k] })
}

// operands replaces the index of every operand of every node.
func (b *builder) operands(replace func(k int) int) {
	for _, n := range b.graph.Nodes {
		for _, list := range [][]int{n.In, n.Out} {
			for i, k := range list {
				if k >= 0 {
					list[i] = replace(k)
				}
			}
		}
	}
}

// sections merges the places into sections, in the order of their first use.
func (b *builder) sections() []region {
	byRoot := map[*backend.Tensor][]place{}
	for _, s := range b.infos {
		if s.root != nil {
			byRoot[s.root] = append(byRoot[s.root], s.place)
		}
	}
	for root, list := range byRoot {
		slices.SortFunc(list, func(p, q place) int { return cmp.Compare(p.from, q.from) })
		merged := list[:1]
		for _, p := range list[1:] {
			if last := &merged[len(merged)-1]; p.from < last.to {
				last.to = max(last.to, p.to)
			} else {
				merged = append(merged, p)
			}
		}
		byRoot[root] = merged
	}
	number := map[place]int{}
	var regions []region
	for k, s := range b.infos {
		if s.root == nil {
			continue
		}
		list := byRoot[s.root]
		whole := list[slices.IndexFunc(list, s.overlaps)]
		n, ok := number[whole]
		if !ok {
			n = len(regions)
			number[whole] = n
			regions = append(regions, region{s.root, whole.from, whole.to - whole.from})
		}
		b.graph.Tensors[k].Section, b.graph.Tensors[k].Offset = n, uint64(s.from-whole.from)
	}
	return regions
}

// touch is one access of a node to a place.
type touch struct {
	place
	node, tensor int
	write        bool
}

// order adds the control edges that data flow does not imply: a node that writes a place
// waits for all earlier nodes that read or wrote it, a node that reads a place for its
// writers. SynapseAI derives such edges too, but from a node order of its own
// (register_memory_coherence.cpp).
func (b *builder) order() error {
	touched := map[*backend.Tensor][]touch{}
	for i := range b.graph.Nodes {
		n := &b.graph.Nodes[i]
		var mine []touch
		visit := func(k int, write bool) {
			if k >= 0 && b.infos[k].root != nil {
				mine = append(mine, touch{b.infos[k].place, i, k, write})
			}
		}
		for _, k := range n.In {
			visit(k, false)
		}
		for _, k := range n.Out {
			visit(k, true)
		}
		for _, m := range mine {
			for _, e := range touched[m.root] {
				if !e.overlaps(m.place) || !e.write && !m.write || e.tensor == m.tensor {
					continue
				}
				if !m.write && b.infos[m.tensor].moment < b.infos[e.tensor].moment {
					return fmt.Errorf("backend gaudi: %s reads contents of %s that an earlier node overwrote", n.Name, m.root)
				}
				if !slices.Contains(n.After, e.node) && !slices.ContainsFunc(n.In, func(k int) bool { return k >= 0 && b.infos[k].producer == e.node }) {
					n.After = append(n.After, e.node)
				}
			}
		}
		slices.Sort(n.After)
		for _, m := range mine {
			touched[m.root] = append(touched[m.root], m)
		}
	}
	return nil
}
