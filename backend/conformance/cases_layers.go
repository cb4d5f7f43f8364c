package conformance

import (
	"slices"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) layers() {
	for _, v := range variants {
		s.add(func(b *fixture) {
			ids := make([]int, v.rows)
			for i := range ids {
				ids[i] = b.rng.IntN(11)
			}
			b.p.Add(&backend.Embed{
				Table: b.normal("table", v.in, 11, v.cols), IDs: b.ints("ids", ids...),
				Out: b.casts(v.style, "out", v.rows, v.cols, exactly),
			})
		}, "embed/%s", v)
		for _, split := range splits {
			s.add(func(b *fixture) {
				ids := make([]int, v.rows)
				for i := range ids {
					ids[i] = b.rng.IntN(11 * split.Size)
				}
				b.p.Add(&backend.Embed{
					Table: b.normal("table", v.in, 11, v.cols), IDs: b.ints("ids", ids...), Control: b.control(),
					Out: b.casts(v.style, "out", v.rows, v.cols, exactly), Split: split,
				})
			}, "embed/%s/part of %d-%d", v, split.Size, split.Stride)
		}
		s.add(func(b *fixture) {
			b.p.Add(&backend.Add{
				A: b.normal("a", v.in, v.rows, v.cols), B: b.outliers(b.normal("b", fp8.F32, v.rows, v.cols), 1e6),
				Out: b.casts(v.style, "out", v.rows, v.cols, exactly),
			})
		}, "add/%s", v)
		s.add(func(b *fixture) {
			b.p.Add(&backend.Add{
				A: b.normal("a", v.in, v.rows, v.cols), B: b.outliers(b.normal("b", fp8.F32, v.cols), 1e6),
				Out: b.casts(v.style, "out", v.rows, v.cols, exactly),
			})
		}, "add/bias/%s", v)
		s.norms(v)
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.Add{
			A: b.gapped("a", fp8.BF16, 6, 10), B: b.normal("b", fp8.BF16, 9, 10).RowRange(2, 6),
			Out: b.casts("view", "out", 6, 10, exactly),
		})
	}, "add/views")
	s.add(func(b *fixture) {
		b.p.Add(&backend.Add{
			A: b.gapped("a", fp8.BF16, 6, 10), B: b.normal("b", fp8.BF16, 9, 10).RowRange(2, 1),
			Out: b.casts("view", "out", 6, 10, exactly),
		})
	}, "add/bias/views")
	s.embedGrad()
	s.ropes()
	s.cacheWrite()
}

func (s *suite) norms(v variant) {
	tolerance := summed(v.cols)
	for _, full := range []bool{false, true} {
		s.add(func(b *fixture) {
			x := b.outliers(b.normal("x", v.in, v.rows, v.cols), 100)
			clear(b.values[x][(v.rows-1)*v.cols:]) // a row whose mean square is only Eps
			op := &backend.RMSNorm{X: x, Gain: b.normal("gain", fp8.F32, v.cols), Eps: 1e-5}
			op.Out = b.casts(v.style, "out", v.rows, v.cols, tolerance)
			if full {
				op.InvRMS = b.result("inv_rms", fp8.F32, tolerance, v.rows)
			}
			b.p.Add(op)
		}, "rmsnorm/%s/saved-%v", v, full)
		s.add(func(b *fixture) {
			op := &backend.RMSNormGrad{
				DOut: b.normal("dout", v.in, v.rows, v.cols), X: b.outliers(b.normal("x", v.in, v.rows, v.cols), 20),
				Gain: b.normal("gain", fp8.F32, v.cols), InvRMS: b.given("inv_rms", fp8.F32, b.draw(v.rows, 0.5), v.rows),
				DX: b.casts(v.style, "dx", v.rows, v.cols, tolerance), DGain: b.result("dgain", fp8.F32, summed(v.rows), v.cols),
				Accumulate: full,
			}
			if full {
				op.Residual = b.normal("residual", v.in, v.rows, v.cols)
			}
			b.p.Add(op)
		}, "rmsnormgrad/%s/residual-accumulate-%v", v, full)
	}
}

