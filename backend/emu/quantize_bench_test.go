package emu

import (
	"fmt"
	"testing"

	"octet/backend"
	"octet/fp8"
)

// castTo declares a tensor of s.rows × s.cols, or its transpose, and the cast to it.
func (s *elementwiseTensors) castTo(d fp8.DType, rounding fp8.Rounding, transpose bool) backend.Cast {
	rows, cols := s.rows, s.cols
	if transpose {
		rows, cols = cols, rows
	}
	c := backend.Cast{Out: s.add(d, rows, cols), Transpose: transpose, Rounding: rounding}
	if d != fp8.BF16 {
		c.Out.Scale, c.Scale, c.Amax = s.vector(1), s.vector(1), s.vector(1)
	}
	if rounding == fp8.Stochastic {
		c.Control = s.add(fp8.I32, backend.ControlWords)
	}
	return c
}

// castPerBlock returns a cast to E4M3 with a scale per block of rows × cols.
func (s *elementwiseTensors) castPerBlock(scale fp8.DType, rows, cols int) backend.Op {
	c := backend.Cast{Out: s.add(fp8.E4M3, s.rows, s.cols)}
	c.Out.Block = backend.ScaleBlock{Rows: rows, Cols: cols}
	across, along := c.Out.Block.ScaleShape(s.rows, s.cols)
	c.ScaleInv = s.add(scale, across, along)
	if c.Out.Scale = c.ScaleInv; scale == fp8.F32 {
		c.Limit = 448
	}
	return &backend.Quantize{X: s.input(), Out: []backend.Cast{c}}
}

// scaledF16 declares an F16 matrix with a scale_inv.
func (s *elementwiseTensors) scaledF16() *backend.Tensor {
	t := s.add(fp8.F16, s.rows, s.cols)
	t.Scale = s.vector(1)
	return t
}

var castOps = []struct {
	name string
	op   func(s *elementwiseTensors) backend.Op
}{
	{"f32-e4m3", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"bf16-e4m3", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.input(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"bf16-e4m3-columns", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.input(), ColScale: s.vector(s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"f16-e4m3", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.scaledF16(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"f32-e4m3-stochastic", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Stochastic, false)}}
	}},
	{"bf16-e4m3-stochastic", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.input(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Stochastic, false)}}
	}},
	{"f32-bf16", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.BF16, fp8.Nearest, false)}}
	}},
	{"f32-e4m3-transposed", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, true)}}
	}},
	{"f32-e4m3+e5m2-both", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{
			s.castTo(fp8.E4M3, fp8.Nearest, false), s.castTo(fp8.E4M3, fp8.Nearest, true),
			s.castTo(fp8.E5M2, fp8.Nearest, false), s.castTo(fp8.E5M2, fp8.Nearest, true),
		}}
	}},
	{"bf16-e4m3-per-row", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.F32, 1, 0) }},
	{"bf16-e4m3-per-column", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.F32, 0, 1) }},
	{"bf16-e4m3-1x128", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.F32, 1, 128) }},
	{"bf16-e4m3-128x1", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.F32, 128, 1) }},
	{"bf16-e4m3-128x128", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.F32, 128, 128) }},
	{"bf16-e4m3-1x32", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.E8M0, 1, 32) }},
	{"bf16-e4m3-32x1", func(s *elementwiseTensors) backend.Op { return s.castPerBlock(fp8.E8M0, 32, 1) }},
	{"f32-bf16-transposed", func(s *elementwiseTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.BF16, fp8.Nearest, true)}}
	}},
	{"bf16-amax", func(s *elementwiseTensors) backend.Op {
		return &backend.Amax{X: s.input(), Out: s.vector(1)}
	}},
	{"bf16-amax-columns", func(s *elementwiseTensors) backend.Op {
		return &backend.Amax{X: s.input(), Out: s.vector(s.cols)}
	}},
}

// BenchmarkCasts is BenchmarkElementwise for casts, of tensors that fit the caches and
// of much larger ones.
func BenchmarkCasts(b *testing.B) {
	for _, shape := range [][2]int{{1024, 1024}, {1 << 15, 1 << 11}} {
		for _, c := range castOps {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dx%d/%d", c.name, shape[0], shape[1], threads), func(b *testing.B) {
					benchmarkElementwise(b, shape[0], shape[1], threads, c.op)
				})
			}
		}
	}
}
