package cuda

import (
	"cmp"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// gemmPairs returns the operands of up to eight bits that cuBLASLt documents for GPUs of a
// compute capability, 90 for 9.0, in a version of the library, 1209 for 12.9 (cuBLAS
// documentation, "Narrow precision data types usage" and cublasLtMatmulMatrixScale_t): OCP's
// E4M3, and every pair of FP8 formats except E5M2×E5M2, which tensor cores support and
// cuBLASLt does not. Blocks of 128×128 by blocks of 128×128 are not a pair of its modes: A
// is then read as 1×128, with equal scales.
func gemmPairs(capability, version int) (pairs [][2]fp8.Encoding) {
	formats := [][2]fp8.DType{{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}}
	pairs = fp8.PerTensor(formats...)
	add := func(formats [][2]fp8.DType, e fp8.Encoding) {
		for _, f := range formats {
			a, b := e, e
			a.DType, b.DType = f[0], f[1]
			pairs = append(pairs, [2]fp8.Encoding{a, b})
		}
	}
	if capability == 90 && version >= 1209 {
		add(formats, fp8.Encoding{Across: 1, Scale: fp8.F32})
		add(formats, fp8.Encoding{Across: 1, Along: 128, Scale: fp8.F32})
	}
	if capability >= 100 && version >= 1208 {
		add(formats, fp8.Encoding{Across: 1, Along: 32, Scale: fp8.E8M0})
		fp4 := [][2]fp8.DType{{fp8.E2M1, fp8.E2M1}}
		add(fp4, fp8.Encoding{Across: 1, Along: 16, Scale: fp8.E4M3, Outer: true})
		add(fp4, fp8.Encoding{Across: 1, Along: 16, Scale: fp8.E4M3})
	}
	return pairs
}

// scaleModes returns how cuBLASLt reads the scales of A and B, of a pair in gemmPairs.
func scaleModes(o *backend.MatMul) (a, b libcuda.ScaleMode) {
	x, y := o.Encodings()
	switch {
	case !x.DType.IsQuantized() || o.A.Block == backend.PerTensor && o.B.Block == backend.PerTensor:
		return libcuda.PerTensor, libcuda.PerTensor
	case x.Scale == fp8.E8M0:
		return libcuda.Vec32E8M0, libcuda.Vec32E8M0
	case x.Scale == fp8.E4M3:
		return libcuda.Vec16E4M3, libcuda.Vec16E4M3
	case x.Along == 0:
		return libcuda.PerRow, libcuda.PerRow
	case y.Across%128 == 0:
		return libcuda.Vec128, libcuda.Block128
	case x.Across%128 == 0:
		return libcuda.Block128, libcuda.Vec128
	}
	return libcuda.Vec128, libcuda.Vec128
}

// storedScales describes the scales of an operand with k as its last dimension.
func (b *binder) storedScales(t *backend.Tensor, mode libcuda.ScaleMode) kernels.StoredScales {
	s := kernels.StoredScales{Address: b.of(t.Scale), Mode: int(mode), Outer: b.of(t.Outer), Rows: t.Rows(), Height: cmp.Or(t.Block.Rows, t.Rows()), Bytes: mode.Bytes()}
	_, s.Blocks = t.Block.ScaleShape(t.Rows(), t.Cols())
	asStored := s.Address%16 == 0
	switch mode {
	case libcuda.PerTensor:
	case libcuda.PerRow:
		asStored = asStored && s.Height == 1
	case libcuda.Vec128:
		asStored = asStored && s.Height == 1 && s.Blocks == 1
	case libcuda.Block128:
		asStored = asStored && s.Height == 128 && s.Blocks%4 == 0
	default:
		asStored = false
	}
	if !asStored {
		s.Count = mode.Scales(t.Rows(), t.Cols())
	}
	return s
}

// scales adds the modes of A and B to a GEMM and, where cuBLASLt wants scales in another
// layout than the stored one, returns the launch that writes them to scratch memory, and alpha
// with them if an operand has an outer factor.
func (b *binder) scales(o *backend.MatMul, p *gemm) []call {
	p.a.mode, p.b.mode = scaleModes(o)
	if p.a.mode == libcuda.PerTensor {
		return nil
	}
	x, y := b.storedScales(o.A, p.a.mode), b.storedScales(o.B, p.b.mode)
	if x.Count == 0 && y.Count == 0 {
		return nil
	}
	l, args, at := kernels.ScaleLayout(x, y, p.beta, b.scratchAt)
	p.factors = at[2]
	if x.Count > 0 {
		p.a.scale = at[0]
	}
	if y.Count > 0 {
		p.b.scale = at[1]
	}
	return b.launches(l, args)
}
