package main

import (
	"octet/backend"
	"octet/fp8"
	"octet/train"
)

// castAttention adds casts of these operands of attention, of Q, K and V, to the programs of
// a job: queries and keys after the rotation, and values, with a current scale per tensor.
// Attention and its gradient read the cast tensors. The gradient passes the cast unchanged,
// and the sums of attention stay in FP32.
func castAttention(j *train.Job, operands []string, d fp8.DType) (err error) {
	for v, p := range j.Micro {
		if j.Micro[v], err = castOperands(p, operands, d); err != nil {
			return err
		}
	}
	j.Eval, err = castOperands(j.Eval, operands, d)
	return err
}

func castOperands(p *backend.Program, operands []string, d fp8.DType) (*backend.Program, error) {
	cast := map[*backend.Tensor]*backend.Tensor{}
	read := func(t *backend.Tensor) *backend.Tensor {
		if c := cast[t]; c != nil {
			return c
		}
		return t
	}
	return backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		switch op := n.Op.(type) {
		case *backend.Attention:
			of := map[string]*backend.Tensor{"Q": op.Q, "K": op.K, "V": op.V}
			for _, name := range operands {
				cast[of[name]] = castAndBack(r, n, of[name], d)
			}
			r.Add(n, backend.ReplaceOperands(op, read))
		case *backend.AttentionGrad:
			r.Add(n, backend.ReplaceOperands(op, read))
		default:
			r.Add(n, op)
		}
	})
}

// castAndBack adds the cast of t to d, scaled by a power of two from its amax, and back. It
// returns the result in t's format.
func castAndBack(r *backend.Rewriter, n *backend.Node, t *backend.Tensor, d fp8.DType) *backend.Tensor {
	amax, scale, inv := r.Temp(t.Name+".amax", fp8.F32, 1), r.Temp(t.Name+".scale", fp8.F32, 1), r.Temp(t.Name+".scale_inv", fp8.F32, 1)
	codes, back := r.Temp(t.Name+"."+d.String(), d, t.Rows(), t.Cols()), r.Temp(t.Name+".back", t.DType, t.Rows(), t.Cols())
	codes.Scale = inv
	r.Add(n, &backend.Amax{X: t, Out: amax})
	r.Add(n, &backend.UpdateScale{History: amax, Scale: scale, ScaleInv: inv, Limit: d.Max(), Pow2: true})
	r.Add(n, &backend.Quantize{X: t, Out: []backend.Cast{{Out: codes, Scale: scale}}})
	r.Add(n, &decode{X: codes, Out: []backend.Cast{{Out: back}}})
	return back
}

// decode stores the values of X, in any format.
type decode struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

func (o *decode) Check(c *backend.Check) { c.Casts("Out", o.Out, o.X.Rows(), o.X.Cols()) }

func (o *decode) Reference(a backend.Arguments) { a.Cast(o.Out, a.Read(o.X), o.X.Cols()) }

func (o *decode) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		copy(out[0], in[0])
	}}
}
