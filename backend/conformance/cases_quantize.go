package conformance

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

var (
	nan          = math.NaN()
	inf          = math.Inf(1)
	negativeZero = math.Copysign(0, -1)
)

// specials returns difficult inputs of a cast to d, with both signs. For FP8 formats: every
// code, the midpoints between neighbours and the float32 values next to them. For wider
// formats: random magnitudes and ties. For all: zeros, subnormals, overflow.
func (b *fixture) specials(d fp8.DType) []float64 {
	magnitudes := []float32{
		0, math.SmallestNonzeroFloat32, 1e-40, 0x1p-126, math.MaxFloat32,
		d.Max(), math.Nextafter32(d.Max(), math.MaxFloat32), d.Max() * 1.03,
	}
	if d.IsQuantized() {
		for code := uint32(0); d.Float32(code) < d.Max(); code++ {
			here, next := d.Float32(code), d.Float32(code+1)
			middle := here + (next-here)/2
			magnitudes = append(magnitudes, here, middle, math.Nextafter32(middle, 0), math.Nextafter32(middle, 1e9))
		}
	} else {
		for range 150 {
			x := float32(math.Exp2(60*b.rng.Float64()-30) * (1 + b.rng.Float64()))
			bits := math.Float32bits(x)
			magnitudes = append(magnitudes, x,
				math.Float32frombits(bits&^0xffff|0x8000), // a tie of BF16
				math.Float32frombits(bits&^0x1fff|0x1000)) // and of F16
		}
	}
	var list []float64
	for _, m := range magnitudes {
		list = append(list, float64(m), -float64(m))
	}
	return list
}

func (s *suite) quantize() {
	s.quantizeFormats()
	s.quantizePrecisions()
	s.quantizeScales()
	s.quantizeCopies()
	s.quantizeBlocks()
	s.quantizeToFormats()
	s.dequantize()
	s.amax()
}

// quantizeFormats adds casts from every input format to every output format.
func (s *suite) quantizeFormats() {
	const cols = 31
	for _, in := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16} {
		for _, out := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
			for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
				for _, transpose := range []bool{false, true} {
					name := "quantize/%s/%s/%s"
					if transpose {
						name += "/transposed"
					}
					s.add(func(b *fixture) {
						values := append(b.specials(out), inf, -inf, nan)
						rows := (len(values) + cols - 1) / cols
						values = append(values, b.draw(rows*cols-len(values), 1)...)
						shape := []int{rows, cols}
						if transpose {
							shape = []int{cols, rows}
						}
						cast := backend.Cast{
							Out: b.result("out", out, exactly, shape...), Amax: b.scalar("amax", 1),
							Rounding: rounding, Transpose: transpose,
						}
						if rounding == fp8.Stochastic {
							cast.Control, b.random = b.control(), true
						}
						b.p.Add(&backend.Quantize{X: b.given("x", in, values, rows, cols), Out: []backend.Cast{cast}})
					}, name, in, out, rounding)
				}
			}
		}
	}
}

// quantizePrecisions adds casts to BF16 with fewer bits, beside one with all bits.
func (s *suite) quantizePrecisions() {
	for _, name := range []string{"e8m3", "e8m5", "e7m7", "e5m4", "e8m3mask", "e5m7mask"} {
		precision, _ := fp8.ParseDType(name) // the grammar of formats has them
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16} {
			for _, transpose := range []bool{false, true} {
				s.add(func(b *fixture) {
					values := append(b.specials(precision), inf, -inf, nan)
					for i := range 40 { // subnormal values, ties, and the float32 numbers around them
						x := float64(precision.Smallest()) * float64(i/3) / 2
						values = append(values, float64(math.Nextafter32(float32(x), float32(i%3-1))), -x)
					}
					cols := 32
					rows := (len(values) + cols - 1) / cols
					values = append(values, b.draw(rows*cols-len(values), 1)...)
					shape := []int{rows, cols}
					if transpose {
						shape = []int{cols, rows}
					}
					b.p.Add(&backend.Quantize{X: b.given("x", in, values, rows, cols), Out: []backend.Cast{
						{Out: b.result("out", fp8.BF16, exactly, shape...), Amax: b.scalar("amax", 1), Precision: precision, Transpose: transpose},
						{Out: b.result("all", fp8.BF16, exactly, rows, cols)},
					}})
				}, "quantize/precision/%s/%s/%v", name, in, transpose)
			}
		}
	}
}

