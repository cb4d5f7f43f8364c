package cuda

import (
	"octet/backend"
	"octet/fp8"
)

// dequantize gives Quantize ops with a source of eight bits, which the cast kernels do not read, a source
// in FP32: SumParts of one part dequantizes, each element times its scale_inv in FP32 as Quantize does.
func dequantize(p *backend.Program) (*backend.Program, error) {
	return backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		q, ok := n.Op.(*backend.Quantize)
		if !ok || !q.X.DType.IsQuantized() || !sumsParts(q.X) {
			r.Add(n, n.Op)
			return
		}
		wide := *q
		wide.X = r.Temp(q.X.Name+".f32", fp8.F32, q.X.Rows(), q.X.Cols())
		r.Add(n, &backend.SumParts{X: q.X, Out: wide.X})
		r.Add(n, &wide)
	})
}

// sumsParts reports whether SumParts takes the scales of x: one, or of blocks within a row, in FP32.
func sumsParts(x *backend.Tensor) bool {
	scales := x.Scale != nil && x.Scale.DType == fp8.F32 && x.Outer == nil
	return scales && x.DType.Size() == 1 && (x.Block == backend.PerTensor || x.Block.Rows == 1)
}
