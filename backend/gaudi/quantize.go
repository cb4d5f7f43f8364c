package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

var _ = implementOp(row[*backend.Quantize]{build: (*builder).quantize, lower: lowering.quantize})

// quantize casts X. BF16 without scales is cast directly, because the kernel then reads
// half the bytes.
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

func (l lowering) quantize(o *backend.Quantize) {
	for _, p := range rangesOf(o.X, l.limit) {
		part := *o
		part.X, part.RowScale, part.Out = p.of(o.X), p.ofVector(o.RowScale), p.ofCasts(o.Out)
		l.add(&part)
	}
}

var _ = implementOp(row[*backend.Amax]{build: (*builder).amax, lower: lowering.amax})

func (b *builder) amax(o *backend.Amax) error {
	v := b.reshape(b.f32(o.X), uint64(o.X.Cols()), uint64(o.X.Rows()))
	if o.Out.Elems() == 1 {
		b.out(o.Out, b.largest(v))
	} else {
		b.out(o.Out, b.largestOfColumns(v))
	}
	return nil
}

func (l lowering) amax(o *backend.Amax) {
	ranges := rangesOf(o.X, l.limit)
	out := l.partialMax(o.Out, ranges)
	for i, p := range ranges {
		l.add(&backend.Amax{X: p.of(o.X), Out: out.of(i)})
	}
	out.join(l)
}

var _ = implement((*builder).fill)

// fill sets every element to one value.
func (b *builder) fill(o *backend.Fill) error {
	v := b.filled(o.Value, sizesOf(o.Out)...)
	b.out(o.Out, v)
	return nil
}

var _ = implement((*builder).castHealth)

// castHealth measures existing codes, in ranges of rows where one F32 tensor would be too
// large. It divides by the amax before squaring, because FP32 cannot hold the squares of
// small gradients.
func (b *builder) castHealth(o *backend.CastHealth) error {
	if o.Codes.Block != backend.PerTensor {
		return b.unsupported("Codes is %s of granularity %s: Gaudi takes per-tensor scales only", o.Codes, o.Codes.Block)
	}
	n := b.constant(float32(1 / float64(o.X.Elems())))
	one, zero := b.constant(1), b.constant(0)
	ranges := rangesOf(o.X, b.limit)
	of := func(v value, p rows) value { return b.slice(v, 1, uint64(p.from), uint64(p.from+p.n)) }

	all := b.matrixOf(o.X)
	amax := zero
	for i, p := range ranges {
		top := b.largest(b.widened(o.X, of(all, p)))
		if i > 0 {
			top = b.larger(amax, top)
		}
		amax = top
	}

	codes, scale := b.matrixOf(o.Codes), b.in(o.Codes.Scale)
	limit := b.mul(b.constant(o.Codes.DType.ClipLimit()), scale)
	unit := b.where(b.equal(amax, zero), one, amax)
	total := func(v value) value { return b.overAll("reduce_sum", v) }
	count := func(mask value) value { return total(b.where(mask, one, zero)) }
	var sums [5]value // saturated, flushed, signal, noise, fourth powers
	for i, p := range ranges {
		// Widened again: a range kept in F32 from the first pass would occupy memory until here.
		x, c := b.widened(o.X, of(all, p)), of(codes, p)
		magnitude := b.abs(x)
		// NaN counts as zero here: it is not above 0.
		nonzero := b.where(b.greater(magnitude, zero), one, zero)
		isZero := b.equal(b.cast(c, libsynapse.F32), zero)
		signal, noise := b.div(x, unit), b.div(b.sub(x, b.widened(o.Codes, c)), unit)
		square := b.mul(signal, signal)
		for k, sum := range [...]value{
			count(b.greater(magnitude, limit)),
			total(b.where(isZero, nonzero, zero)),
			total(square),
			total(b.mul(noise, noise)),
			total(b.mul(square, square)),
		} {
			if i > 0 {
				sum = b.add(sums[k], sum)
			}
			sums[k] = sum
		}
	}
	noise := b.where(b.equal(sums[3], zero), zero, b.div(sums[3], sums[2]))
	// Where X is not finite, the sums are NaN, and its root mean square is its amax.
	rms := b.where(b.equal(sums[2], sums[2]), b.mul(unit, b.sqrt(b.mul(sums[2], n))), amax)
	kurtosis := b.where(b.equal(amax, zero), zero, b.div(b.div(b.div(sums[4], sums[2]), n), sums[2]))
	log2 := b.mul(b.log(scale), b.constant(1/math.Ln2))
	// Per-tensor: smallest and largest scale are equal, the spread is 0, and the outer scale 1.
	is := func(v value, x float32) value { return b.where(b.equal(v, b.constant(x)), one, zero) }
	lowest, highest := o.Codes.Scale.DType.ScaleRange()
	b.out(o.Out, b.concat(0, b.mul(sums[0], n), b.mul(sums[1], n), noise, amax, scale, scale, log2, zero,
		is(amax, 0), is(scale, lowest), is(scale, highest), one, rms, kurtosis))
	return nil
}

var _ = implement((*builder).rowCosine)

func (b *builder) rowCosine(o *backend.RowCosine) error {
	rows, cols := uint64(o.A.Rows()), uint64(o.A.Cols())
	x, y := b.reshape(b.f32(o.A), cols, rows), b.reshape(b.f32(o.B), cols, rows)
	dot := func(u, v value) value { return b.sum(b.mul(u, v)) } // {1, rows}
	xx, yy := b.sqrt(dot(x, x)), b.sqrt(dot(y, y))
	product := b.mul(xx, yy)
	zero := b.constant(0)
	// Also 0 for rows so short that the product of their norms underflows in FP32.
	cosine := b.where(b.equal(product, zero), zero, b.div(dot(x, y), product))
	b.out(o.Out, b.concat(1, cosine, xx, yy))
	return nil
}
