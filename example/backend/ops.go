package small

import (
	"math"
	"slices"

	"octet/backend"
)

// ops holds the function that runs each op. An op without a row is refused.
var ops backend.Table[func(memory, backend.Op) error]

// implement adds the row of an op.
func implement[O backend.Op](run func(memory, O) error) struct{} {
	var op O
	return ops.Add(op, func(m memory, op backend.Op) error { return run(m, op.(O)) })
}

var (
	_ = implement(fill)
	_ = implement(sum)
	_ = implement(amax)
)

func fill(m memory, o *backend.Fill) error {
	return m.store(o.Out, slices.Repeat([]float64{float64(o.Value)}, o.Out.Elems()))
}

func sum(m memory, o *backend.Sum) error {
	x, err := backend.Values(m, o.X)
	if err != nil {
		return err
	}
	out := []float64{0}
	if o.Accumulate {
		if out, err = backend.Values(m, o.Out); err != nil {
			return err
		}
	}
	for _, v := range x {
		out[0] += v
	}
	return m.store(o.Out, out)
}

func amax(m memory, o *backend.Amax) error {
	x, err := backend.Values(m, o.X)
	if err != nil {
		return err
	}
	largest := make([]float64, o.Out.Elems()) // one, or one for each column
	for i, v := range x {
		c := i % o.X.Cols() % len(largest)
		largest[c] = max(largest[c], math.Abs(v)) // NaN if either is NaN
	}
	return m.store(o.Out, largest)
}
