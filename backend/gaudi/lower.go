package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

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
			if !byRows(r, n, limit) {
				split(r, n)
			}
		})
		if err != nil {
			return nil, err
		}
		lowered[i] = q
	}
	return lowered, nil
}

func split(r *backend.Rewriter, n *backend.Node) {
	switch o := n.Op.(type) {
	case *backend.AdamW:
		for i, t := range o.Master {
			one := *o
			one.Grad, one.Master, one.M1, one.M2 = o.Grad[i:i+1], o.Master[i:i+1], o.M1[i:i+1], o.M2[i:i+1]
			one.MasterScale, one.M1Scale, one.M2Scale = o.MasterScale[i:i+1], o.M1Scale[i:i+1], o.M2Scale[i:i+1]
			if o.AmaxOnly || o.AmaxGiven {
				one.Amaxes = o.Amaxes.Slice(t.Name+".amaxes", 3*i, 3)
			} else {
				one.Amaxes = r.Temp(t.Name+".amaxes", fp8.F32, 3)
			}
			r.Add(n, &one)
		}
	case *backend.SumSquares:
		if len(o.X) == 1 {
			r.Add(n, o)
			return
		}
		parts := r.Temp(o.Out.Name+".parts", fp8.F32, len(o.X))
		for i, x := range o.X {
			r.Add(n, &backend.SumSquares{X: []*backend.Tensor{x}, Out: parts.Slice(fmt.Sprintf("%s.%d", parts.Name, i), i, 1)})
		}
		r.Add(n, &backend.Sum{X: parts, Out: o.Out})
	default:
		r.Add(n, n.Op)
	}
}

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