// quantizeScales adds casts with scales, which multiply in FP32 before the rounding.
func (s *suite) quantizeScales() {
	scaled := func(in fp8.DType, out fp8.DType, scale float64, sigma float64, name string) {
		s.add(func(b *fixture) {
			b.p.Add(&backend.Quantize{
				X: b.given("x", in, b.draw(17*33, sigma), 17, 33),
				Out: []backend.Cast{{
					Out: b.result("out", out, exactly, 17, 33), Scale: b.scalar("scale", scale), Amax: b.scalar("amax", 0),
				}},
			})
		}, "quantize/scale/%s/%s/%s", name, in, out)
	}
	for _, out := range []fp8.DType{fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		scaled(fp8.F32, out, 0.7, 10, "inexact")
		scaled(fp8.BF16, out, 0x1p-9, 1, "small")
		scaled(fp8.F32, out, 1e30, 1, "overflow")
		scaled(fp8.F32, out, 0x1p126, 1e-39, "subnormal")
	}
	s.add(func(b *fixture) {
		x := b.normal("x", fp8.F16, 9, 20)
		x.Scale = b.scalar("x.scale", 0.3)
		b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{
			{Out: b.result("out", fp8.E4M3, exactly, 9, 20), Scale: b.scalar("scale", 100), Amax: b.scalar("amax", 0)},
			{Out: b.result("wide", fp8.F32, exactly, 9, 20)},
		}})
	}, "quantize/scaled-f16")
	// X's own scale, ColScale and Scale are three FP32 multiplications.
	s.add(func(b *fixture) {
		x := b.normal("x", fp8.F16, 9, 20)
		x.Scale = b.scalar("x.scale", 0.3)
		b.p.Add(&backend.Quantize{X: x, ColScale: b.normal("col", fp8.F32, 20), Out: []backend.Cast{
			{Out: b.result("out", fp8.E4M3, exactly, 9, 20), Scale: b.scalar("scale", 0.7), Amax: b.scalar("amax", 0)},
			{Out: b.result("wide", fp8.F32, exactly, 9, 20)},
		}})
	}, "quantize/colscale-scaled-f16")
	// RowScale multiplies before ColScale: the order decides whether a product overflows.
	s.add(func(b *fixture) {
		x := b.normal("x", fp8.BF16, 9, 20)
		x.Scale = b.scalar("x.scale", 0.3)
		row, col := b.normal("row", fp8.F32, 9), b.normal("col", fp8.F32, 20)
		b.values[row][3], b.values[col][4], b.values[x][3*20+4] = 0x1p-90, 0x1p120, 0x1p60
		b.p.Add(&backend.Quantize{X: x, RowScale: row, ColScale: col, Out: []backend.Cast{
			{Out: b.result("out", fp8.E4M3, exactly, 9, 20), Scale: b.scalar("scale", 0.7), Amax: b.scalar("amax", 0)},
			{Out: b.result("wide", fp8.F32, exactly, 9, 20)},
		}})
	}, "quantize/rowscale-colscale")
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
		s.add(func(b *fixture) {
			b.random = true
			b.p.Add(&backend.Quantize{X: b.normal("x", d, 33, 70), RowScale: b.positive("row", 33), Out: []backend.Cast{
				{Out: b.result("out", fp8.E5M2, exactly, 33, 70), Scale: b.scalar("scale", 64), Amax: b.scalar("amax", 0), Control: b.control(), Rounding: fp8.Stochastic, Tokens: true},
				{Out: b.result("out.t", fp8.E4M3, exactly, 70, 33), Scale: b.scalar("scale.t", 3), Transpose: true},
			}})
		}, "quantize/rowscale/%s", d)
	}
	s.add(func(b *fixture) {
		scales := b.draw(20, 1)
		for i, x := range scales {
			scales[i] = math.Exp2(math.Round(4 * x))
		}
		b.p.Add(&backend.Quantize{
			X: b.normal("x", fp8.F32, 9, 20), ColScale: b.given("col", fp8.F32, scales, 20),
			Out: []backend.Cast{
				{Out: b.result("out", fp8.E4M3, exactly, 9, 20), Scale: b.scalar("scale", 3), Amax: b.scalar("amax", 0)},
				{Out: b.result("out.t", fp8.E4M3, exactly, 20, 9), Scale: b.scalar("scale.t", 3), Transpose: true},
			},
		})
	}, "quantize/colscale")
}

