package conformance

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) matMul() {
	s.matMulShapes()
	s.matMulEpilogues()
	s.matMulData()
	s.matMulBlocks()
	s.matMulOfIntegers()
}

// operands declares A and B of a GEMM of m×k by k×n, stored transposed if ta, tb.
func (b *fixture) operands(da, db fp8.DType, m, n, k int, ta, tb bool) *backend.MatMul {
	shape := func(rows, cols int, transposed bool) []int {
		if transposed {
			rows, cols = cols, rows
		}
		return []int{rows, cols}
	}
	return &backend.MatMul{
		A: b.normal("a", da, shape(m, k, ta)...), TransA: ta,
		B: b.normal("b", db, shape(k, n, tb)...), TransB: tb,
	}
}

func (s *suite) matMulShapes() {
	pairs := [][2]fp8.DType{
		{fp8.F32, fp8.F32},
		{fp8.BF16, fp8.BF16},
		{fp8.F16, fp8.F16},
		{fp8.E4M3, fp8.E4M3},
		{fp8.E4M3, fp8.E5M2},
		{fp8.E5M2, fp8.E4M3},
		{fp8.E5M2, fp8.E5M2},
		{fp8.E4M3IEEE, fp8.E4M3IEEE},
		{fp8.E4M3IEEE, fp8.E5M2},
		{fp8.E5M2, fp8.E4M3IEEE},
	}
	for _, ta := range []bool{false, true} {
		s.add(func(b *fixture) {
			op := b.operands(fp8.F32, fp8.F32, 33, 35, 37, ta, false)
			values, used := b.values[op.A], 20
			clear(values[used*op.A.Cols():])
			op.Used, op.Out = b.ints("used", used), b.result("out", fp8.F32, summed(37), 33, 35)
			b.p.Add(op)
		}, "matmul/used/ta-%v", ta)
	}
	for _, pair := range pairs[3:] {
		s.add(func(b *fixture) {
			op := b.operands(pair[0], pair[1], 17, 33, 70, false, true)
			one := b.vars.Tensor(backend.Input, "one", fp8.F32, 1)
			one.Value, b.values[one] = 1, []float64{1}
			op.A.Scale, op.B.Scale = one, one
			op.Out = b.result("out", fp8.F32, gemm(pair[0], op.Accum, 70), 17, 33)
			b.p.Add(op)
		}, "matmul/%s-%s/scales-of-1", pair[0], pair[1])
	}
	shapes := [][3]int{{1, 1, 1}, {1, 48, 7}, {17, 5, 33}, {32, 32, 32}, {33, 35, 130}}
	for _, pair := range pairs {
		for _, shape := range shapes {
			for trans := range 4 {
				ta, tb := trans&1 != 0, trans&2 != 0
				m, n, k := shape[0], shape[1], shape[2]
				name := "matmul/%s-%s/%dx%dx%d"
				if ta {
					name += "/ta"
				}
				if tb {
					name += "/tb"
				}
				s.add(func(b *fixture) {
					op := b.operands(pair[0], pair[1], m, n, k, ta, tb)
					op.Out = b.result("out", fp8.F32, gemm(pair[0], op.Accum, k), m, n)
					b.p.Add(op)
				}, name, pair[0], pair[1], m, n, k)
			}
		}
	}
}

