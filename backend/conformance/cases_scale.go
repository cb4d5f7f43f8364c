package conformance

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) scales() {
	s.updateScale()
	s.factors()
	s.pushHistory()
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
		s.add(func(b *fixture) {
			b.p.Add(&backend.Fill{Out: b.result("out", d, exactly, 5, 7), Value: 1.7})
			b.p.Add(&backend.Fill{Out: b.gapped("view", d, 5, 7), Value: -3})
			b.p.Add(&backend.Fill{Out: b.result("zero", d, exactly, 33)})
		}, "fill/%s", d)
	}
}

// flag declares an optional I32 flag. kind: 0 absent, 1 not set, 2 set.
func (b *fixture) flag(name string, kind int) *backend.Tensor {
	if kind == 0 {
		return nil
	}
	return b.ints(name, kind-1)
}

func (s *suite) updateScale() {
	const n = 12
	for _, window := range []int{1, 3} {
		for _, pow2 := range []bool{false, true} {
			for keep := range 5 { // no Keep; Keep with Skip absent, not set, set; no Keep, Outer
				if keep == 4 && pow2 {
					continue
				}
				s.add(func(b *fixture) {
					history := b.positive("history", window, n)
					for row := range window { // columns of equal amaxes, most of which give no scale or an extreme one
						copy(b.values[history][row*n+2:], []float64{0, inf, nan, 1e-42, math.MaxFloat32, 448})
					}
					b.values[history][0] = inf // one infinity in a window
					op := &backend.UpdateScale{
						History: history, Seen: b.positive("seen", n),
						Scale: b.positive("scale", n), ScaleInv: b.positive("scale_inv", n),
						Limit: 448, Pow2: pow2, Keep: keep > 0 && keep < 4, Outer: keep == 4,
					}
					if op.Keep {
						op.Skip = b.flag("skip", keep-1)
					}
					if keep == 1 {
						op.Seen = nil
					}
					b.p.Add(op)
				}, "updatescale/window%d/pow2-%v/keep%d", window, pow2, keep)
			}
		}
	}
}

// factors adds scales with a factor, and fixed ones: of amaxes that give no scale or an
// extreme one, too.
func (s *suite) factors() {
	amaxes := []float64{3, 0, inf, nan, 1e-42, math.MaxFloat32, 448, 1}
	for _, pow2 := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			s.add(func(b *fixture) {
				history := b.given("history", fp8.F32, amaxes, 1, len(amaxes))
				factor := b.given("factor", fp8.F32, []float64{0.7, 0.5, 0.5, 0.5, 0.125, 1. / 8, 0.99, 1e-30}, len(amaxes))
				b.p.Add(&backend.UpdateScale{
					History: history, Factor: factor, Scale: b.positive("scale", len(amaxes)), ScaleInv: b.positive("scale_inv", len(amaxes)),
					Limit: 448, Pow2: pow2, Keep: keep,
				})
			}, "updatescale/factor/pow2-%v/keep-%v", pow2, keep)
		}
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.UpdateScale{
			History: b.given("history", fp8.F32, amaxes, 1, len(amaxes)), Limit: 8, Fixed: true,
			Scale: b.positive("scale", len(amaxes)), ScaleInv: b.positive("scale_inv", len(amaxes)),
		})
	}, "updatescale/fixed")
	for skip := range 3 {
		s.add(func(b *fixture) {
			atMax, mu := []float64{0, 3, 4, 1e6, 0, 5}, []float64{0.125, 0.125, 0.125, 1, 0.9999, backend.MinMu}
			b.p.Add(&backend.StepMu{
				AtMax: b.given("at_max", fp8.F32, atMax, len(atMax)), Skip: b.flag("skip", skip),
				Mu: b.given("mu", fp8.F32, mu, len(mu)), Limit: 3,
			})
		}, "stepmu/skip%d", skip)
	}
}

func (s *suite) pushHistory() {
	for _, window := range []int{1, 2, 5} {
		for skip := range 3 {
			s.add(func(b *fixture) {
				value := b.positive("value", 9)
				b.values[value][4] = nan
				b.p.Add(&backend.PushHistory{Value: value, Skip: b.flag("skip", skip), History: b.positive("history", window, 9)})
			}, "pushhistory/window%d/skip%d", window, skip)
		}
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.PushHistory{Value: b.positive("values", 40).Slice("value", 11, 6), History: b.gapped("history", fp8.F32, 4, 6)})
	}, "pushhistory/views")
}