// quantizeCopies adds ops with several casts, with views, and with several random streams.
func (s *suite) quantizeCopies() {
	for _, shape := range [][2]int{{1, 1}, {1, 7}, {48, 80}, {33, 17}} {
		rows, cols := shape[0], shape[1]
		s.add(func(b *fixture) {
			x := b.outliers(b.normal("x", fp8.BF16, rows, cols), 1000)
			b.random = true
			b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{
				{Out: b.result("tokens", fp8.E5M2, exactly, rows, cols), Scale: b.scalar("s0", 0.9), Amax: b.scalar("a0", 0), Control: b.control(), Rounding: fp8.Stochastic, Tokens: true},
				{Out: b.result("tokens.t", fp8.E5M2, exactly, cols, rows), Scale: b.scalar("s1", 16), Control: b.control(), Rounding: fp8.Stochastic, Tokens: true, Transpose: true},
				{Out: b.result("plain", fp8.E4M3, exactly, rows, cols), Scale: b.scalar("s2", 64), Control: b.control(), Rounding: fp8.Stochastic},
				{Out: b.result("nearest.t", fp8.E4M3IEEE, exactly, cols, rows), Amax: b.scalar("a3", 1e6), Transpose: true},
				{Out: b.result("wide", fp8.F16, exactly, rows, cols), Control: b.control(), Rounding: fp8.Stochastic},
			}})
		}, "quantize/copies/%dx%d", rows, cols)
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.Quantize{X: b.normal("x", fp8.F32, 20, 24).RowRange(5, 9), Out: []backend.Cast{
			{Out: b.normal("rows", fp8.E4M3, 30, 24).RowRange(2, 9)},
			{Out: b.gapped("gap", fp8.E5M2, 9, 24)},
			{Out: b.gapped("gap.t", fp8.BF16, 24, 9), Transpose: true},
		}})
	}, "quantize/views")
	s.add(func(b *fixture) {
		b.p.Add(&backend.Quantize{X: b.gapped("x", fp8.BF16, 9, 24), Out: []backend.Cast{
			{Out: b.result("out", fp8.E4M3, exactly, 9, 24), Amax: b.scalar("amax", 0)},
			{Out: b.result("out.t", fp8.E4M3, exactly, 24, 9), Transpose: true},
		}})
	}, "quantize/gapped-x")
}

// scaleFormat is the format and rounding of block scales.
type scaleFormat struct {
	name  string
	dtype fp8.DType
	rule  fp8.ScaleRule
}

var scaleFormats = []scaleFormat{{"exact", fp8.F32, fp8.Exact}, {"pow2", fp8.F32, fp8.Pow2Down}, {"e8m0", fp8.E8M0, fp8.RoundUp}}

// blockCast declares an output of rows × cols with block scales, and returns its cast.
func (b *fixture) blockCast(name string, d fp8.DType, block backend.ScaleBlock, f scaleFormat, rows, cols int) backend.Cast {
	c := backend.Cast{Out: b.result(name, d, exactly, rows, cols), Rule: f.rule}
	b.blocked(c.Out, block, f.dtype)
	c.ScaleInv = c.Out.Scale
	if f.dtype == fp8.F32 {
		c.Limit = d.Max() / 2
	}
	return c
}

// uneven is normal "x" with magnitudes that differ between blocks.
func (b *fixture) uneven(d fp8.DType, rows, cols int) *backend.Tensor {
	t := b.outliers(b.normal("x", d, rows, cols), 1000)
	for i := range b.values[t] {
		b.values[t][i] *= math.Exp2(float64(i/cols*7%23 - i%cols/32*5%31))
	}
	return t
}

