package conformance

import (
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
)

var fp8Formats = []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}

func (s *suite) health() {
	for _, codes := range fp8Formats {
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.add(func(b *fixture) {
				const rows, cols = 17, 133
				x := b.normal("x", in, rows, cols)
				scale := float64(codes.Max()) / 2 // values beyond two sigma saturate
				for i := range b.values[x] {
					if i%5 == 0 {
						b.values[x][i] *= 1e-9 // flushed to zero
					}
				}
				copy(b.values[x][20:], []float64{0, 2, -2})
				q := b.p.Temp("codes", codes, rows, cols)
				q.Scale = b.scalar("scale_inv", 1/scale)
				b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: q, Scale: b.scalar("scale", scale)}}})
				b.castHealth(x, q)
			}, "casthealth/%s/%s", codes, in)
		}
	}
	s.castHealthBlocks()
	s.castHealthSpecials()
	s.castHealthFormats()
	for _, shape := range [][2]int{{1, 1}, {5, 33}, {70, 256}} {
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.add(func(b *fixture) {
				rows, cols := shape[0], shape[1]
				x, y := b.normal("a", d, rows, cols), b.normal("b", d, rows, cols)
				copy(b.values[y][:cols], b.values[x]) // aligned
				if rows > 2 {
					clear(b.values[x][cols : 2*cols]) // the cosine of a zero row is 0
				}
				out := b.result("out", fp8.F32, elementwise, 3, rows)
				b.p.Add(&backend.RowCosine{A: x, B: y, Out: out})
			}, "rowcosine/%dx%d/%s", shape[0], shape[1], d)
		}
	}
}

// castHealthBlocks adds casts of every granularity. Rows and columns are no multiples of
// the blocks' sizes.
func (s *suite) castHealthBlocks() {
	const rows, cols = 130, 300
	for _, block := range []backend.ScaleBlock{
		backend.PerRow, backend.PerColumn, backend.Block1x128, {Rows: 128, Cols: 1}, backend.Block128x128, backend.Block1x32, {Rows: 32, Cols: 1},
	} {
		for i, f := range scaleFormats {
			codes := fp8Formats[i]
			s.add(func(b *fixture) {
				x := b.uneven(fp8.BF16, rows, cols)
				for i := range b.values[x] {
					if i%7 == 3 {
						b.values[x][i] *= 1e-9 // flushed
					}
				}
				clear(b.values[x][5*cols : 6*cols]) // zero blocks
				cast := b.blockCast("codes", codes, block, f, rows, cols)
				b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
				b.castHealth(x, cast.Out)
			}, "casthealth/blocks/%s/%s", block, f.name)
		}
		s.add(func(b *fixture) {
			x, codes := b.normal("x", fp8.F32, rows, cols), b.normal("codes", fp8.E5M2, rows, cols)
			b.blocked(codes, block, fp8.F32)
			for i := range b.values[codes.Scale] {
				b.values[codes.Scale][i] = float64(float32(math.Exp(b.rng.NormFloat64())) / codes.DType.Max())
			}
			b.castHealth(x, codes)
		}, "casthealth/saturated/%s", block)
	}
}

// castHealthSpecials adds tensors that are not finite, zero, or cast without error.
func (s *suite) castHealthSpecials() {
	for _, c := range []struct {
		name   string
		values []float64
	}{
		{"nan", []float64{nan, 1, 2}},
		{"inf", []float64{inf, -inf, 3}},
		{"zero", []float64{0, 0, negativeZero, 0}},
		{"lossless", []float64{0.5, -1, 448, 0}},
		{"flushed", []float64{1e-9, -1e-9}},
		{"small", []float64{1e-30, 1e-30, 0}}, // whose squares underflow in FP32
	} {
		s.add(func(b *fixture) {
			x := b.given("x", fp8.F32, c.values, 1, len(c.values))
			q := b.p.Temp("codes", fp8.E4M3, 1, len(c.values))
			q.Scale = b.scalar("scale_inv", 1)
			b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: q}}})
			b.castHealth(x, q)
		}, "casthealth/%s", c.name)
		s.add(func(b *fixture) {
			x := b.given("x", fp8.F32, c.values, 1, len(c.values))
			cast := b.blockCast("codes", fp8.E4M3, backend.PerRow, scaleFormats[0], 1, len(c.values))
			b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
			b.castHealth(x, cast.Out)
		}, "casthealth/%s/row", c.name)
	}
}

// castHealthFormats adds casts to other formats than FP8, with scales of blocks that
// underflow and an outer scale.
func (s *suite) castHealthFormats() {
	const rows, cols = 34, 100
	nvfp4 := scaleFormat{"e4m3", fp8.E4M3, fp8.Quotient}
	for _, c := range []struct {
		codes fp8.DType
		block backend.ScaleBlock
		scale scaleFormat
		outer bool
	}{
		{fp8.E2M1, backend.ScaleBlock{Rows: 1, Cols: 16}, nvfp4, true},
		{fp8.E2M1, backend.ScaleBlock{Rows: 16, Cols: 16}, nvfp4, true},
		{fp8.E2M1, backend.ScaleBlock{Rows: 1, Cols: 16}, nvfp4, false},
		{fp8.E2M1, backend.Block1x32, scaleFormats[2], false},
		{fp8.E3M2, backend.Block1x32, scaleFormats[2], false},
		{fp8.INT8, backend.PerRow, scaleFormats[0], false},
		{fp8.INT4, backend.Block1x32, scaleFormats[0], false},
	} {
		s.add(func(b *fixture) {
			x := b.uneven(fp8.BF16, rows, cols)
			for i := range b.values[x] {
				if i/cols%5 == 2 {
					b.values[x][i] *= 1e-12 // scales of 0 in E4M3
				}
			}
			clear(b.values[x][5*cols : 6*cols]) // zero blocks
			cast := b.blockCast("codes", c.codes, c.block, c.scale, rows, cols)
			if c.outer {
				outer := float64(fp8.OuterScale(float32(slices.Max(b.values[x])), 6*448))
				cast.Scale, cast.Out.Outer = b.scalar("scale", outer), b.scalar("outer", 1/outer)
			}
			b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{cast}})
			b.castHealth(x, cast.Out)
		}, "casthealth/%s/%s/%s/%t", c.codes, c.block, c.scale.name, c.outer)
	}
}

// castHealth adds a CastHealth op. Each field is compared separately: in one norm the
// largest field would hide the others.
func (b *fixture) castHealth(x, codes *backend.Tensor) {
	out := b.p.Temp("health", fp8.F32, backend.HealthFields)
	b.p.Add(&backend.CastHealth{X: x, Codes: codes, Out: out})
	for i, tolerance := range [backend.HealthFields]float64{
		backend.HealthSaturated: elementwise, backend.HealthFlushed: elementwise, backend.HealthNoise: summed(x.Elems()), backend.HealthScaleInvLog2Mean: elementwise, backend.HealthScaleInvLog2Std: elementwise,
		backend.HealthRMS: summed(x.Elems()), backend.HealthKurtosis: summed(x.Elems()),
	} {
		field := b.result(fmt.Sprintf("field.%d", i), fp8.F32, tolerance, 1)
		b.p.Add(&backend.Quantize{X: out.Slice(fmt.Sprintf("health.%d", i), i, 1), Out: []backend.Cast{{Out: field}}})
	}
}
