package emu

import (
	"math"

	"octet/backend"
)

// The optimizer's ops work on lists of tensors. Their elements are cut into
// spans, a task each, by the shapes alone.

// span is a run of elements of one tensor of a list.
type span struct {
	tensor   int
	row, col int // where it begins
	n        int
}

// spanElems keeps what AdamW holds of a span in FP32 in the first-level cache.
const spanElems = 2048

// spans cuts a list of tensors. A tensor without gaps counts as one row.
func spans(list []*backend.Tensor) []span {
	var all []span
	for i, t := range list {
		rows, cols := t.Rows(), t.Cols()
		if t.Contiguous() {
			rows, cols = 1, t.Elems()
		}
		for row := range rows {
			for col := 0; col < cols; col += spanElems {
				all = append(all, span{i, row, col, min(spanElems, cols-col)})
			}
		}
	}
	return all
}

func (b *binder) sumSquares(o *backend.SumSquares) func() {
	list := make([]rows, len(o.X))
	for i, x := range o.X {
		list[i] = b.rows(x)
	}
	all, out := spans(o.X), b.f32(o.Out)
	partial := make([]float64, len(all))
	b.pool.reserve(spanElems)
	task := func(worker, task int) {
		s := &all[task]
		partial[task] = squares(list[s.tensor].piece(b.pool.scratch[worker], s.row, s.col, s.n))
	}
	return func() {
		b.pool.run(len(all), task)
		var total float64
		for _, p := range partial {
			total += p
		}
		out[0] = float32(total)
	}
}

// squares is Σ x², element i going to lane i mod 4. A square of a float32 is
// exact in float64, so that it does not matter whether it is fused.
func squares(x []float32) float64 {
	var s0, s1, s2, s3 float64
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0 += a * a
		s1 += b * b
		s2 += c * c
		s3 += d * d
	}
	for _, v := range x {
		s0 += float64(v) * float64(v)
	}
	return (s0 + s2) + (s1 + s3)
}

// stepGate computes in float64. Of a step that is skipped it records the norm
// as it is; the coefficient is then nothing that anybody uses.
func (b *binder) stepGate(o *backend.StepGate) func() {
	sumSquares, amax := b.f32(o.SumSquares), b.f32(o.Amax)
	step, skip := b.i32(o.Step), b.i32(o.Skip)
	norm, coef := b.f32(o.GradNorm), b.f32(o.Coef)
	return func() {
		root := math.Sqrt(float64(sumSquares[0]))
		norm[0], coef[0] = float32(root), 1
		if o.Clip > 0 {
			coef[0] = float32(min(1, float64(o.Clip)/(root+1e-6)))
		}
		finite := isFinite(sumSquares[0])
		for _, a := range amax {
			finite = finite && isFinite(a)
		}
		if finite {
			skip[0] = 0
			step[0]++
		} else {
			skip[0] = 1
		}
	}
}

func isFinite(x float32) bool { return x-x == 0 }
