package backend

import "octet/fp8"

// Epilogue is the epilogue of MatMul as an op, for a device whose matrix unit has none.
// With X = acc · A.Scale · B.Scale, stored in FP32,
//
//	v = X · RowScale[i] · ColScale[j]     where given
//	v = v + Residual[i,j]                 where given, or the old Out if Accumulate
//	Amax = max(Amax, |v|)                 where given
//	Out = round(v · OutScale)
//
// each operation in FP32. Lowering emits it, layers emit MatMul.
type Epilogue struct {
	X        *Tensor `op:"in"`          // F32 [m, n]
	RowScale *Tensor `op:"in,optional"` // F32 [m]
	ColScale *Tensor `op:"in,optional"` // F32 [n]
	Residual *Tensor `op:"in,optional"` // [m, n], F32, BF16 or F16
	Out      *Tensor `op:"out,inout=Accumulate"`
	OutScale *Tensor `op:"in,optional"`    // F32 [1], FP8 Out only
	Amax     *Tensor `op:"inout,optional"` // F32 [1], FP8 Out only

	Accumulate bool // Out += …, not into an FP8 Out
}

// Epilogue returns o's epilogue as an op that reads x.
func (o *MatMul) Epilogue(x *Tensor) *Epilogue {
	return &Epilogue{
		X: x, RowScale: o.RowScale, ColScale: o.ColScale, Residual: o.Residual,
		Out: o.Out, OutScale: o.OutScale, Amax: o.Amax, Accumulate: o.Accumulate,
	}
}

func (o *Epilogue) check() error {
	var c checker
	c.dtype("X", o.X, fp8.F32)
	c.unscaled("X", o.X)
	c.epilogue(o, o.X.Rows(), o.X.Cols())
	return c.err
}

// epilogue checks all fields but X, for a result of m × n.
func (c *checker) epilogue(o *Epilogue, m, n int) {
	c.matrix("Out", o.Out, m, n)
	c.that(o.Out.DType.IsWide() || o.Out.DType.IsQuantized(), "Out is %s, expected fp32, bf16, fp16 or a format of up to eight bits", o.Out)
	c.that(o.Out.DType.Size() > 0, "Out is %s, of which a byte holds two elements: store it in bf16 and add a Quantize", o.Out)
	c.that(o.Out.Block == PerTensor, "Out is %s with blocks of %s: the output of a GEMM takes one scale", o.Out, o.Out.Block)
	if o.RowScale != nil {
		c.vector("RowScale", o.RowScale, m)
	}
	if o.ColScale != nil {
		c.vector("ColScale", o.ColScale, n)
	}
	if o.Residual != nil {
		c.matrix("Residual", o.Residual, m, n)
		c.plain(field{"Residual", o.Residual})
		c.that(!o.Accumulate, "Residual and Accumulate exclude each other")
	}
	if o.Out.DType.IsQuantized() {
		c.that(!o.Accumulate, "an FP8 Out cannot accumulate")
	} else {
		c.that(o.OutScale == nil && o.Amax == nil, "OutScale and Amax belong to an FP8 Out, Out is %s", o.Out)
		c.unscaled("Out", o.Out)
	}
	if o.OutScale != nil {
		c.scalar("OutScale", o.OutScale)
	}
	if o.Amax != nil {
		c.scalar("Amax", o.Amax)
	}
}
