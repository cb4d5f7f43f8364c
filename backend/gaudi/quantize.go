package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// quantize casts X. What is BF16 and has no factors is cast as it is, which the
// kernel reads in half the bytes.
func (b *builder) quantize(o *backend.Quantize) error {
	rows, cols := uint64(o.X.Rows()), uint64(o.X.Cols())
	if o.X.DType == fp8.BF16 && o.X.Scale == nil && o.RowScale == nil && o.ColScale == nil {
		b.store(o.Out, b.in(o.X))
		return nil
	}
	v := b.reshape(b.f32(o.X), cols, rows)
	if o.RowScale != nil {
		v = b.mul(v, b.reshape(b.f32(o.RowScale), 1, rows))
	}
	if o.ColScale != nil {
		v = b.mul(v, b.reshape(b.f32(o.ColScale), cols, 1))
	}
	b.store(o.Out, v)
	return nil
}

func (b *builder) amax(o *backend.Amax) error {
	v := b.reshape(b.f32(o.X), uint64(o.X.Cols()), uint64(o.X.Rows()))
	if o.Out.Elems() == 1 {
		b.out(o.Out, b.largest(v))
	} else {
		b.out(o.Out, b.largestOfColumns(v))
	}
	return nil
}

// fill sets every element. What a constant node writes may be a place.
func (b *builder) fill(o *backend.Fill) error {
	v := b.filled(o.Value, sizesOf(o.Out)...)
	b.out(o.Out, v)
	return nil
}

// castHealth counts over codes that were cast already; the codes themselves,
// without the scale, are 0 where x was flushed. It counts in ranges of rows where
// there are too many for one tensor in F32.
func (b *builder) castHealth(o *backend.CastHealth) error {
	n := b.constant(float32(1 / float64(o.X.Elems())))
	all, codes := b.operandOf(o.X), b.operandOf(o.Codes)
	scale := b.in(o.Codes.Scale)
	limit := b.mul(b.constant(o.Codes.DType.ClipLimit()), scale)
	one, zero := b.constant(1), b.constant(0)

	var clipped, flushed value
	for i, p := range rangesOf(o.X, b.limit) {
		of := func(v value) value { return b.slice(v, 1, uint64(p.from), uint64(p.from+p.n)) }
		x := b.abs(b.widened(o.X, of(all)))
		// A NaN is not above 0.
		nonzero := b.where(b.greater(x, zero), one, zero)
		isZero := b.equal(b.cast(of(codes), libsynapse.F32), zero)
		over := b.overAll("reduce_sum", b.where(b.greater(x, limit), one, zero))
		under := b.overAll("reduce_sum", b.where(isZero, nonzero, zero))
		if i > 0 {
			over, under = b.add(clipped, over), b.add(flushed, under)
		}
		clipped, flushed = over, under
	}
	b.out(o.Out, b.concat(0, b.mul(clipped, n), b.mul(flushed, n), scale))
	return nil
}

func (b *builder) rowCosine(o *backend.RowCosine) error {
	rows, cols := uint64(o.A.Rows()), uint64(o.A.Cols())
	x, y := b.reshape(b.f32(o.A), cols, rows), b.reshape(b.f32(o.B), cols, rows)
	dot := func(u, v value) value { return b.sum(b.mul(u, v)) } // {1, rows}
	xx, yy := b.sqrt(dot(x, x)), b.sqrt(dot(y, y))
	product := b.mul(xx, yy)
	zero := b.constant(0)
	// Of rows so short that the product of their lengths is 0 in FP32, too.
	cosine := b.where(b.equal(product, zero), zero, b.div(dot(x, y), product))
	b.out(o.Out, b.concat(1, cosine, xx, yy))
	return nil
}
