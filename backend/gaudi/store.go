package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// store stores an op's result v, in F32 or BF16, through its casts.
//
// A cast to FP8 is one kernel, convert_to_fp8, which multiplies by the scale, saturates,
// and returns the amax of its input. Casts to both formats are one hybrid kernel, which
// reads v once. Operands are as in PyTorch's bridge (CastToFp8, CastToFp8Hybrid).
//
// It is not documented how the kernel's amax treats NaN, and a separate pass over v would
// cost as much as the cast. A NaN that the amax lost would still be in the codes, in
// everything computed from them and in the gradient's norm, for which the update is
// skipped.
func (b *builder) store(casts []backend.Cast, v value) {
	for _, c := range casts {
		if c.Transpose {
			b.fail(b.unsupported("Out is %s, a transposed copy: GEMMs take operands either way", c.Out))
			return
		}
		if c.Precision != fp8.Invalid {
			b.fail(b.unsupported("Out is %s, rounded to %s: Gaudi's casts have no such rounding", c.Out, c.Precision))
			return
		}
		if c.Out.Block != backend.PerTensor || c.ScaleInv != nil {
			b.fail(b.unsupported("Out is %s of granularity %s: Gaudi takes per-tensor scales only", c.Out, c.Out.Block))
			return
		}
	}
	for i := 0; i < len(casts); i++ {
		c := casts[i]
		switch j := hybrid(casts, i); {
		case j >= 0 && !own(b.spec).clip:
			pair := [2]backend.Cast{c, casts[j]}
			if c.Out.DType != fp8.E5M2 {
				pair[0], pair[1] = pair[1], pair[0]
			}
			b.convertBoth(pair[0], pair[1], v)
			i = j
		case c.Out.DType.IsQuantized():
			b.convert(c, v)
		default:
			b.storeWide(c, v)
		}
	}
}

// hybrid returns the index of the cast after i that one kernel can compute together with
// cast i, or -1.
func hybrid(casts []backend.Cast, i int) int {
	if i+1 == len(casts) {
		return -1
	}
	c, d := casts[i], casts[i+1]
	if c.Out.DType.IsQuantized() && d.Out.DType.IsQuantized() && (c.Out.DType == fp8.E5M2) != (d.Out.DType == fp8.E5M2) && c.Rounding == d.Rounding {
		return i + 1
	}
	return -1
}

func roundingOf(r fp8.Rounding) libsynapse.Rounding {
	if r == fp8.Stochastic {
		return libsynapse.Stochastic // the device's own generator: Spec.Stochastic is false
	}
	return libsynapse.Nearest
}

// scalarOr returns an optional scalar operand, absent for nil.
func (b *builder) scalarOr(t *backend.Tensor) value {
	if t == nil {
		return absent
	}
	return b.in(t)
}

// outputs returns the outputs of a cast kernel: the codes, and the amax on request.
func outputs(v value, amax bool, types ...libsynapse.DataType) []value {
	var list []value
	for _, typ := range types {
		list = append(list, value{typ: typ, sizes: v.sizes})
	}
	if amax {
		list = append(list, value{typ: libsynapse.F32, sizes: []uint64{1}})
	}
	return list
}

// convert casts v to one FP8 format. Where E4M3 codes must be clipped, separate nodes
// compute the amax, multiply by the scale and clip before the cast.
func (b *builder) convert(c backend.Cast, v value) {
	if own(b.spec).clip && c.Out.DType == b.spec.E4M3 {
		if c.Amax != nil {
			b.fold(c.Amax, b.largest(v))
		}
		if c.Scale != nil {
			v = b.mul(v, b.in(c.Scale))
		}
		v, c = b.clipped(v, c.Out.DType.Max()), backend.Cast{Out: c.Out, Rounding: c.Rounding}
	}
	in := []value{v}
	if c.Scale != nil {
		in = append(in, b.in(c.Scale))
	}
	outs := b.nodes("convert_to_fp8_"+v.typ.String(), libsynapse.CastParams(roundingOf(c.Rounding)),
		outputs(v, c.Amax != nil, b.typeOf(c.Out.DType)), in...)
	b.out(c.Out, outs[0])
	if c.Amax != nil {
		b.fold(c.Amax, outs[1])
	}
}

// convertBoth casts v to E5M2 and E4M3 in one kernel.
func (b *builder) convertBoth(e5m2, e4m3 backend.Cast, v value) {
	amax := e5m2.Amax != nil || e4m3.Amax != nil
	outs := b.nodes("convert_to_fp8_hybrid_"+v.typ.String(), libsynapse.CastParams(roundingOf(e5m2.Rounding)),
		outputs(v, amax, libsynapse.E5M2, b.typeOf(e4m3.Out.DType)),
		v, b.scalarOr(e5m2.Scale), b.scalarOr(e4m3.Scale))
	for i, c := range []backend.Cast{e5m2, e4m3} {
		b.out(c.Out, outs[i])
		if c.Amax != nil {
			b.fold(c.Amax, outs[2])
		}
	}
}

// storeWide stores v in a format of two or four bytes.
func (b *builder) storeWide(c backend.Cast, v value) {
	if c.Amax != nil {
		b.fold(c.Amax, b.largest(v))
	}
	if c.Scale != nil {
		v = b.mul(v, b.in(c.Scale))
	}
	b.outAs(c.Out, b.castWide(v, b.typeOf(c.Out.DType), roundingOf(c.Rounding)))
}

// castWide casts to a format of two or four bytes; F16 saturates.
func (b *builder) castWide(v value, typ libsynapse.DataType, r libsynapse.Rounding) value {
	if typ != libsynapse.F16 {
		return b.castRounded(v, typ, r)
	}
	return b.castRounded(b.clipped(b.cast(v, libsynapse.F32), fp8.F16.Max()), typ, r)
}

// clipped returns v clamped to ±top. NaN stays NaN; how max_fwd and min_fwd treat NaN is
// not documented.
func (b *builder) clipped(v value, top float32) value {
	v = b.where(b.greater(v, b.constant(top)), b.constant(top), v)
	return b.where(b.less(v, b.constant(-top)), b.constant(-top), v)
}

// fold sets a step's amax record to the maximum of itself and amax.
func (b *builder) fold(record *backend.Tensor, amax value) {
	b.out(record, b.larger(b.in(record), amax))
}

// larger returns the maximum of magnitudes, NaN counting as larger than infinity; how
// max_fwd treats NaN is not documented.
func (b *builder) larger(x, y value) value {
	top := b.where(b.greater(x, y), x, y) // y if x is NaN
	return b.where(b.isNaN(x), x, top)
}

// largest returns the largest magnitude of v as a scalar. NaN counts as in larger.
func (b *builder) largest(v value) value {
	return b.magnitude(v, func(x value) value { return b.overAll("reduce_max", x) })
}

// largestOfColumns returns the largest magnitude of each column.
func (b *builder) largestOfColumns(v value) value {
	return b.magnitude(v, func(x value) value { return b.maximum(x, 1) })
}

// magnitude returns the largest magnitude by a reduction of maxima. A second reduction
// finds NaN, because the first may lose it.
func (b *builder) magnitude(v value, reduce func(value) value) value {
	v = b.cast(v, libsynapse.F32)
	nan := b.isNaN(v)
	top := reduce(b.abs(v))
	nans := reduce(b.where(nan, b.constant(1), b.constant(0)))
	return b.where(b.greater(nans, b.constant(0)), b.notANumber(), top)
}
