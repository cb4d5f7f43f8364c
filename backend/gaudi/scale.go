package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// Scales that are powers of two are selected by comparison from a table. The last bits of
// the device's log2 and pow are not documented, and a scale that is off by one bit is not
// a power of two. The inverses also come from a table, not from a division.

// powers returns the table of 2^exponent(e) for e from first to last, as a row to compare
// with a column of n values, {1, n}.
func (b *builder) powers(first, last int, exponent func(e int) int) value {
	list := make([]float32, 0, last-first+1)
	for e := first; e <= last; e++ {
		list = append(list, float32(math.Ldexp(1, exponent(e))))
	}
	return b.table(list, uint64(len(list)), 1)
}

func same(e int) int    { return e }
func inverse(e int) int { return -e }

// largestPower returns, for each of n rows of a mask {last−first+1, n}, the largest 2^e
// whose e is marked, or 2^first if none is, and its inverse.
func (b *builder) largestPower(mask value, first, last int) (power, inv value) {
	lowest, highest := b.constant(float32(math.Ldexp(1, first))), b.constant(float32(math.Ldexp(1, -first)))
	power = b.maximum(b.where(mask, b.powers(first, last, same), lowest), 0)
	inv = b.minimum(b.where(mask, b.powers(first, last, inverse), highest))
	return power, inv
}

// smallestPower returns the smallest marked 2^e, or 2^last if none is marked, and its
// inverse.
func (b *builder) smallestPower(mask value, first, last int) (power, inv value) {
	highest, lowest := b.constant(float32(math.Ldexp(1, last))), b.constant(float32(math.Ldexp(1, -last)))
	power = b.minimum(b.where(mask, b.powers(first, last, same), highest))
	inv = b.maximum(b.where(mask, b.powers(first, last, inverse), lowest), 0)
	return power, inv
}

// Range of a scale's exponent, see fp8.ScaleFor.
const minScale, maxScale = -126, 126

// scaleFor computes fp8.ScaleFor of n amaxes: the scales, their inverses, and the mask of
// the amaxes that are positive and finite. Where the mask is 0, scale and inverse are 1.
func (b *builder) scaleFor(amax value, limit float32, pow2 bool) (scale, inv, ok value) {
	sizes := amax.sizes
	one, top := b.constant(1), b.constant(limit)
	if pow2 {
		// 2^e ≤ limit/amax, without a division that rounds.
		column := b.reshape(amax, 1, amax.elems())
		fits := b.lessEqual(b.mul(b.powers(minScale, maxScale, same), column), top)
		scale, inv = b.largestPower(fits, minScale, maxScale)
		scale, inv = b.reshape(scale, sizes...), b.reshape(inv, sizes...)
	} else {
		scale = b.div(top, amax)
		below := b.mul(scale, b.constant(1-0x1p-24)) // the next value below a quotient that was rounded up
		scale = b.where(b.greater(b.mul(scale, amax), top), below, scale)
		scale = b.clamp(scale, minScale, maxScale)
		inv = b.div(one, scale)
	}
	ok = b.usable(amax)
	return b.where(ok, scale, one), b.where(ok, inv, one), ok
}

// clamp limits x to [2^first, 2^last].
func (b *builder) clamp(x value, first, last int) value {
	x = b.max(x, b.constant(float32(math.Ldexp(1, first))))
	return b.min(x, b.constant(float32(math.Ldexp(1, last))))
}

// usable returns the mask of positive finite elements.
func (b *builder) usable(x value) value {
	zero := b.constant(0)
	return b.greater(b.where(b.isFinite(x), x, zero), zero)
}

// set returns the mask of an I32 flag.
func (b *builder) set(flag *backend.Tensor) value {
	return b.greater(b.cast(b.in(flag), libsynapse.F32), b.constant(0))
}

// unless returns old where the optional flag is set, else fresh.
func (b *builder) unless(flag *backend.Tensor, old, fresh value) value {
	if flag == nil {
		return fresh
	}
	return b.where(b.set(flag), old, fresh)
}

// vector returns an operand of n F32 values as {n, 1}, even for n = 1.
func (b *builder) vector(t *backend.Tensor) value {
	return b.reshape(b.f32(t), uint64(t.Elems()), 1)
}

// window returns the maximum over the rows of a history of n columns, {n, 1}.
func (b *builder) window(t *backend.Tensor, n int) value {
	v := b.reshape(b.f32(t), uint64(n), uint64(t.Elems()/n))
	return b.largestOfColumns(v)
}

var _ = implement((*builder).updateScale)

func (b *builder) updateScale(o *backend.UpdateScale) error {
	if o.Outer {
		return b.unsupported("a scale beside block scales: use scales per tensor")
	}
	a := b.window(o.History, o.Scale.Elems())
	if o.Seen != nil {
		b.out(o.Seen, b.larger(b.vector(o.Seen), a))
	}
	scale, inv, ok := b.scaleFor(a, o.Limit, o.Pow2)
	if o.Fixed {
		ok = b.isFinite(a)
		scale = b.where(ok, b.constant(o.Limit), b.constant(1))
		inv = b.div(b.constant(1), scale)
	}
	if o.Factor != nil {
		s, i := b.factored(scale, inv, b.vector(o.Factor), o.Pow2)
		scale, inv = b.where(ok, s, scale), b.where(ok, i, inv)
	}
	inv = b.where(b.isFinite(a), inv, b.constant(float32(math.NaN())))
	for _, f := range []struct {
		out *backend.Tensor
		v   value
	}{{o.Scale, scale}, {o.ScaleInv, inv}} {
		if o.Keep {
			old := b.vector(f.out)
			f.v = b.unless(o.Skip, old, b.where(ok, f.v, old))
		}
		b.out(f.out, f.v)
	}
	return nil
}

