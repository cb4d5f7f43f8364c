package cuda

import (
	"octet/backend"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// Ops whose calls need more than their operands and extent.

// matMul binds a matrix product, which lowering has reduced to a single GEMM.
func (b *binder) matMul(n *backend.Node, o *backend.MatMul) ([]call, error) {
	if !hasEpilogue(o) || o.A.DType.IsFP8() && (o.TransA || !o.TransB) {
		return nil, unsupported(n, "lower the program for this device")
	}
	p := gemm{transA: o.TransA, transB: o.TransB, fast: o.Accum == backend.Fast, a: b.matrix(o.A), b: b.matrix(o.B), d: b.matrix(o.Out)}
	p.m, p.n, p.k = o.Dims()
	p.d.scale = 0
	switch {
	case o.Residual != nil:
		p.c, p.beta = b.matrix(o.Residual), 1
	case o.Accumulate:
		p.c, p.beta = p.d, 1
	}
	b.hasGEMM = true
	return []call{{gemm: &p}}, nil
}

func (b *binder) matrix(t *backend.Tensor) matrix {
	return matrix{dtype: t.DType, address: b.address(t), ld: t.LD, scale: b.of(t.Scale)}
}

// attentionShape returns the geometry of heads; operands are the tensors that tensor
// cores read.
func (b *binder) attentionShape(q, k *backend.Tensor, batch, headDim int, operands ...*backend.Tensor) kernels.AttentionShape {
	aligned := true
	var list []kernels.Format
	for _, t := range operands {
		aligned = aligned && b.address(t)%16 == 0 && t.LD*t.DType.Size()%16 == 0
		list = append(list, formats[t.DType])
	}
	return kernels.AttentionShape{
		Batch: batch, Queries: q.Rows() / batch, Keys: k.Rows() / batch,
		Heads: q.Cols() / headDim, KeyHeads: k.Cols() / headDim, HeadDim: headDim,
		Fast: kernels.FastAttention(headDim, aligned, list...), WGMMA: b.wgmma,
	}
}

func (b *binder) sumSquares(o *backend.SumSquares) []call {
	var list []kernels.Square
	for _, x := range o.X {
		list = append(list, kernels.Square{Address: b.address(x), LD: x.LD, Rows: x.Rows(), Cols: x.Cols()})
	}
	table, chunks, l := kernels.SquareTable(list)
	args := []uint64{b.table(table), uint64(len(list)), uint64(chunks)}
	return b.launches(l, append(args, b.tensor(o.Out)...))
}

func (b *binder) adamW(n *backend.Node, o *backend.AdamW) ([]call, error) {
	var list []kernels.Adam
	for i, g := range o.Grad {
		p := kernels.Adam{Grad: b.address(g), LD: g.LD, Rows: g.Rows(), Cols: g.Cols()}
		for j, t := range []*backend.Tensor{o.Master[i], o.M1[i], o.M2[i]} {
			if t.Scale != nil && t.Scale.DType != fp8.F32 {
				return nil, unsupported(n, "the scale of %s is %s, moments need FP32 scales", t, t.Scale)
			}
			p.State[j] = kernels.AdamState{
				Address: b.address(t), ScaleInv: b.of(t.Scale), Format: formats[t.DType],
				Block: t.Block.Cols, NameKey: fp8.NameKey(t.Name),
			}
		}
		list = append(list, p)
	}
	table, chunks, l, err := kernels.AdamTable(list, !o.AmaxGiven, !o.AmaxOnly)
	if err != nil {
		return nil, unsupported(n, "%v", err)
	}
	args := []uint64{b.table(table), uint64(len(list)), uint64(chunks)}
	for _, t := range []*backend.Tensor{o.Control, o.Step, o.Coef, o.Skip, o.Amaxes} {
		args = append(args, b.tensor(t)...)
	}
	return b.launches(l, append(args, settings(o)...)), nil
}
