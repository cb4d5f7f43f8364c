package ref

import "octet/backend"

func (b *Backend) matMul(o *backend.MatMul) {
	m, n, k := o.Dims()
	left, right := b.read(o.A), b.read(o.B)
	row, col := b.readOr(o.RowScale, m, 1), b.readOr(o.ColScale, n, 1)
	plus := b.readOr(o.Residual, m*n, 0)
	if o.Accumulate {
		plus = b.read(o.Out)
	}
	scale := b.readOr(o.OutScale, 1, 1)[0]

	// Element (i, l) of op(A) and (l, j) of op(B), by strides.
	aRow, aCol, bRow, bCol := k, 1, n, 1
	if o.TransA {
		aRow, aCol = 1, m
	}
	if o.TransB {
		bRow, bCol = 1, k
	}
	out, amax := make([]float64, m*n), 0.0
	for i := range m {
		for j := range n {
			v := 0.0
			for l := range k {
				v += left[i*aRow+l*aCol] * right[l*bRow+j*bCol]
			}
			v = b.fp32(v*row[i]*col[j] + plus[i*n+j])
			amax = maxAmax(amax, v)
			out[i*n+j] = v * scale
		}
	}
	b.store(o.Out, out)
	b.fold(o.Amax, amax)
}