func (s *suite) matMulEpilogues() {
	const m = 18
	epilogues := []struct {
		name string
		out  fp8.DType
		set  func(b *fixture, o *backend.MatMul, n int)
	}{
		{"bf16", fp8.BF16, func(b *fixture, o *backend.MatMul, n int) {}},
		{"f16", fp8.F16, func(b *fixture, o *backend.MatMul, n int) {}},
		{"f16-overflow", fp8.F16, func(b *fixture, o *backend.MatMul, n int) {
			o.ColScale = b.normal("col", fp8.F32, n)
			for j := range b.values[o.ColScale] {
				b.values[o.ColScale][j] *= 30000
			}
		}},
		{"row", fp8.F32, func(b *fixture, o *backend.MatMul, n int) { o.RowScale = b.normal("row", fp8.F32, m) }},
		{"col", fp8.F32, func(b *fixture, o *backend.MatMul, n int) { o.ColScale = b.normal("col", fp8.F32, n) }},
		{"residual-f32", fp8.F32, func(b *fixture, o *backend.MatMul, n int) { o.Residual = b.normal("residual", fp8.F32, m, n) }},
		{"residual-bf16", fp8.BF16, func(b *fixture, o *backend.MatMul, n int) { o.Residual = b.normal("residual", fp8.BF16, m, n) }},
		{"residual-f16", fp8.BF16, func(b *fixture, o *backend.MatMul, n int) { o.Residual = b.normal("residual", fp8.F16, m, n) }},
		{"row-col-residual", fp8.BF16, func(b *fixture, o *backend.MatMul, n int) {
			o.RowScale, o.ColScale = b.normal("row", fp8.F32, m), b.normal("col", fp8.F32, n)
			o.Residual = b.normal("residual", fp8.F32, m, n)
		}},
		{"accumulate-f32", fp8.F32, func(b *fixture, o *backend.MatMul, n int) { o.Accumulate = true }},
		{"accumulate-bf16", fp8.BF16, func(b *fixture, o *backend.MatMul, n int) { o.Accumulate = true }},
		{"accumulate-f16", fp8.F16, func(b *fixture, o *backend.MatMul, n int) { o.Accumulate = true }},
		{"accumulate-col", fp8.F32, func(b *fixture, o *backend.MatMul, n int) {
			o.Accumulate, o.ColScale = true, b.normal("col", fp8.F32, n)
		}},
		{"fast", fp8.F32, func(b *fixture, o *backend.MatMul, n int) { o.Accum = backend.Fast }},
		{"out-e4m3", fp8.E4M3, func(b *fixture, o *backend.MatMul, n int) {}},
		{"out-scale", fp8.E4M3, func(b *fixture, o *backend.MatMul, n int) { o.OutScale = b.scalar("out.scale", 5.5) }},
		{"amax", fp8.E5M2, func(b *fixture, o *backend.MatMul, n int) { o.Amax = b.scalar("out.amax", 0) }},
		{"scale-amax-residual", fp8.E4M3IEEE, func(b *fixture, o *backend.MatMul, n int) {
			o.OutScale, o.Amax = b.scalar("out.scale", 5.5), b.scalar("out.amax", 0)
			o.Residual = b.normal("residual", fp8.BF16, m, n)
		}},
		{"amax-keeps-larger", fp8.E4M3, func(b *fixture, o *backend.MatMul, n int) { o.Amax = b.scalar("out.amax", 1e9) }},
	}
	for _, of := range []struct {
		in   fp8.DType
		n, k int
		name string
	}{
		{fp8.F32, 11, 40, "fp32"},
		{fp8.BF16, 11, 40, "bf16"},
		{fp8.F16, 16, 48, "f16"},
		{fp8.E4M3, 11, 40, "e4m3"},
		{fp8.E4M3, 16, 48, "e4m3-aligned"}, // n and k are multiples of 16, as cuBLASLt needs
	} {
		for _, e := range epilogues {
			s.add(func(b *fixture) {
				op := b.operands(of.in, of.in, m, of.n, of.k, false, true)
				op.Out = b.result("out", e.out, 0, m, of.n)
				e.set(b, op, of.n)
				tolerance := gemm(of.in, op.Accum, of.k)
				b.tolerance[op.Out] = tolerance
				if op.Amax != nil {
					b.tolerance[op.Amax] = tolerance
				}
				b.p.Add(op)
			}, "matmul/epilogue/%s/%s", of.name, e.name)
		}
	}
	// The op Epilogue, applied to a stored GEMM result.
	for _, e := range epilogues {
		s.add(func(b *fixture) {
			const n = 11
			x, op := b.normal("x", fp8.F32, m, n), &backend.MatMul{Out: b.result("out", e.out, elementwise, m, n)}
			e.set(b, op, n)
			if op.Amax != nil {
				b.tolerance[op.Amax] = elementwise
			}
			b.p.Add(op.Epilogue(x))
		}, "epilogue/%s", e.name)
	}
}

