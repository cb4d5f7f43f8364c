package conformance

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// chains adds programs of several ops that share temps: they test the arena, scales
// computed by other ops, and views of temps.
func (s *suite) chains() {
	// Current scaling of both operands of a GEMM; every intermediate is exact.
	s.add(func(b *fixture) {
		const m, n, k = 24, 32, 48 // cuBLASLt needs n and k in multiples of 16
		operand := func(name string, rows int) *backend.Tensor {
			x := b.outliers(b.normal(name, fp8.BF16, rows, k), 30)
			amax := b.p.Temp(name+".amax", fp8.F32, 1)
			scale, inv := b.p.Temp(name+".scale", fp8.F32, 1), b.p.Temp(name+".scale_inv", fp8.F32, 1)
			codes := b.p.Temp(name+".codes", fp8.E4M3, rows, k)
			codes.Scale = inv
			b.p.Add(&backend.Amax{X: x, Out: amax})
			b.p.Add(&backend.UpdateScale{History: amax, Scale: scale, ScaleInv: inv, Limit: 448, Pow2: true})
			b.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: codes, Scale: scale}}})
			return codes
		}
		b.p.Add(&backend.MatMul{
			A: operand("x", m), B: operand("w", n), TransB: true,
			Out: b.result("y", fp8.F32, gemm(fp8.E4M3, backend.Promoted, k), m, n),
		})
	}, "chain/current-scaling")

	// An FP8 MLP: norm, two GEMMs into halves of one temp, SwiGLU, a third GEMM.
	s.add(func(b *fixture) {
		const tokens, dim, ffn = 16, 32, 48
		x := b.normal("x", fp8.BF16, tokens, dim)
		unit := b.scalar("unit", 1)
		code := func(name string, shape ...int) *backend.Tensor {
			t := b.p.Temp(name, fp8.E4M3, shape...)
			t.Scale = unit
			return t
		}
		normed, h := code("normed", tokens, dim), code("h", tokens, ffn)
		b.p.Add(&backend.RMSNorm{X: x, Gain: b.normal("gain", fp8.F32, dim), Out: []backend.Cast{{Out: normed}}, Eps: 1e-5})
		both := b.p.Temp("both", fp8.BF16, 2*tokens, ffn)
		up, gate := both.RowRange(0, tokens), both.RowRange(tokens, tokens)
		b.p.Add(&backend.MatMul{A: normed, B: b.normal("w1", fp8.E4M3, ffn, dim), TransB: true, Out: up})
		b.p.Add(&backend.MatMul{A: normed, B: b.normal("w2", fp8.E4M3, ffn, dim), TransB: true, Out: gate})
		b.p.Add(&backend.SwiGLU{Up: up, Gate: gate, Out: []backend.Cast{{Out: h}}})
		// A code rounded differently changes one term of the sum by 2^-4 of it.
		b.p.Add(&backend.MatMul{
			A: h, B: b.normal("w3", fp8.E4M3, dim, ffn), TransB: true, Residual: x,
			Out: b.result("y", fp8.BF16, 0x1p-6, tokens, dim),
		})
	}, "chain/mlp")

	// The three GEMMs of a linear layer, from operands that the program casts. Each
	// operand is contracted along both of its dimensions; some devices need a transposed
	// copy for that.
	s.add(func(b *fixture) {
		const tokens, in, out = 48, 32, 16
		cast := func(name string, d fp8.DType, from fp8.DType, rows, cols int) *backend.Tensor {
			t := b.p.Temp(name+".codes", d, rows, cols)
			t.Scale = b.scalar(name+".scale_inv", 0.125)
			b.p.Add(&backend.Quantize{X: b.normal(name, from, rows, cols), Out: []backend.Cast{{
				Out: t, Scale: b.scalar(name+".scale", 8), Amax: b.scalar(name+".amax", 0),
				Rounding: fp8.Stochastic, Control: b.control(), Tokens: true,
			}}})
			return t
		}
		b.random = true
		x, w := cast("x", fp8.E4M3, fp8.BF16, tokens, in), cast("w", fp8.E4M3, fp8.F32, out, in)
		dy := cast("dy", fp8.E5M2, fp8.BF16, tokens, out)
		b.p.Add(&backend.MatMul{A: x, B: w, TransB: true, Out: b.result("y", fp8.BF16, gemm(fp8.E4M3, backend.Fast, in), tokens, out), Accum: backend.Fast})
		b.p.Add(&backend.MatMul{A: dy, B: w, Out: b.result("dx", fp8.F32, gemm(fp8.E5M2, backend.Promoted, out), tokens, in)})
		b.p.Add(&backend.MatMul{
			A: dy, TransA: true, B: x, ColScale: b.positive("c", in), Accumulate: true,
			Out: b.result("dw", fp8.F32, gemm(fp8.E5M2, backend.Promoted, tokens), out, in),
		})
	}, "chain/linear")

	// Temps of different sizes and lifetimes, for errors of arena planning.
	s.add(func(b *fixture) {
		const rows, cols = 40, 8
		x := b.normal("x", fp8.F32, rows, cols)
		last := x
		for i := range 6 {
			p := b.p.Scope(fmt.Sprint(i))
			wide, narrow := p.Temp("wide", fp8.F32, rows, cols), p.Temp("narrow", fp8.BF16, 5+i, cols)
			p.Add(&backend.Add{A: last, B: x, Out: []backend.Cast{{Out: wide}}})
			p.Add(&backend.Add{A: wide.RowRange(i, 5+i), B: x.RowRange(0, 5+i), Out: []backend.Cast{{Out: narrow}}})
			p.Add(&backend.Amax{X: narrow, Out: b.result(fmt.Sprintf("amax%d", i), fp8.F32, exactly, 1)})
			last = wide
		}
		b.p.Add(&backend.Add{A: last, B: x, Out: b.casts("f32", "out", rows, cols, exactly)})
	}, "chain/lifetimes")
}