func (s *suite) embedGrad() {
	for _, accumulate := range []bool{false, true} {
		for _, in := range wideFormats {
			s.add(func(b *fixture) {
				// Row 3 occurs five times, some rows never.
				b.p.Add(&backend.EmbedGrad{
					IDs: b.ints("ids", 3, 0, 3, 9, 3, 3, 5, 9, 3), DOut: b.normal("dout", in, 9, 17),
					DTable: b.result("dtable", fp8.F32, summed(9), 10, 17), Accumulate: accumulate,
				})
			}, "embedgrad/%s/accumulate-%v", in, accumulate)
			for _, split := range splits {
				s.add(func(b *fixture) {
					ids := make([]int, 19)
					for i := range ids {
						ids[i] = b.rng.IntN(3 * split.Size)
					}
					b.p.Add(&backend.EmbedGrad{
						IDs: b.ints("ids", ids...), DOut: b.normal("dout", in, 19, 17), Control: b.control(),
						DTable: b.result("dtable", fp8.F32, summed(19), 3, 17), Accumulate: accumulate, Split: split,
					})
				}, "embedgrad/%s/accumulate-%v/part of %d-%d", in, accumulate, split.Size, split.Stride)
			}
		}
	}
}

// splits are the ranks that hold the parts of a vocabulary: rank 3, that of the cases, has the first part, the
// second and the last one.
var splits = []backend.Group{{Size: 3, Stride: 1}, {Size: 4, Stride: 2}, {Size: 4, Stride: 1}}

func (s *suite) ropes() {
	for _, style := range []string{"f32", "bf16", "f16", "fp8", "stochastic", "precision", "view"} {
		for _, inverse := range []bool{false, true} {
			s.add(func(b *fixture) {
				// The FP32 error of an angle of 40 radians is 40 units in the last place of 1.
				b.p.Add(&backend.Rope{
					X: b.normal("x", fp8.BF16, 2*9, 3*10), Out: b.casts(style, "out", 18, 30, 0x1p-18),
					Seq: 9, HeadDim: 10, Theta: 10000, Inverse: inverse,
				})
			}, "rope/%s/inverse-%v", style, inverse)
		}
	}
	s.add(func(b *fixture) {
		b.step.Position = 31
		b.p.Add(&backend.Rope{
			X: b.normal("x", fp8.F32, 4, 2), Control: b.control(), Out: b.casts("f32", "out", 4, 2, 0x1p-18),
			Seq: 4, HeadDim: 2, Theta: 500000,
		})
	}, "rope/position")
	for _, inverse := range []bool{false, true} {
		scaled := func(name string, factor, low, high float64, original int) {
			s.add(func(b *fixture) {
				b.step.Position = 31
				b.p.Add(&backend.Rope{
					X: b.normal("x", fp8.F32, 2*9, 3*10), Control: b.control(), Out: b.casts("f32", "out", 18, 30, 0x1p-18),
					Seq: 9, HeadDim: 10, Theta: 1000, Inverse: inverse,
					Factor: factor, LowFreq: low, HighFreq: high, Original: original,
				})
			}, "rope/%s/inverse-%v", name, inverse)
		}
		scaled("linear", 4, 0, 0, 0)
		// The pairs make 6.4, 1.6, 0.4, 0.1 and 0.03 turns in 40 positions: one keeps its
		// frequency, two are between the limits, and two are divided.
		scaled("llama3", 8, 0.3, 4, 40)
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.Rope{
			X: b.gapped("x", fp8.F32, 6, 8), Out: b.casts("view", "out", 6, 8, 0x1p-18),
			Seq: 3, HeadDim: 4, Theta: 100,
		})
	}, "rope/views")
}

func (s *suite) cacheWrite() {
	for _, d := range append(slices.Clone(wideFormats), fp8.E4M3, fp8.E5M2) {
		for _, position := range []int32{0, 3} {
			s.add(func(b *fixture) {
				b.step.Position = position
				x, cache := b.normal("x", d, 2*4, 7), b.normal("cache", d, 2*9, 7)
				if d.IsQuantized() {
					one := b.vars.Tensor(backend.Input, "one", fp8.F32, 1)
					one.Value, b.values[one] = 1, []float64{1}
					x, cache = x.Codes(one), cache.Codes(one)
				}
				b.p.Add(&backend.CacheWrite{X: x, Control: b.control(), Cache: cache, Batch: 2})
			}, "cachewrite/%s/position%d", d, position)
		}
	}
	s.add(func(b *fixture) {
		b.step.Position = 5
		b.p.Add(&backend.CacheWrite{
			X: b.gapped("x", fp8.BF16, 3, 7), Control: b.control(), Cache: b.gapped("cache", fp8.BF16, 3*6, 7), Batch: 3,
		})
	}, "cachewrite/views")
}
