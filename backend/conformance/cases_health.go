package conformance

import (
	"octet/backend"
	"octet/fp8"
)

func (s *suite) health() {
	for _, codes := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.add(func(b *bench) {
				const rows, cols = 17, 133
				x := b.normal("x", in, rows, cols)
				scale := float64(codes.Max()) / 2 // clips what is beyond two sigma
				for i := range b.values[x] {
					if i%5 == 0 {
						b.values[x][i] *= 1e-9 // too small for any code
					}
				}
				copy(b.values[x][20:], []float64{nan, inf, -inf, 0, 2, -2})
				q := b.p.Temp("codes", codes, rows, cols)
				q.Scale = b.scalar("scale_inv", 1/scale)
				b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: q, Scale: b.scalar("scale", scale)}}})
				b.p.Add(&backend.CastHealth{X: x, Codes: q, Out: b.result("shares", fp8.F32, exactly, 3)})
			}, "casthealth/%s/%s", codes, in)
		}
	}
	for _, shape := range [][2]int{{1, 1}, {5, 33}, {70, 256}} {
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.add(func(b *bench) {
				rows, cols := shape[0], shape[1]
				x, y := b.normal("a", d, rows, cols), b.normal("b", d, rows, cols)
				copy(b.values[y][:cols], b.values[x]) // aligned
				if rows > 2 {
					clear(b.values[x][cols : 2*cols]) // nothing to align
				}
				out := b.result("out", fp8.F32, elementwise, 3, rows)
				b.p.Add(&backend.RowCosine{A: x, B: y, Out: out})
			}, "rowcosine/%dx%d/%s", shape[0], shape[1], d)
		}
	}
}