func (s *suite) matMulData() {
	for _, accum := range []backend.Accum{backend.Promoted, backend.Fast} {
		s.add(func(b *fixture) {
			op := b.operands(fp8.E4M3, fp8.E4M3, 8, 16, 512, false, true)
			op.Accum = accum
			op.Out = b.result("out", fp8.F32, gemm(fp8.E4M3, accum, 512), 8, 16)
			b.p.Add(op)
		}, "matmul/long-k/accum%d", accum)
	}
	for _, in := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3} {
		s.add(func(b *fixture) {
			op := b.operands(in, in, 19, 21, 80, false, true)
			b.outliers(op.A, 300)
			op.Out = b.result("out", fp8.F32, gemm(in, op.Accum, 80), 19, 21)
			b.p.Add(op)
		}, "matmul/outliers/%s", in)
		s.add(func(b *fixture) {
			op := &backend.MatMul{
				A: b.gapped("a", in, 13, 24), B: b.normal("b", in, 40, 24).RowRange(3, 9), TransB: true,
				Out: b.gapped("out", fp8.F32, 13, 9),
			}
			b.tolerance[op.Out.Base] = gemm(in, op.Accum, 24)
			b.p.Add(op)
		}, "matmul/views/%s", in)
	}
	// A NaN propagates to its row of the result and to the amax.
	s.add(func(b *fixture) {
		op := b.operands(fp8.E4M3, fp8.E4M3, 5, 6, 32, false, true)
		b.values[op.A][40] = nan
		op.Out = b.result("out", fp8.E4M3, gemm(fp8.E4M3, op.Accum, 32), 5, 6)
		op.OutScale = b.scalar("out.scale", 2)
		op.Amax = b.scalar("out.amax", 1)
		b.tolerance[op.Amax] = elementwise
		b.p.Add(op)
	}, "matmul/nan")
	// Subnormal codes are not flushed to zero.
	for _, in := range []fp8.DType{fp8.E4M3, fp8.E5M2} {
		s.add(func(b *fixture) {
			op := b.operands(in, in, 6, 7, 33, false, true)
			for i := range b.values[op.A] {
				b.values[op.A][i] = float64(in.Float32(uint32(b.rng.IntN(4)))) // zero and the smallest values
			}
			op.Out = b.result("out", fp8.F32, gemm(in, op.Accum, 33), 6, 7)
			b.p.Add(op)
		}, "matmul/subnormal/%s", in)
	}
}

// blocked gives t random block scales of the format scale.
func (b *fixture) blocked(t *backend.Tensor, block backend.ScaleBlock, scale fp8.DType) {
	rows, cols := block.ScaleShape(t.Rows(), t.Cols())
	values := b.draw(rows*cols, 1)
	for i, x := range values {
		values[i] = math.Exp(x) / 16
		if scale == fp8.E8M0 {
			values[i] = math.Exp2(math.Round(2*x) - 4)
		}
	}
	s := b.vars.Tensor(backend.Stash, t.Name+".scales", scale, rows, cols)
	b.values[s] = values
	t.Scale, t.Block = s, block
}

