package gaudi

import (
	"cmp"
	"fmt"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// A unit is a graph that is compiled and launched as one recipe. Units with equal keys
// share it.
type unit struct {
	key       string
	graph     *libsynapse.Graph
	name      string // from the first node that it was made for
	workspace int64  // an estimate: peak bytes of the compiler's own tensors, in the order of the list
}

// A step is one launch of a unit, with the regions bound to its sections, or a
// collective, which may have a unit that runs before it.
type step struct {
	node       *backend.Node // the unit's first node, or the collective's
	unit       *unit
	sections   []region
	collective backend.Op
}

// A schedule is a program as the device runs it.
type schedule struct {
	program *backend.Program
	steps   []step
	ranges  []nodeRange              // by node: the nodes of its unit
	arena   map[*backend.Tensor]bool // temps that outlive a unit
}

// nodeRange is a closed range of nodes.
type nodeRange struct{ first, end int }

// layouts are the layouts of the roots of a set of programs.
type layouts map[*backend.Tensor]layout

// layoutsOf returns the layouts of all roots that the programs touch. Programs that run
// on one device need one call, because they share the variables.
func layoutsOf(s backend.Spec, programs ...*backend.Program) layouts {
	views := map[*backend.Tensor][]*backend.Tensor{}
	seen := map[*backend.Tensor]bool{}
	for _, p := range programs {
		for _, n := range p.Nodes() {
			for _, o := range n.Operands() {
				if t := o.Tensor; !seen[t] {
					seen[t] = true
					views[t.Root()] = append(views[t.Root()], t)
				}
			}
		}
	}
	l := layouts{}
	for root, list := range views {
		l[root] = layoutOf(root, list, own(s).align)
	}
	return l
}

// of returns a root's layout, without padding if no program touches it.
func (l layouts) of(root *backend.Tensor) layout {
	if known, ok := l[root]; ok {
		return known
	}
	return layoutOf(root, nil, 1)
}

// A cutter divides programs into units, which the programs share.
type cutter struct {
	spec    backend.Spec
	layouts layouts
	units   map[string]*unit // by key
	// perOp makes every op a unit of its own and keeps all temps in the arena, for
	// observers.
	perOp bool
}

func newCutter(s backend.Spec, perOp bool, programs ...*backend.Program) *cutter {
	return &cutter{spec: s, layouts: layoutsOf(s, programs...), units: map[string]*unit{}, perOp: perOp}
}

// cut divides a lowered program into units. For ops without kernels it returns
// backend.ErrUnsupported.
func (c *cutter) cut(p *backend.Program) (*schedule, error) {
	nodes := p.Nodes()
	s := &schedule{program: p, ranges: unitRanges(nodes, c.blocks()), arena: map[*backend.Tensor]bool{}}
	c.findCrossing(s)
	for i := 0; i < len(nodes); i = s.ranges[i].end + 1 {
		part := nodes[i : s.ranges[i].end+1]
		next := step{node: part[0]}
		if op := part[0].Op; rowOf(op).collective {
			next.collective = op
		}
		var err error
		if next.unit, next.sections, err = c.build(s, part); err != nil {
			return nil, err
		}
		s.steps = append(s.steps, next)
	}
	return s, nil
}

// build returns the unit of some nodes, an existing one if it is equal, and the regions of
// its sections. It returns a nil unit for a collective that has only transfers.
func (c *cutter) build(s *schedule, nodes []*backend.Node) (*unit, []region, error) {
	b := newBuilder(c.spec, func(root *backend.Tensor) (layout, bool) {
		return c.layouts.of(root), root.Class != backend.Temp || s.arena[root]
	})
	for _, n := range nodes {
		b.op = n
		err := b.build(n.Op)
		if err == nil {
			err = b.err
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if len(b.graph.Nodes) == 0 {
		return nil, nil, nil
	}
	graph, sections, err := b.finish()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", nodes[0].Path(), err)
	}
	u := &unit{key: graph.Key(), graph: graph, name: cmp.Or(nodes[0].Block, nodes[0].Path())}
	if known := c.units[u.key]; known != nil {
		return known, sections, nil
	}
	u.workspace = workspaceOf(graph)
	c.units[u.key] = u
	return u, sections, nil
}

// findCrossing finds the temps that must be in the arena: those that several units touch,
// and those with views, which need addresses.
func (c *cutter) findCrossing(s *schedule) {
	home := map[*backend.Tensor]int{} // the unit's first node
	for i, n := range s.program.Nodes() {
		for _, o := range n.Operands() {
			root := o.Tensor.Root()
			if root.Class != backend.Temp {
				continue
			}
			first, known := home[root]
			if !known {
				home[root] = s.ranges[i].first
			}
			if c.perOp || o.Tensor != root || known && first != s.ranges[i].first || rowOf(n.Op).collective {
				s.arena[root] = true
			}
		}
	}
}

// blocks returns the number of blocks that a unit may have; 0 makes every op a unit.
func (c *cutter) blocks() int {
	if c.perOp {
		return 0
	}
	return max(1, own(c.spec).unit)
}

// unitRanges divides nodes into units: the nodes of one or several consecutive blocks;
// outside of blocks, nodes that pass whole temps to each other, such as a chunk of the
// logits. Unconnected nodes are separate, so that more units are equal: the casts of
// equal weights share one recipe.
func unitRanges(nodes []*backend.Node, blocks int) []nodeRange {
	list := make([]nodeRange, len(nodes))
	written := map[*backend.Tensor]bool{} // by the current unit
	first, left := 0, blocks              // blocks that the current unit may still take
	for i, n := range nodes {
		if i > 0 {
			p := nodes[i-1]
			together := blocks > 0 && !rowOf(n.Op).ownUnit && !rowOf(p.Op).ownUnit
			if n.Block != p.Block {
				left--
				together = together && n.Block != "" && p.Block != "" && left > 0
			}
			if !together || n.Block == "" && !readsAny(n, written) {
				first, left = i, blocks
				clear(written)
			}
		}
		for _, o := range n.Operands() {
			if o.Access != backend.In && o.Tensor.Class == backend.Temp && o.Tensor.Base == nil {
				written[o.Tensor] = true
			}
		}
		list[i] = nodeRange{first, i}
		for j := first; j < i; j++ {
			list[j].end = i
		}
	}
	return list
}

func readsAny(n *backend.Node, written map[*backend.Tensor]bool) bool {
	for _, o := range n.Operands() {
		if o.Access != backend.Out && written[o.Tensor] {
			return true
		}
	}
	return false
}

// planOf places the temps of schedules that outlive a unit in one arena.
func (c *cutter) planOf(schedules ...*schedule) *backend.Plan {
	of := map[*backend.Node]nodeRange{}
	arena := map[*backend.Tensor]bool{}
	var programs []*backend.Program
	for _, s := range schedules {
		programs = append(programs, s.program)
		for i, n := range s.program.Nodes() {
			of[n] = s.ranges[i]
		}
		for t := range s.arena {
			arena[t] = true
		}
	}
	unit := func(nodes []*backend.Node, i int) (first, end int) { return of[nodes[i]].first, of[nodes[i]].end }
	bytes := func(t *backend.Tensor) int64 {
		if !arena[t] {
			return 0
		}
		return c.layouts.of(t).Bytes()
	}
	return backend.MakePlanOf(own(c.spec).align, unit, bytes, programs...)
}

// workspaceOf returns the peak size of the tensors that the compiler places, if the nodes
// ran in the order of the list. The compiler needs less where it fuses and slices, and
// may use more to overlap.
func workspaceOf(g *libsynapse.Graph) int64 {
	last := make([]int, len(g.Tensors))
	for i, n := range g.Nodes {
		for _, list := range [][]int{n.In, n.Out} {
			for _, k := range list {
				if k >= 0 {
					last[k] = i
				}
			}
		}
	}
	var now, peak int64
	free := make([]int64, len(g.Nodes)) // bytes freed after each node
	for i, n := range g.Nodes {
		for _, k := range n.Out {
			if k >= 0 && g.Tensors[k].Section == libsynapse.NoSection {
				bytes := int64(g.Tensors[k].Bytes())
				now += bytes
				free[last[k]] += bytes
			}
		}
		peak = max(peak, now)
		now -= free[i]
	}
	return peak
}
