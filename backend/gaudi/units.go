package gaudi

import (
	"cmp"
	"fmt"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// A unit is what is compiled and launched as one: a recipe. Units with equal
// keys are one.
type unit struct {
	key       string
	graph     *libsynapse.Graph
	name      string // of the first nodes that it was made for
	workspace int64  // an estimate: what the compiler's own tensors take, in the order of the list
}

// A step is one launch of a unit, with the regions that its sections lie in, or
// a collective, which may have a unit that runs before it.
type step struct {
	node       *backend.Node // the first of the unit's, or the collective's
	unit       *unit
	sections   []region
	collective backend.Op
}

// A schedule is a program as the device runs it.
type schedule struct {
	program *backend.Program
	steps   []step
	stretch []stretch                // by node: the unit that it is in
	arena   map[*backend.Tensor]bool // temps that lie in the arena, since they outlive a unit
}

// stretch is a closed range of nodes.
type stretch struct{ first, end int }

// layouts are those of the roots of a set of programs.
type layouts map[*backend.Tensor]layout

// layoutsOf lays out every root that the programs touch: all programs that run
// on one device together, since they share the variables.
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
		l[root] = layoutOf(root, list, s.Align)
	}
	return l
}

// of is a root's layout; one that no program touches lies as it is.
func (l layouts) of(root *backend.Tensor) layout {
	if known, ok := l[root]; ok {
		return known
	}
	return layoutOf(root, nil, 1)
}

// A cutter turns programs into units, which they share.
type cutter struct {
	spec    backend.Spec
	layouts layouts
	units   map[string]*unit // by key
	// perOp makes every op a unit of its own and keeps all temps in the arena:
	// what an observer looks at.
	perOp bool
}

func newCutter(s backend.Spec, perOp bool, programs ...*backend.Program) *cutter {
	return &cutter{spec: s, layouts: layoutsOf(s, programs...), units: map[string]*unit{}, perOp: perOp}
}

// cut makes a program, lowered already, into units. It refuses what has no kernels
// here, with backend.ErrUnsupported.
func (c *cutter) cut(p *backend.Program) (*schedule, error) {
	nodes := p.Nodes()
	s := &schedule{program: p, stretch: stretches(nodes, c.blocks()), arena: map[*backend.Tensor]bool{}}
	c.findCrossing(s)
	for i := 0; i < len(nodes); i = s.stretch[i].end + 1 {
		part := nodes[i : s.stretch[i].end+1]
		next := step{node: part[0]}
		if op := part[0].Op; isCollective(op) {
			next.collective = op
		}
		if next.collective == nil || needsMagnitudes(next.collective) {
			var err error
			if next.unit, next.sections, err = c.build(s, part); err != nil {
				return nil, err
			}
		}
		s.steps = append(s.steps, next)
	}
	return s, nil
}

// build makes the unit of some nodes, or finds the one that is equal.
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

// findCrossing finds the temps that must lie in the arena: what several units
// touch, and what is touched through views, which are places.
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
				home[root] = s.stretch[i].first
			}
			if c.perOp || o.Tensor != root || known && first != s.stretch[i].first || isCollective(n.Op) {
				s.arena[root] = true
			}
		}
	}
}

// blocks is how many a unit may have; 0 where every op is one.
func (c *cutter) blocks() int {
	if c.perOp {
		return 0
	}
	return max(1, c.spec.Unit)
}

// stretches divides nodes into units: the nodes of a block, or of some in a row, and
// outside of blocks such as hand each other whole temps, a chunk of the logits for
// example. What is not connected is apart, for the sake of equal units: the casts of
// equal weights are one recipe.
func stretches(nodes []*backend.Node, blocks int) []stretch {
	list := make([]stretch, len(nodes))
	written := map[*backend.Tensor]bool{} // by the current unit
	first, left := 0, blocks              // how many blocks the current unit may have still
	for i, n := range nodes {
		if i > 0 {
			p := nodes[i-1]
			together := blocks > 0 && !byItself(n.Op) && !byItself(p.Op)
			if n.Block != p.Block {
				left--
				together = together && n.Block != "" && p.Block != "" && left > 0
			}
			if !together || n.Block == "" && !readsOne(n, written) {
				first, left = i, blocks
				clear(written)
			}
		}
		for _, o := range n.Operands() {
			if o.Access != backend.In && o.Tensor.Class == backend.Temp && o.Tensor.Base == nil {
				written[o.Tensor] = true
			}
		}
		list[i] = stretch{first, i}
		for j := first; j < i; j++ {
			list[j].end = i
		}
	}
	return list
}

func readsOne(n *backend.Node, written map[*backend.Tensor]bool) bool {
	for _, o := range n.Operands() {
		if o.Access != backend.Out && written[o.Tensor] {
			return true
		}
	}
	return false
}

// byItself says which ops are never part of a larger unit: collectives, and what
// an update has many of. These read temps that are small and belong to all.
func byItself(op backend.Op) bool {
	switch op.(type) {
	case *backend.AdamW, *backend.SumSquares:
		return true
	default:
		return isCollective(op)
	}
}

func isCollective(op backend.Op) bool {
	switch op.(type) {
	case *backend.AllReduce, *backend.ReduceScatter, *backend.AllGather, *backend.Send, *backend.Recv:
		return true
	default:
		return false
	}
}

// planOf places the temps of some schedules that outlive a unit in one arena.
func (c *cutter) planOf(schedules ...*schedule) *backend.Plan {
	of := map[*backend.Node]stretch{}
	arena := map[*backend.Tensor]bool{}
	var programs []*backend.Program
	for _, s := range schedules {
		programs = append(programs, s.program)
		for i, n := range s.program.Nodes() {
			of[n] = s.stretch[i]
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
	return backend.MakePlanOf(c.spec.Align, unit, bytes, programs...)
}

// workspaceOf is the most that tensors which the compiler places take at once,
// if every node of the graph ran in the order of the list. The compiler does
// with less where it fuses and slices, and may take more to overlap.
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
	var now, most int64
	free := make([]int64, len(g.Nodes)) // bytes that end with a node
	for i, n := range g.Nodes {
		for _, k := range n.Out {
			if k >= 0 && g.Tensors[k].Section == libsynapse.NoSection {
				bytes := int64(g.Tensors[k].Bytes())
				now += bytes
				free[last[k]] += bytes
			}
		}
		most = max(most, now)
		now -= free[i]
	}
	return most
}
