package conformance

import (
	"octet/backend"
	"octet/fp8"
)

// linearUpdate adds updates of a momentum and of a master weight.
func (s *suite) linearUpdate() {
	for _, d := range linearFormats {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for _, pow2 := range []bool{false, true} {
				s.add(func(b *fixture) {
					op := b.newMomentum(d, codesElems)
					op.Rounding, op.Pow2 = rounding, pow2
					b.random = rounding == fp8.Stochastic
					b.p.Add(op)
				}, "linearupdate/momentum/%s/%s/pow2-%v", d, rounding, pow2)
				if !d.IsQuantized() {
					continue
				}
				for _, block := range []int{24, 2048} {
					s.add(func(b *fixture) {
						op := b.newMomentum(d, 2*4501)
						op.Rounding, op.Pow2 = rounding, pow2
						b.random = rounding == fp8.Stochastic
						rows := 1
						if block == 24 {
							rows = 2
						}
						op.State.Shape, op.State.LD = []int{rows, op.State.Elems() / rows}, op.State.Elems()/rows
						op.State.Block = backend.ScaleBlock{Rows: 1, Cols: block}
						high, wide := op.State.Block.ScaleShape(op.State.Rows(), op.State.Cols())
						op.StateScale = b.positive("scales_inv", high, wide)
						b.tolerance[op.StateScale] = elementwise
						op.State.Scale = op.StateScale
						b.p.Add(op)
					}, "linearupdate/momentum/%s/%s/pow2-%v/block%d", d, rounding, pow2, block)
				}
			}
		}
		s.add(func(b *fixture) {
			op := b.newMomentum(d, 300)
			b.values[op.Skip][0], b.values[op.X][5] = 1, nan
			b.p.Add(op)
		}, "linearupdate/momentum/%s/skip", d)
		s.add(func(b *fixture) {
			op := b.newMomentum(d, 300)
			clear(b.values[op.X])
			clear(b.values[op.State])
			b.p.Add(op)
		}, "linearupdate/momentum/%s/zero", d)
		if d.IsQuantized() {
			continue
		}
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.add(func(b *fixture) {
				op := b.newMomentum(d, 2049)
				op.X = b.normal("direction", in, 3, 683)
				op.Keep, op.Decay, op.Gain, op.Rate, op.Coef, op.Next = 1, 0.1, 0, 2, nil, nil
				b.p.Add(op)
			}, "linearupdate/weight/%s/%s", d, in)
		}
	}
}

// newMomentum declares an update of a momentum of n elements, of one row.
func (b *fixture) newMomentum(d fp8.DType, n int) *backend.LinearUpdate {
	b.step.LR = 0.05
	t := b.given("m", d, b.draw(n, 16), n)
	if d == fp8.F16 {
		t.Scale = b.scalar("m.scale_inv", 0.07)
	}
	b.tolerance[t] = elementwise
	if t.Scale != nil {
		b.tolerance[t.Scale] = elementwise
	}
	return &backend.LinearUpdate{
		X: b.outliers(b.normal("x", fp8.F32, n), 20), State: t, StateScale: t.Scale, Coef: b.scalar("coef", 0.75),
		Control: b.control(), Skip: b.ints("skip", 0), Next: b.result("next", fp8.F32, elementwise, n),
		Keep: 0.95, Gain: 1,
	}
}
