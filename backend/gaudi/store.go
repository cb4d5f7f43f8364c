package gaudi

import (
	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// store stores an op's result through its casts: v, in F32 or BF16.
//
// A cast to FP8 is one kernel, convert_to_fp8, which multiplies by the scale,
// saturates, and finds the amax before it does; casts to both formats are one
// hybrid kernel, which reads v once. Operands as in PyTorch's bridge (CastToFp8,
// CastToFp8Hybrid).
//
// What the kernel's amax makes of a NaN is not documented, and a pass of our own
// over v would cost as much as the cast. One that it lost would still be in the
// codes, in all that is computed from them and in the gradient's norm, for which
// the update is skipped.
func (b *builder) store(casts []backend.Cast, v value) {
	for _, c := range casts {
		if c.Transpose {
			b.fail(b.unsupported("Out is %s, a transposed copy: products take operands either way", c.Out))
			return
		}
		if c.Out.Block != backend.PerTensor || c.ScaleInv != nil {
			b.fail(b.unsupported("Out is %s with scales by block (%s), and Gaudi one for a tensor", c.Out, c.Out.Block))
			return
		}
	}
	for i := 0; i < len(casts); i++ {
		c := casts[i]
		switch j := hybrid(casts, i); {
		case j >= 0 && !b.spec.ClipE4M3:
			pair := [2]backend.Cast{c, casts[j]}
			if c.Out.DType != fp8.E5M2 {
				pair[0], pair[1] = pair[1], pair[0]
			}
			b.convertBoth(pair[0], pair[1], v)
			i = j
		case c.Out.DType.IsFP8():
			b.convert(c, v)
		default:
			b.storeWide(c, v)
		}
	}
}

// hybrid is the index of the cast behind i that one kernel can make with it; -1
// if there is none.
func hybrid(casts []backend.Cast, i int) int {
	if i+1 == len(casts) {
		return -1
	}
	c, d := casts[i], casts[i+1]
	if c.Out.DType.IsFP8() && d.Out.DType.IsFP8() && (c.Out.DType == fp8.E5M2) != (d.Out.DType == fp8.E5M2) && c.Rounding == d.Rounding {
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

// scalarOr is an optional scalar operand.
func (b *builder) scalarOr(t *backend.Tensor) value {
	if t == nil {
		return absent
	}
	return b.in(t)
}

// outputs lists the outputs of a cast kernel: the codes, and the amax if somebody
// wants it.
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

// convert makes codes of one format. Where it has to clip, it multiplies by the scale and
// finds the amax before it does.
func (b *builder) convert(c backend.Cast, v value) {
	if b.spec.ClipE4M3 && c.Out.DType == b.spec.E4M3 {
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

// convertBoth makes the codes of e5m2 and of e4m3.
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

// storeWide stores in a format of two bytes or four.
func (b *builder) storeWide(c backend.Cast, v value) {
	if c.Amax != nil {
		b.fold(c.Amax, b.largest(v))
	}
	if c.Scale != nil {
		v = b.mul(v, b.in(c.Scale))
	}
	b.outAs(c.Out, b.castWide(v, b.typeOf(c.Out.DType), roundingOf(c.Rounding)))
}

// castWide casts to a format of two bytes or four; F16 saturates.
func (b *builder) castWide(v value, typ libsynapse.DataType, r libsynapse.Rounding) value {
	if typ != libsynapse.F16 {
		return b.castRounded(v, typ, r)
	}
	return b.castRounded(b.clipped(b.cast(v, libsynapse.F32), fp8.F16.Max()), typ, r)
}

// clipped is v, and the nearest of ±top for what is larger. NaN stays, of which max_fwd
// and min_fwd make something that is not documented.
func (b *builder) clipped(v value, top float32) value {
	v = b.where(b.greater(v, b.constant(top)), b.constant(top), v)
	return b.where(b.less(v, b.constant(-top)), b.constant(-top), v)
}

// fold makes the step's record of an amax the larger of itself and amax.
func (b *builder) fold(record *backend.Tensor, amax value) {
	b.out(record, b.larger(b.in(record), amax))
}

// larger is the maximum of magnitudes, in which NaN counts as larger than
// infinity; what max_fwd makes of a NaN is not documented.
func (b *builder) larger(x, y value) value {
	top := b.where(b.greater(x, y), x, y) // y if x is NaN
	return b.where(b.isNaN(x), x, top)
}

// largest is the largest magnitude of v as a scalar, see larger.
func (b *builder) largest(v value) value {
	return b.magnitude(v, func(x value) value { return b.overAll("reduce_max", x) })
}

// largestOfColumns is that of every column.
func (b *builder) largestOfColumns(v value) value {
	return b.magnitude(v, func(x value) value { return b.maximum(x, 1) })
}

// magnitude is the largest magnitude by some reduction of maxima, which may do
// with NaN what it likes: they are counted apart.
func (b *builder) magnitude(v value, reduce func(value) value) value {
	v = b.cast(v, libsynapse.F32)
	odd := b.isNaN(v)
	top := reduce(b.abs(v))
	odds := reduce(b.where(odd, b.constant(1), b.constant(0)))
	return b.where(b.greater(odds, b.constant(0)), b.notANumber(), top)
}