// quantizeBlocks adds casts with every usual granularity, along rows and along columns.
func (s *suite) quantizeBlocks() {
	blocks := []backend.ScaleBlock{
		backend.PerRow, backend.PerColumn, backend.Block1x128,
		{Rows: 128, Cols: 1},
		backend.Block128x128,
		backend.Block1x32,
		{Rows: 32, Cols: 1},
		{Rows: 3, Cols: 5},
	}
	formats := []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}
	for _, block := range blocks {
		for _, f := range scaleFormats {
			for i, d := range formats {
				shapes := [][2]int{{35, 130}, {130, 161}, {257, 33}, {1, 1}}
				if d != fp8.E4M3 {
					shapes = shapes[:i]
				}
				for j, shape := range shapes {
					rows, cols, in := shape[0], shape[1], []fp8.DType{fp8.BF16, fp8.F32, fp8.F16}[(i+j)%3]
					s.add(func(b *fixture) {
						b.p.Add(&backend.Quantize{
							X: b.uneven(in, rows, cols), Out: []backend.Cast{b.blockCast("out", d, block, f, rows, cols)},
						})
					}, "quantize/blocks/%s/%s/%s/%dx%d/%s", block, f.name, d, rows, cols, in)
				}
			}
			s.quantizeBlockData(block, f)
		}
	}
	// One Quantize with casts per tensor and per block.
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
		s.add(func(b *fixture) {
			const rows, cols = 140, 150
			b.random = true
			q := &backend.Quantize{
				X: b.uneven(d, rows, cols), RowScale: b.positive("row", rows), ColScale: b.normal("col", fp8.F32, cols),
				Out: []backend.Cast{
					b.blockCast("tokens", fp8.E5M2, backend.Block1x128, scaleFormats[0], rows, cols),
					{Out: b.result("one", fp8.E4M3, exactly, rows, cols), Scale: b.scalar("s", 0.9), Amax: b.scalar("a", 0)},
					b.blockCast("columns", fp8.E4M3, backend.ScaleBlock{Rows: 32, Cols: 1}, scaleFormats[2], rows, cols),
					b.blockCast("transposed", fp8.E4M3, backend.Block1x128, scaleFormats[1], cols, rows),
					{Out: b.result("wide", fp8.BF16, exactly, rows, cols)},
				},
			}
			q.Out[0].Rounding, q.Out[0].Tokens, q.Out[0].Control = fp8.Stochastic, true, b.control()
			q.Out[2].Rounding, q.Out[2].Control = fp8.Stochastic, b.control()
			q.Out[3].Rounding, q.Out[3].Control, q.Out[3].Transpose = fp8.Stochastic, b.control(), true
			b.p.Add(q)
		}, "quantize/blocks/copies/%s", d)
	}
	s.add(func(b *fixture) {
		out := b.gapped("out", fp8.E4M3, 9, 48)
		b.blocked(out, backend.Block1x32, fp8.E8M0)
		b.p.Add(&backend.Quantize{X: b.gapped("x", fp8.BF16, 9, 48), Out: []backend.Cast{{Out: out, ScaleInv: out.Scale, Rule: fp8.RoundUp}}})
	}, "quantize/blocks/views")
}

