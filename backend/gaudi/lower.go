package gaudi

import "octet/backend"

// lower rewrites programs into the ops that are launched, without changing a bit of their
// results. An op on a list of tensors becomes one op per tensor: each is a unit of its
// own, and tensors of equal shapes share a recipe. An elementwise op on tensors that are
// too large for the device becomes several.
func lower(_ backend.Spec, programs []*backend.Program) ([]*backend.Program, error) {
	return lowerWithin(maxBytes, programs)
}

// lowerWithin is lower for a limit of bytes per tensor.
func lowerWithin(limit int, programs []*backend.Program) ([]*backend.Program, error) {
	lowered := make([]*backend.Program, len(programs))
	for i, p := range programs {
		q, err := backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
			l := lowering{r, n, limit}
			if lower := rowOf(n.Op).lower; lower != nil {
				lower(l, n.Op)
			} else {
				l.add(n.Op)
			}
		})
		if err != nil {
			return nil, err
		}
		lowered[i] = q
	}
	return lowered, nil
}

// lowering replaces one node.
type lowering struct {
	rewriter *backend.Rewriter
	node     *backend.Node
	limit    int // maximum bytes of a tensor
}

// add adds an op with the node's scope, block, phase and queue.
func (l lowering) add(op backend.Op) { l.rewriter.Add(l.node, op) }

// outline returns the launches and the device memory of lowered programs. The workspace
// of the largest unit is an estimate: the compiler decides.
func outline(s backend.Spec, programs []*backend.Program) (o backend.Outline, err error) {
	c := newCutter(s, false, programs...)
	var schedules []*schedule
	for _, p := range programs {
		schedule, err := c.cut(p)
		if err != nil {
			return o, err
		}
		schedules = append(schedules, schedule)
		var l backend.Launches
		distinct := map[*unit]bool{}
		for _, step := range schedule.steps {
			if step.unit != nil {
				l.Launches++
				distinct[step.unit] = true
			}
		}
		l.Compiled = len(distinct)
		o.Launches = append(o.Launches, l)
	}
	for _, unit := range c.units {
		o.Temps = max(o.Temps, unit.workspace)
	}
	o.Temps += c.planOf(schedules...).Bytes
	return o, nil
}
