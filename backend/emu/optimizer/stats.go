package optimizer

import (
	"math"

	"octet/backend/emu/pool"
	"octet/fp8"
)

// Stats computes backend.UpdateStats of the update that Rule describes, whose Control is unused.
type Stats struct {
	Rule                        AdamW
	MeanSquares, Largest, ZeroV []float32 // of each parameter
	Parts                       int

	correction2 float64   // 1 − β2ᵗ of this run
	squares     []float64 // of each span
	largest     []float32
	zeroV       []int // number of elements
}

// Bind returns a function that computes the statistics and allocates nothing.
func (s Stats) Bind(p *pool.Pool) func() {
	a := &s.Rule
	a.bind(p)
	s.squares, s.largest, s.zeroV = make([]float64, len(a.all)), make([]float32, len(a.all)), make([]int, len(a.all))
	visit := eachSpan(p, len(a.all), s.visit)
	return func() {
		clear(s.MeanSquares)
		clear(s.Largest)
		clear(s.ZeroV)
		if a.Skip[0] != 0 {
			return
		}
		s.correction2 = 1 - math.Pow(float64(a.Beta2), float64(a.Step[0]))
		for i := range a.Params {
			a.Params[i].rule = a.ruleFor(1, a.Coef[0], a.Step[0])
		}
		visit()
		s.reduce()
	}
}

// visit computes the statistics of a span.
func (s *Stats) visit(worker, i int) {
	a := &s.Rule
	at := a.all[i]
	x, grad, rule := a.load(worker, &at, false)
	s.zeroV[i] = zeroV(x[1], x[2])
	rule.Update(x[0], x[1], x[2], grad)
	least, sum, top := float64(a.Eps)*float64(a.Eps), 0.0, float32(0)
	for j, m := range x[1] {
		v, g := x[2][j], float64(rule.Coef)*float64(grad[j])
		sum += g * g / max(float64(v)/s.correction2, least)
		root := float32(math.Sqrt(float64(v)))
		update := rule.Rate * (m / (float32(root*rule.RootScale) + rule.Epsilon))
		top = fp8.MaxAmax(top, max(update, -update))
	}
	s.squares[i], s.largest[i] = sum, top
}

// zeroV returns the number of elements with v = 0 and m ≠ 0.
func zeroV(m, v []float32) (n int) {
	for j, x := range v {
		if x == 0 && m[j] != 0 {
			n++
		}
	}
	return n
}

// reduce adds the spans' results in their order.
func (s *Stats) reduce() {
	a := &s.Rule
	for i := 0; i < len(a.all); {
		tensor, sum, zeros := a.all[i].tensor, 0.0, 0
		for ; i < len(a.all) && a.all[i].tensor == tensor; i++ {
			sum += s.squares[i]
			zeros += s.zeroV[i]
			s.Largest[tensor] = fp8.MaxAmax(s.Largest[tensor], s.largest[i])
		}
		grad := &a.Params[tensor].Grad
		whole := float64(grad.Rows * grad.Cols * s.Parts)
		s.MeanSquares[tensor], s.ZeroV[tensor] = float32(sum/whole), float32(float64(zeros)/whole)
	}
}
