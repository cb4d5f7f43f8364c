package cuda

import (
	"cmp"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// scaleModes returns how cuBLASLt reads the scales of A and B, of a pair in arith.CublasLt.
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
// with them if an operand has an outer scale.
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