// quantizeBlockData adds blocks whose amax gives no scale or one at a limit: zeros,
// infinity, NaN, and magnitudes at both ends of FP32's range.
func (s *suite) quantizeBlockData(block backend.ScaleBlock, f scaleFormat) {
	for _, name := range []string{"zeros", "inf", "nan", "huge", "subnormal"} {
		for _, transpose := range []bool{false, true} {
			format := "quantize/blocks/%s/%s/%s"
			if transpose {
				if name != "huge" && name != "nan" {
					continue
				}
				format += "/transposed"
			}
			s.add(func(b *fixture) {
				const rows, cols = 37, 133
				x, height, width := b.normal("x", fp8.F32, rows, cols), block.Rows, block.Cols
				shape := [2]int{rows, cols}
				if transpose {
					height, width, shape = width, height, [2]int{cols, rows}
				}
				if height == 0 {
					height = rows
				}
				if width == 0 {
					width = cols
				}
				first := func(f func(x float64) float64) { // applies f to the first block
					for i := range min(height, rows) {
						row := b.values[x][i*cols:][:min(width, cols)]
						for j := range row {
							row[j] = f(row[j])
						}
					}
				}
				switch name {
				case "zeros":
					first(func(x float64) float64 { return math.Copysign(0, x) })
				case "inf":
					b.values[x][0] = -inf
				case "nan":
					b.values[x][0], b.values[x][(height-1)%rows*cols] = -inf, nan
				case "huge":
					first(func(x float64) float64 { return x * 0x1p125 })
				case "subnormal":
					first(func(x float64) float64 { return x * 0x1p-140 })
				}
				c := b.blockCast("out", fp8.E4M3, block, f, shape[0], shape[1])
				c.Transpose = transpose
				b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{c}})
			}, format, block, f.name, name)
		}
	}
}

// dequantize adds casts of X in eight bits with every usual granularity.
func (s *suite) dequantize() {
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E5M2} {
		for _, scale := range []fp8.DType{fp8.F32, fp8.E8M0} {
			for _, block := range []backend.ScaleBlock{{Rows: 1, Cols: 16}, backend.Block1x128, backend.PerRow, backend.Block128x128, {Rows: 3, Cols: 5}} {
				s.add(func(b *fixture) {
					const rows, cols = 133, 141
					x := b.normal("x", d, rows, cols)
					b.blocked(x, block, scale)
					b.p.Add(&backend.Quantize{X: x, RowScale: b.positive("row", rows), Out: []backend.Cast{
						{Out: b.result("wide", fp8.BF16, exactly, rows, cols)},
						{Out: b.result("transposed", fp8.E4M3, exactly, cols, rows), Transpose: true, Scale: b.scalar("s", 3), Amax: b.scalar("a", 0)},
						b.blockCast("again", fp8.E4M3, backend.Block1x32, scaleFormats[1], rows, cols),
					}})
				}, "quantize/dequantize/%s/%s/%s", d, scale, block)
			}
		}
		s.add(func(b *fixture) {
			b.p.Add(&backend.Quantize{X: b.normal("x", d, 9, 20), Out: []backend.Cast{{Out: b.result("wide", fp8.BF16, exactly, 9, 20)}}})
		}, "quantize/dequantize/%s/tensor", d)
	}
}

func (s *suite) amax() {
	data := map[string]func(values []float64){
		"normal":    func([]float64) {},
		"zeros":     func(v []float64) { clear(v); v[1] = negativeZero },
		"subnormal": func(v []float64) { clear(v); v[2] = -0x1p-140 },
		"inf":       func(v []float64) { v[4] = -inf },
		"nan":       func(v []float64) { v[4], v[9] = inf, nan },
	}
	for _, name := range []string{"normal", "zeros", "subnormal", "inf", "nan"} {
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16} {
			for _, n := range []int{1, 13} {
				s.add(func(b *fixture) {
					x := b.normal("x", in, 7, 13)
					data[name](b.values[x])
					b.p.Add(&backend.Amax{X: x, Out: b.result("out", fp8.F32, exactly, n)})
				}, "amax/%s/%s/%d", name, in, n)
			}
		}
	}
	s.add(func(b *fixture) {
		x := b.normal("x", fp8.F16, 12, 5)
		x.Scale = b.scalar("x.scale", 0.3)
		b.p.Add(&backend.Amax{X: x, Out: b.result("all", fp8.F32, exactly, 1)})
		b.p.Add(&backend.Amax{X: x, Out: b.result("columns", fp8.F32, exactly, 5)})
	}, "amax/scaled-f16")
	s.add(func(b *fixture) {
		x := b.gapped("x", fp8.BF16, 12, 5)
		b.p.Add(&backend.Amax{X: x, Out: b.result("all", fp8.F32, exactly, 1)})
		b.p.Add(&backend.Amax{X: x, Out: b.result("columns", fp8.F32, exactly, 5)})
	}, "amax/view")
}
