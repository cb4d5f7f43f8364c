package backend

import "octet/fp8"

// Encodings returns how A and B are stored.
func (o *MatMul) Encodings() (a, b fp8.Encoding) {
	return o.A.encoding(!o.TransA), o.B.encoding(o.TransB)
}

// encoding returns how t is stored. along says that the GEMM's K runs along its rows.
func (t *Tensor) encoding(along bool) fp8.Encoding {
	e := fp8.Encoding{DType: t.DType, Across: t.Block.Rows, Along: t.Block.Cols, Outer: t.Outer != nil}
	if !along {
		e.Across, e.Along = e.Along, e.Across
	}
	if t.Scale != nil {
		e.Scale = t.Scale.DType
	}
	return e
}
