package conformance

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

// formatsBesidesFP8 returns formats of up to eight bits besides E4M3 and E5M2, with two
// elements in a byte first: with constants, and from the grammar with every Special.
func formatsBesidesFP8() []fp8.DType {
	list := []fp8.DType{fp8.E2M1, fp8.INT4, fp8.E2M3, fp8.E3M2, fp8.INT8}
	for _, name := range []string{"e1m2", "e2m4", "e3m4", "e2m5fn", "e4m3fnuz", "e5m2fnuz", "e5m2p3109", "e4m3b11", "e6m1"} {
		d, err := fp8.ParseDType(name)
		if err != nil {
			panic(err)
		}
		list = append(list, d)
	}
	return list
}

// quantizeToFormats adds casts to formats besides FP8, per tensor, with every rounding, and
// with scales per block in every scale format.
func (s *suite) quantizeToFormats() {
	const cols = 34
	for _, out := range formatsBesidesFP8() {
		for i, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for _, transpose := range []bool{false, true} {
				in, name := []fp8.DType{fp8.F32, fp8.BF16}[i], "quantize/formats/%s/%s"
				if transpose {
					name += "/transposed"
				}
				s.add(func(b *fixture) {
					values := append(b.specials(out), inf, -inf, nan)
					rows := (len(values)/cols + 2) &^ 1
					values = append(values, b.draw(rows*cols-len(values), 1)...)
					shape := []int{rows, cols}
					if transpose {
						shape = []int{cols, rows}
					}
					cast := backend.Cast{
						Out: b.result("out", out, exactly, shape...), Amax: b.scalar("amax", 1), Scale: b.scalar("scale", 1),
						Rounding: rounding, Transpose: transpose,
					}
					if rounding == fp8.Stochastic {
						cast.Control, b.random = b.control(), true
					}
					b.p.Add(&backend.Quantize{X: b.given("x", in, values, rows, cols), Out: []backend.Cast{cast}})
				}, name, out, rounding)
			}
		}
	}
	floor := scaleFormat{"e8m0-floor", fp8.E8M0, fp8.RoundDown}
	quotient := scaleFormat{"e4m3", fp8.E4M3, fp8.Quotient}
	for _, d := range append(formatsBesidesFP8(), fp8.E4M3) {
		for _, block := range []backend.ScaleBlock{{Rows: 1, Cols: 16}, {Rows: 16, Cols: 16}, {Rows: 32, Cols: 1}} {
			for _, f := range append([]scaleFormat{floor, quotient}, scaleFormats...) {
				s.add(func(b *fixture) {
					b.p.Add(&backend.Quantize{
						X: b.uneven(fp8.BF16, 35, 82), Out: []backend.Cast{b.blockCast("out", d, block, f, 35, 82)},
					})
				}, "quantize/formats/%s/%s/%s", d, block, f.name)
			}
		}
	}
	s.quantizeWithOuter(quotient)
}

// quantizeWithOuter adds casts with a scale per block and one for the tensor, as in NVFP4.
func (s *suite) quantizeWithOuter(f scaleFormat) {
	block := backend.ScaleBlock{Rows: 1, Cols: 16}
	for _, data := range []struct {
		name string
		edit func(x []float64)
	}{
		{"data", func([]float64) {}},
		{"zeros", func(x []float64) { clear(x[:82]) }},
		{"tiny", func(x []float64) { x[0] = 1e6 }}, // other blocks get a scale of 0
		{"nan", func(x []float64) { x[3] = nan }},
	} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			s.add(func(b *fixture) {
				x := b.normal("x", fp8.F32, 34, 82)
				data.edit(b.values[x])
				amax, scale, inv := b.scalar("amax", 0), b.result("scale", fp8.F32, exactly, 1), b.result("outer", fp8.F32, exactly, 1)
				b.p.Add(&backend.Amax{X: x, Out: amax})
				b.p.Add(&backend.UpdateScale{History: amax, Scale: scale, ScaleInv: inv, Limit: 448 * 6, Outer: true})
				c := b.blockCast("out", fp8.E2M1, block, f, 34, 82)
				c.Scale, c.Out.Outer, c.Rounding = scale, inv, rounding
				if rounding == fp8.Stochastic {
					c.Control, b.random = b.control(), true
				}
				b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{c}})
			}, "quantize/outer/%s/%s", data.name, rounding)
		}
	}
}

// matMulOfIntegers adds GEMMs of integer formats, whose sums are exact. Large values of one
// sign make sums that FP32 rounds.
func (s *suite) matMulOfIntegers() {
	for _, pair := range [][2]fp8.DType{{fp8.INT8, fp8.INT8}, {fp8.INT8, fp8.INT4}, {fp8.INT4, fp8.INT4}} {
		for _, shape := range [][3]int{{1, 1, 1}, {17, 35, 33}, {6, 18, 1100}} {
			for trans := range 4 {
				ta, tb := trans&1 != 0, trans&2 != 0
				m, n, k := shape[0], shape[1], shape[2]
				if pair[1] == fp8.INT4 { // a byte holds two columns
					m, n, k = m+m%2, n+n%2, k+k%2
				}
				s.add(func(b *fixture) {
					op := b.integers(pair, m, n, k, ta, tb)
					op.Out = b.result("out", fp8.F32, exactly, m, n)
					b.p.Add(op)
				}, "matmul/integers/%s-%s/%dx%dx%d/ta=%t/tb=%t", pair[0], pair[1], m, n, k, ta, tb)
			}
		}
		s.add(func(b *fixture) {
			const m, n, k = 9, 20, 258
			op := b.integers(pair, m, n, k, false, true)
			b.blocked(op.A, backend.PerRow, fp8.F32)
			b.blocked(op.B, backend.PerRow, fp8.F32)
			op.ColScale = b.normal("col", fp8.F32, n)
			op.Out = b.result("out", fp8.F32, elementwise, m, n)
			b.p.Add(op)
		}, "matmul/integers/%s-%s/rows", pair[0], pair[1])
		for _, run := range []int{6, 7, 128} {
			s.add(func(b *fixture) {
				const m, n, k = 9, 20, 300
				op := b.integers(pair, m, n, k, false, true)
				b.blocked(op.A, backend.ScaleBlock{Rows: 1, Cols: run}, fp8.F32)
				b.blocked(op.B, backend.ScaleBlock{Rows: 1, Cols: run}, fp8.F32)
				op.Out = b.result("out", fp8.F32, summed(k/run+1), m, n)
				b.p.Add(op)
			}, "matmul/integers/%s-%s/1x%d", pair[0], pair[1], run)
		}
	}
}

// integers is operands with integers of the formats' whole range, mostly positive, and scales
// of 1. For a device whose sums could overflow they are so small that no sum does.
func (b *fixture) integers(pair [2]fp8.DType, m, n, k int, ta, tb bool) *backend.MatMul {
	op := b.operands(pair[0], pair[1], m, n, k, ta, tb)
	one := b.vars.Tensor(backend.Input, "one", fp8.F32, 1)
	one.Value, b.values[one] = 1, []float64{1}
	for _, x := range []*backend.Tensor{op.A, op.B} {
		x.Scale = one
		largest := float64(x.DType.Max())
		if bits := b.spec.IntegerBits; bits > 0 {
			largest = min(largest, math.Floor(math.Sqrt((math.Ldexp(1, bits-1)-1)/float64(k))))
		}
		for i, v := range b.values[x] {
			b.values[x][i] = max(-largest, min(largest, math.Round(largest*(0.7+v/2))))
		}
	}
	return op
}
