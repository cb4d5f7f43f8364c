package cuda

import (
	"cmp"
	"math"

	"octet/backend"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// Ops whose calls depend on more than an extent.

var _ = implementNode((*binder).matMul, "A", "B")

// matMul binds a matrix product, which lowering has reduced to a single GEMM.
func (b *binder) matMul(n *backend.Node, o *backend.MatMul) ([]call, error) {
	if !hasEpilogue(o) || o.A.DType.IsQuantized() && (o.TransA || !o.TransB) {
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
	return append(b.scales(o, &p), call{gemm: &p}), nil
}

func (b *binder) matrix(t *backend.Tensor) matrix {
	return matrix{dtype: t.DType, address: b.address(t), ld: t.LD, scale: b.of(t.Scale)}
}

var _ = implement((*binder).quantize, "Out")

func (b *binder) quantize(o *backend.Quantize) ([]call, error) {
	var scales []int
	for _, c := range o.Out {
		count := 0
		if c.ScaleInv != nil {
			count = c.ScaleInv.Elems()
		}
		scales = append(scales, count)
	}
	return b.launches(kernels.Quantize(o.X.Rows(), o.X.Cols(), scales), b.args(o, extent(o.X)...)), nil
}

var _ = implement((*binder).amax)

func (b *binder) amax(o *backend.Amax) ([]call, error) {
	if o.Out.Elems() == 1 {
		return b.shaped("amax", o, extent(o.X)...)
	}
	return b.shaped("amax_columns", o, extent(o.X)...)
}

var _ = implementNode((*binder).castHealth, "Codes")

func (b *binder) castHealth(n *backend.Node, o *backend.CastHealth) ([]call, error) {
	rows, cols := o.X.Rows(), o.X.Cols()
	scale := o.Codes.Scale.DType
	if scale != fp8.F32 && scale != fp8.E8M0 && scale != fp8.E4M3 {
		return nil, unsupported(n, "Codes is %s with scales in %s, which the kernels lack: use fp32, e8m0 or e4m3", o.Codes, scale)
	}
	l, _ := kernels.Of("cast_health", rows, cols)
	args := b.args(o, rows, cols, o.Codes.Scale.Elems(), cmp.Or(o.Codes.Block.Rows, rows), cmp.Or(o.Codes.Block.Cols, cols), int(formats[scale]))
	lowest, highest := scale.ScaleRange()
	for _, x := range []float32{lowest, highest, o.Codes.DType.ClipLimit()} {
		args = append(args, math.Float64bits(float64(x)))
	}
	return b.launches(l, append(args, b.of(o.Codes.Outer))), nil
}

var _ = implementNode((*binder).sumParts, "X")

func (b *binder) sumParts(n *backend.Node, o *backend.SumParts) ([]call, error) {
	if o.X.DType.Size() == 0 {
		return nil, unsupported(n, "X is %s, of which a byte holds two elements", o.X)
	}
	rows, cols := o.X.Rows(), o.X.Cols()
	args := b.args(o, rows, cols, o.Out.Rows(), cmp.Or(o.X.Block.Rows, rows), cmp.Or(o.X.Block.Cols, cols))
	return b.launches(kernels.SumParts(o.Out.Rows(), cols), args), nil
}

var _ = implement((*binder).updateScale)

func (b *binder) updateScale(o *backend.UpdateScale) ([]call, error) {
	h := *o
	h.History = asMatrix(o.History, o.Scale.Elems())
	return b.shaped("update_scale", &h, extent(h.History)...)
}

var _ = implement((*binder).smoothScale)

func (b *binder) smoothScale(o *backend.SmoothScale) ([]call, error) {
	s := *o
	s.SmoothMax, s.ChannelMax = asMatrix(o.SmoothMax, o.WeightMax.Elems()), asMatrix(o.ChannelMax, o.WeightMax.Elems())
	return b.shaped("smooth_scale", &s, s.SmoothMax.Rows(), s.SmoothMax.Cols(), s.ChannelMax.Rows())
}

var _ = implement((*binder).swiGLU)

func (b *binder) swiGLU(o *backend.SwiGLU) ([]call, error) {
	if o.TokenScale != nil {
		return b.shaped("swiglu_by_row", o, extent(o.Up)...)
	}
	return b.shaped("swiglu", o, extent(o.Up)...)
}

var _ = implement((*binder).crossEntropy)

func (b *binder) crossEntropy(o *backend.CrossEntropy) ([]call, error) {
	if o.Stats != nil {
		return b.shaped("cross_entropy_parts", o, extent(o.Logits)...)
	}
	return b.shaped("cross_entropy", o, extent(o.Logits)...)
}

var _ = implement((*binder).add)

// add gives a bias a stride of 0, so that the kernel reads it for each row.
func (b *binder) add(o *backend.Add) ([]call, error) {
	sum := *o
	if o.Bias() {
		other := *o.B
		other.Base, other.LD = o.B.Root(), 0
		sum.B = &other
	}
	return b.shaped("add", &sum, extent(o.A)...)
}

var _ = implement((*binder).rope)

func (b *binder) rope(o *backend.Rope) ([]call, error) {
	return b.launches(kernels.Rope(o.X.Rows(), o.X.Cols(), o.HeadDim), b.args(o, extent(o.X)...)), nil
}

var _ = implement((*binder).hadamard)

func (b *binder) hadamard(o *backend.Hadamard) ([]call, error) {
	return b.launches(kernels.Hadamard(o.X.Rows(), o.X.Cols(), o.Size, o.Columns), b.args(o, extent(o.X)...)), nil
}

var _ = implement((*binder).attention)

func (b *binder) attention(o *backend.Attention) ([]call, error) {
	s := b.attentionShape(o.Q, o.K, o.Batch, o.HeadDim, o.Q, o.K, o.V)
	s.Documents = o.Start != nil
	return b.launches(kernels.Attention(s), append(b.operands(o), s.Words()...)), nil
}

var _ = implement((*binder).attentionGrad)

func (b *binder) attentionGrad(o *backend.AttentionGrad) ([]call, error) {
	s := b.attentionShape(o.Q, o.K, o.Batch, o.HeadDim, o.DOut, o.Q, o.K, o.V, o.O)
	s.Documents = o.Start != nil
	return b.launches(kernels.AttentionGrad(s), append(b.operands(o), s.Words()...)), nil
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

var _ = implement((*binder).sumSquares)

func (b *binder) sumSquares(o *backend.SumSquares) ([]call, error) {
	var list []kernels.Square
	for _, x := range o.X {
		list = append(list, kernels.Square{Address: b.address(x), ScaleInv: b.of(x.Scale), Format: formats[x.DType], LD: x.LD, Rows: x.Rows(), Cols: x.Cols()})
	}
	table, chunks, l := kernels.SquareTable(list)
	args := []uint64{b.table(table), uint64(len(list)), uint64(chunks)}
	args = append(args, b.tensor(o.Out)...)
	return b.launches(l, append(args, settings(o)...)), nil
}

var _ = implement((*binder).linearUpdate, "State")

func (b *binder) linearUpdate(o *backend.LinearUpdate) ([]call, error) {
	rows, cols, block := 1, o.State.Elems(), o.State.Block.Cols
	if block > 0 {
		rows, cols = o.State.Rows(), o.State.Cols()
	}
	l, span := kernels.LinearUpdate(rows, cols, block, o.StateScale != nil && block == 0)
	return b.launches(l, b.args(o, rows, cols, block, span, int(fp8.NameKey(o.State.Name)))), nil
}

var _ = implement((*binder).stepGate)

func (b *binder) stepGate(o *backend.StepGate) ([]call, error) {
	amaxes := 0
	if o.Amax != nil {
		amaxes = o.Amax.Elems()
	}
	return b.shaped("step_gate", o, 1, amaxes)
}

var _ = implementNode((*binder).adamW, "M1", "M2")

func (b *binder) adamW(n *backend.Node, o *backend.AdamW) ([]call, error) {
	list, err := b.adams(n, o.Grad, o.Master, o.M1, o.M2)
	if err != nil {
		return nil, err
	}
	table, chunks, l, err := kernels.AdamTable(list, !o.AmaxGiven, !o.AmaxOnly)
	if err != nil {
		return nil, unsupported(n, "%v", err)
	}
	return b.overTable(o, table, len(list), chunks, l, o.Control, o.Step, o.Coef, o.Skip, o.MeanSquares, o.Amaxes), nil
}

var _ = implementNode((*binder).updateStats, "M1", "M2")

func (b *binder) updateStats(n *backend.Node, o *backend.UpdateStats) ([]call, error) {
	list, err := b.adams(n, o.Grad, o.Master, o.M1, o.M2)
	if err != nil {
		return nil, err
	}
	table, chunks, _, err := kernels.AdamTable(list, false, false)
	if err != nil {
		return nil, unsupported(n, "%v", err)
	}
	return b.overTable(o, table, len(list), chunks, kernels.UpdateStatsLaunches(len(list), chunks), o.Step, o.Coef, o.Skip, o.MeanSquares, o.Largest, o.ZeroV), nil
}

// overTable returns the launches of an op over a table of tensors, with more operands.
func (b *binder) overTable(o backend.Op, table []uint64, tensors, chunks int, l kernels.Launches, operands ...*backend.Tensor) []call {
	args := []uint64{b.table(table), uint64(tensors), uint64(chunks)}
	for _, t := range operands {
		args = append(args, b.tensor(t)...)
	}
	return b.launches(l, append(args, settings(o)...))
}

// adams returns the entries of AdamW's table.
func (b *binder) adams(n *backend.Node, grad, master, m1, m2 []*backend.Tensor) (list []kernels.Adam, err error) {
	for i, g := range grad {
		p := kernels.Adam{
			Grad: b.address(g), GradScaleInv: b.of(g.Scale), GradFormat: formats[g.DType],
			LD: g.LD, Rows: g.Rows(), Cols: g.Cols(),
		}
		for j, t := range []*backend.Tensor{master[i], m1[i], m2[i]} {
			if t.Scale != nil && t.Scale.DType != fp8.F32 {
				return nil, unsupported(n, "the scale of %s is %s, moments need FP32 scales", t, t.Scale)
			}
			p.State[j] = kernels.AdamState{
				Address: b.address(t), ScaleInv: b.of(t.Scale), Format: formats[t.DType],
				Block: t.Block.Cols, Expand: t.Expand, NameKey: fp8.NameKey(t.Name),
			}
		}
		list = append(list, p)
	}
	return list, nil
}