// factored computes fp8.Factored and its inverse, for {n, 1} scales and factors.
func (b *builder) factored(scale, inv, factor value, pow2 bool) (value, value) {
	if !pow2 {
		scale = b.clamp(b.mul(scale, factor), minScale, maxScale)
		return scale, b.div(b.constant(1), scale)
	}
	fits := b.lessEqual(b.powers(minScale, maxScale, same), b.reshape(factor, 1, factor.elems()))
	power, below := b.largestPower(fits, minScale, maxScale)
	power, below = b.reshape(power, scale.sizes...), b.reshape(below, scale.sizes...)
	return b.clamp(b.mul(scale, power), minScale, maxScale), b.clamp(b.mul(inv, below), minScale, maxScale)
}

var _ = implement((*builder).stepMu)

func (b *builder) stepMu(o *backend.StepMu) error {
	mu := b.vector(o.Mu)
	halved := b.max(b.mul(mu, b.constant(0.5)), b.constant(backend.MinMu))
	grown := b.min(b.mul(mu, b.constant(backend.MuGrowth)), b.constant(1))
	next := b.where(b.greater(b.vector(o.AtMax), b.constant(o.Limit)), halved, grown)
	b.out(o.Mu, b.unless(o.Skip, mu, next))
	return nil
}

var _ = implement((*builder).pushHistory)

// pushHistory shifts the rows of a history. An elementwise kernel writes the result,
// because a kernel that copies rows in place would depend on their order.
func (b *builder) pushHistory(o *backend.PushHistory) error {
	n, rows := uint64(o.History.Cols()), uint64(o.History.Rows())
	old := b.reshape(b.in(o.History), n, rows)
	shifted := b.vector(o.Value)
	if rows > 1 {
		shifted = b.concat(1, shifted, b.slice(old, 1, 0, rows-1))
	}
	if o.Skip != nil {
		shifted = b.where(b.set(o.Skip), old, shifted)
	} else {
		shifted = b.mul(shifted, b.constant(1))
	}
	b.out(o.History, shifted)
	return nil
}

// Range of a smoothing scale's exponent, see backend.SmoothScale.
const minSmooth, maxSmooth = -30, 30

var _ = implement((*builder).smoothScale)

func (b *builder) smoothScale(o *backend.SmoothScale) error {
	if o.Balanced && o.Exact {
		return b.unsupported("balanced smoothing scales that are not powers of two need float64: use powers of two")
	}
	n := o.WeightMax.Elems()
	smoothMax, channel, weight := b.window(o.SmoothMax, n), b.window(o.ChannelMax, n), b.vector(o.WeightMax)
	c, inv := b.smoothingScales(o, smoothMax, weight)
	b.out(o.C, c)
	b.out(o.InvC, inv)
	for _, f := range []struct {
		amax            value
		record          *backend.Tensor
		scale, scaleInv *backend.Tensor
		limit           float32
		pow2            bool
	}{
		{b.largest(b.mul(channel, inv)), o.HAmax, o.HScale, o.HScaleInv, o.HLimit, o.HPow2},
		{b.largest(b.mul(weight, c)), o.WAmax, o.WScale, o.WScaleInv, o.WLimit, o.WPow2},
	} {
		if f.record != nil {
			b.fold(f.record, f.amax)
		}
		if f.scale != nil {
			scale, scaleInv, _ := b.scaleFor(f.amax, f.limit, f.pow2)
			b.out(f.scale, scale)
			b.out(f.scaleInv, scaleInv)
		}
	}
	return nil
}

// smoothingScales returns the smoothing scales c and 1/c of n channels, {n, 1}.
func (b *builder) smoothingScales(o *backend.SmoothScale, smoothMax, weight value) (c, inv value) {
	one := b.constant(1)
	usable := b.usable(smoothMax)
	if o.Balanced {
		ratio := b.where(b.usable(weight), b.div(smoothMax, weight), b.constant(0))
		usable = b.usable(ratio)
	}
	if o.Exact {
		c = b.clamp(b.mul(smoothMax, b.constant(float32(math.Ldexp(1, o.Margin)))), minSmooth, maxSmooth)
		c = b.where(usable, c, one)
		return c, b.div(one, c)
	}
	n := smoothMax.elems()
	column := func(v value) value { return b.reshape(v, 1, n) }
	var fits value
	if o.Balanced {
		// 2^e ≥ √(F/k)·2^Margin is F ≤ 4^(e−Margin)·k, without a root that rounds.
		squares := b.powers(minSmooth, maxSmooth, func(e int) int { return 2 * (e - o.Margin) })
		fits = b.lessEqual(column(smoothMax), b.mul(squares, column(weight)))
	} else {
		fits = b.lessEqual(column(smoothMax), b.powers(minSmooth, maxSmooth, func(e int) int { return e - o.Margin }))
	}
	c, inv = b.smallestPower(fits, minSmooth, maxSmooth)
	return b.where(usable, b.reshape(c, n, 1), one), b.where(usable, b.reshape(inv, n, 1), one)
}