// matMulBlocks adds GEMMs with every usual granularity of op(A) and op(B), for each
// combination of transposed storage.
func (s *suite) matMulBlocks() {
	transposed := func(block backend.ScaleBlock) backend.ScaleBlock {
		return backend.ScaleBlock{Rows: block.Cols, Cols: block.Rows}
	}
	kinds := []struct {
		name  string
		a, b  backend.ScaleBlock
		scale fp8.DType
	}{
		{"rows", backend.PerRow, backend.PerColumn, fp8.F32},
		{"rows-tensor", backend.PerRow, backend.PerTensor, fp8.F32},
		{"1x128-128x128", backend.Block1x128, backend.Block128x128, fp8.F32},
		{"128x128-1x128", backend.Block128x128, transposed(backend.Block1x128), fp8.F32},
		{"128x128-128x128", backend.Block128x128, backend.Block128x128, fp8.F32},
		{"1x128-1x128", backend.Block1x128, transposed(backend.Block1x128), fp8.F32},
		{"mx", backend.Block1x32, transposed(backend.Block1x32), fp8.E8M0},
		{"mixed", backend.Block1x128, transposed(backend.Block1x32), fp8.F32},
	}
	const m, n, k = 19, 130, 300
	// Sizes and formats that cuBLASLt takes, with blocks and tiles that are not full.
	for _, kind := range kinds {
		for _, size := range [][3]int{{132, 144, 288}, {8, 16, 96}, {4, 16, 512}} {
			s.add(func(b *fixture) {
				op := b.operands(fp8.E4M3, fp8.E5M2, size[0], size[1], size[2], false, true)
				b.blocked(op.A, kind.a, kind.scale)
				if kind.b != backend.PerTensor {
					b.blocked(op.B, transposed(kind.b), kind.scale)
				}
				op.Out = b.result("out", fp8.F32, gemm(fp8.E4M3, op.Accum, size[2]), size[0], size[1])
				b.p.Add(op)
			}, "matmul/blocks/%s/%dx%dx%d", kind.name, size[0], size[1], size[2])
		}
	}
	for _, size := range [][3]int{{132, 144, 288}, {8, 16, 96}} {
		s.add(func(b *fixture) {
			op := b.operands(fp8.E2M1, fp8.E2M1, size[0], size[1], size[2], false, true)
			b.blocked(op.A, backend.ScaleBlock{Rows: 1, Cols: 16}, fp8.E4M3)
			b.blocked(op.B, backend.ScaleBlock{Rows: 16, Cols: 16}, fp8.E4M3)
			op.A.Outer, op.B.Outer = b.scalar("a.outer", 3), b.scalar("b.outer", 0x1p-9)
			op.Residual = b.normal("residual", fp8.F32, size[0], size[1])
			op.Out = b.result("out", fp8.F32, gemm(fp8.E2M1, op.Accum, size[2]), size[0], size[1])
			b.p.Add(op)
		}, "matmul/blocks/nvfp4/%dx%dx%d", size[0], size[1], size[2])
	}
	for _, kind := range kinds {
		for trans := range 4 {
			ta, tb := trans&1 != 0, trans&2 != 0
			s.add(func(b *fixture) {
				op := b.operands(fp8.E4M3, fp8.E4M3, m, n, k, ta, tb)
				blockA, blockB := kind.a, kind.b
				if ta {
					blockA = transposed(blockA)
				}
				if tb {
					blockB = transposed(blockB)
				}
				b.blocked(op.A, blockA, kind.scale)
				if kind.b != backend.PerTensor {
					b.blocked(op.B, blockB, kind.scale)
				}
				op.Out = b.result("out", fp8.F32, gemm(fp8.E4M3, op.Accum, k), m, n)
				b.p.Add(op)
			}, "matmul/blocks/%s/ta=%t/tb=%t", kind.name, ta, tb)
		}
	}
	// The epilogue does not depend on the granularity.
	s.add(func(b *fixture) {
		op := b.operands(fp8.E4M3, fp8.E5M2, m, n, k, false, true)
		b.blocked(op.A, backend.Block1x128, fp8.F32)
		b.blocked(op.B, backend.Block128x128, fp8.F32)
		op.RowScale, op.ColScale = b.normal("row", fp8.F32, m), b.normal("col", fp8.F32, n)
		op.Residual = b.normal("residual", fp8.BF16, m, n)
		op.Out = b.result("out", fp8.E4M3, gemm(fp8.E4M3, op.Accum, k), m, n)
		op.OutScale, op.Amax = b.scalar("out.scale", 0.25), b.scalar("out.amax", 0)
		b.tolerance[op.Amax] = gemm(fp8.E4M3, op.Accum, k)
		b.p.Add(op)
	}, "matmul/blocks/epilogue")
}
