package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func (b *Backend) quantize(o *backend.Quantize) {
	x, cols := b.read(o.X), o.X.Cols()
	factor := b.readOr(o.ColScale, cols, 1)
	for i := range x {
		x[i] = b.fp32(x[i]) * factor[i%cols]
	}
	b.cast(x, cols, o.Out)
}

func (b *Backend) amax(o *backend.Amax) {
	out := make([]float64, o.Out.Elems())
	for i, x := range b.read(o.X) {
		j := i % o.X.Cols() % len(out)
		out[j] = maxAmax(out[j], x)
	}
	b.store(o.Out, out)
}

func (b *Backend) updateScale(o *backend.UpdateScale) {
	n := o.Scale.Elems()
	a := make([]float64, n)
	for i, x := range b.read(o.History) {
		a[i%n] = maxAmax(a[i%n], x)
	}
	b.fold(o.Seen, a...)
	if b.set(o.Skip) {
		return
	}
	scale, inv := b.stored(o.Scale), b.stored(o.ScaleInv)
	for i := range a {
		s, ok := fp8.ScaleFor(float32(a[i]), o.Limit, o.Pow2)
		if ok || !o.Keep {
			scale[i], inv[i] = float64(s), 1/float64(s)
		}
	}
	b.store(o.Scale, scale)
	b.store(o.ScaleInv, inv)
}

func (b *Backend) pushHistory(o *backend.PushHistory) {
	if b.set(o.Skip) {
		return
	}
	history, n := b.stored(o.History), o.Value.Elems()
	copy(history[n:], history)
	copy(history, b.read(o.Value))
	b.store(o.History, history)
}

func (b *Backend) fill(o *backend.Fill) {
	b.store(o.Out, b.readOr(nil, o.Out.Elems(), float64(o.Value)))
}

func (b *Backend) smoothScale(o *backend.SmoothScale) {
	k := b.read(o.WeightMax)
	m := make([]float64, len(k))
	for i, x := range b.read(o.ChannelMax) {
		m[i%len(m)] = maxAmax(m[i%len(m)], x)
	}
	c, inv := make([]float64, len(k)), make([]float64, len(k))
	var top, hMax, wMax float64
	for i := range k {
		c[i] = 1
		if finite(m[i]) && finite(k[i]) && m[i] > 0 && k[i] > 0 {
			c[i] = math.Ldexp(1, max(-30, min(30, ceilHalfLog2(m[i]/k[i]))))
		}
		inv[i] = 1 / c[i]
		top = maxAmax(top, m[i])
		hMax = maxAmax(hMax, b.fp32(m[i]*inv[i]))
		wMax = maxAmax(wMax, b.fp32(k[i]*c[i]))
	}
	h, _ := fp8.ScaleFor(float32(hMax), o.HLimit, true)
	w, _ := fp8.ScaleFor(float32(wMax), o.WLimit, true)

	b.store(o.C, c)
	b.store(o.InvC, inv)
	b.store(o.HScale, []float64{float64(h)})
	b.store(o.HScaleInv, []float64{1 / float64(h)})
	b.store(o.WScale, []float64{float64(w)})
	b.store(o.WScaleInv, []float64{1 / float64(w)})
	b.fold(o.Seen, m...)
	b.fold(o.Amax, top)
}

// ceilHalfLog2 is ⌈log2 √q⌉ without rounding: the least e with 4^e ≥ q.
func ceilHalfLog2(q float64) int {
	fraction, exponent := math.Frexp(q) // 2^(exponent-1) ≤ q < 2^exponent
	if fraction == 0.5 {
		exponent--
	}
	return int(math.Ceil(float64(exponent) / 2))
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
