package ref

import "octet/backend"

func (b *Backend) matMul(o *backend.MatMul) {
	m, n, k := o.Dims()
	left, right := b.read(o.A), b.read(o.B)

	// Element (i, l) of op(A) and (l, j) of op(B), by strides.
	aRow, aCol, bRow, bCol := k, 1, n, 1
	if o.TransA {
		aRow, aCol = 1, m
	}
	if o.TransB {
		bRow, bCol = 1, k
	}
	product := make([]float64, m*n)
	for i := range m {
		for j := range n {
			v := 0.0
			for l := range k {
				v += left[i*aRow+l*aCol] * right[l*bRow+j*bCol]
			}
			product[i*n+j] = v
		}
	}
	b.finish(o.Epilogue(nil), product, n)
}

func (b *Backend) epilogue(o *backend.Epilogue) { b.finish(o, b.read(o.X), o.X.Cols()) }

// finish stores a product of n columns as o says; o.X may be nil.
func (b *Backend) finish(o *backend.Epilogue, product []float64, n int) {
	row, col := b.readOr(o.RowScale, len(product)/n, 1), b.readOr(o.ColScale, n, 1)
	plus := b.readOr(o.Residual, len(product), 0)
	if o.Accumulate {
		plus = b.read(o.Out)
	}
	scale := b.readOr(o.OutScale, 1, 1)[0]
	amax := 0.0
	for i, v := range product {
		v = b.fp32(v*row[i/n]*col[i%n] + plus[i])
		amax = maxAmax(amax, v)
		product[i] = v * scale
	}
	b.store(o.Out, product)
	b.fold(o.Amax, amax)
}
