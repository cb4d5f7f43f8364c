package ref

import "octet/backend"

var _ = implement((*Backend).matMul)

func (b *Backend) matMul(o *backend.MatMul) {
	m, n, k := o.Dims()
	left, right := b.read(o.A), b.read(o.B)

	// Strides of op(A) and op(B) by row and column.
	aRow, aCol, bRow, bCol := k, 1, n, 1
	if o.TransA {
		aRow, aCol = 1, m
	}
	if o.TransB {
		bRow, bCol = 1, k
	}
	acc := make([]float64, m*n)
	for i := range m {
		for j := range n {
			v := 0.0
			for l := range k {
				v += left[i*aRow+l*aCol] * right[l*bRow+j*bCol]
			}
			acc[i*n+j] = v
		}
	}
	b.finish(o.Epilogue(nil), acc, n)
}

var _ = implement((*Backend).epilogue)

func (b *Backend) epilogue(o *backend.Epilogue) { b.finish(o, b.read(o.X), o.X.Cols()) }

// finish applies the epilogue o to acc, the result of a GEMM with n columns, and stores
// it. It ignores o.X.
func (b *Backend) finish(o *backend.Epilogue, acc []float64, n int) {
	row, col := b.readOr(o.RowScale, len(acc)/n, 1), b.readOr(o.ColScale, n, 1)
	addend := b.readOr(o.Residual, len(acc), 0)
	if o.Accumulate {
		addend = b.read(o.Out)
	}
	scale := b.readOr(o.OutScale, 1, 1)[0]
	amax := 0.0
	for i, v := range acc {
		v = b.fp32(v*row[i/n]*col[i%n] + addend[i])
		amax = maxAmax(amax, v)
		acc[i] = v * scale
	}
	b.store(o.Out, acc)
	b.fold(o.Amax, amax)
}
