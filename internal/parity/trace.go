package parity

import (
	"math"

	"octet/backend"
)

// trace compares the tensors that the ops of two paths write. It keeps those of the first path, in FP32,
// until the second one has written them.
type trace struct {
	list  []traced
	later map[string][]int // by tensor: indexes in list that the second path has not written yet
}

type traced struct {
	Difference
	values   []float32 // nil once they are compared
	compared bool
}

// each returns an observer that calls visit with every tensor that an op writes, but for codes: they differ
// by their scales, and the op that reads them writes values again.
func each(visit func(op, tensor string, values []float64)) backend.Observer {
	return func(n *backend.Node, m backend.Memory) error {
		for _, o := range n.Operands() {
			if o.Access == backend.In || o.Tensor.DType.IsQuantized() || !o.Tensor.DType.IsFloat() {
				continue
			}
			values, err := backend.Values(m, o.Tensor)
			if err != nil {
				return err
			}
			visit(n.Path(), o.Tensor.Name, values)
		}
		return nil
	}
}

// record adds a tensor of the first path.
func (t *trace) record(op, tensor string, values []float64) {
	if t.later == nil {
		t.later = map[string][]int{}
	}
	x := traced{Difference: Difference{Op: op, Tensor: tensor}, values: make([]float32, len(values))}
	for i, v := range values {
		x.values[i] = float32(v)
	}
	t.later[tensor] = append(t.later[tensor], len(t.list))
	t.list = append(t.list, x)
}

// compare compares a tensor of the second path with the first of this name that is not compared yet.
func (t *trace) compare(_, tensor string, values []float64) {
	queue := t.later[tensor]
	if len(queue) == 0 {
		return
	}
	x := &t.list[queue[0]]
	t.later[tensor] = queue[1:]
	if len(x.values) == len(values) {
		norm, sum := 0.0, 0.0
		for i, v := range x.values {
			a, b := float64(v), float64(float32(values[i]))
			norm += a * a
			sum += (b - a) * (b - a)
		}
		if x.compared = true; sum > 0 {
			x.Error = math.Sqrt(sum / norm)
		}
	}
	x.values = nil
}

// differences returns those of the tensors that both paths have written, in the order of the first.
func (t *trace) differences() (list []Difference) {
	for _, x := range t.list {
		if x.compared {
			list = append(list, x.Difference)
		}
	}
	return list
}
