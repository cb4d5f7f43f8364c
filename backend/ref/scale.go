package ref

import (
	"octet/backend"
	"octet/fp8"
)

var _ = implement((*Backend).quantize)

func (b *Backend) quantize(o *backend.Quantize) {
	x, cols := b.read(o.X), o.X.Cols()
	row, col := b.readOr(o.RowScale, o.X.Rows(), 1), b.readOr(o.ColScale, cols, 1)
	for i := range x {
		x[i] = b.fp32(b.fp32(x[i])*row[i/cols]) * col[i%cols]
	}
	b.cast(x, cols, o.Out)
}

// blockScales computes the block scales of a cast of x, stores the inverse scales and
// returns the scale of element i of Out. at maps indices of x to indices of Out.
func (b *Backend) blockScales(c backend.Cast, x []float64, at func(i int) int) func(i int) float64 {
	amax := make([]float64, c.ScaleInv.Elems())
	for i, v := range x {
		block := c.Out.ScaleIndex(at(i))
		amax[block] = maxAmax(amax[block], b.fp32(v))
	}
	choice := fp8.BlockScale{Elements: c.Out.DType, Stored: c.ScaleInv.DType, Rule: c.Rule, Limit: c.Limit, Outer: 1}
	if c.Scale != nil {
		choice.Outer = float32(b.stored(c.Scale)[0])
	}
	scale, inv := make([]float64, len(amax)), make([]float64, len(amax))
	for t, a := range amax {
		code, factor := choice.Choose(float32(a))
		scale[t], inv[t] = float64(factor), float64(c.ScaleInv.DType.Float32(code))
		if c.ScaleInv.DType == fp8.F32 && a-a == 0 {
			inv[t] = 1 / scale[t] // not rounded yet
		}
	}
	b.store(c.ScaleInv, inv)
	return func(i int) float64 { return scale[c.Out.ScaleIndex(i)] }
}

var _ = implement((*Backend).amax)

func (b *Backend) amax(o *backend.Amax) {
	out := make([]float64, o.Out.Elems())
	for i, x := range b.read(o.X) {
		j := i % o.X.Cols() % len(out)
		out[j] = maxAmax(out[j], x)
	}
	b.store(o.Out, out)
}

var _ = implement((*Backend).updateScale)

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
	factor := b.readOr(o.Factor, n, 1)
	for i := range a {
		if s, sInv, ok := o.Choose(float32(a[i]), float32(factor[i])); ok || !o.Keep {
			scale[i], inv[i] = float64(s), float64(sInv)
		}
	}
	b.store(o.Scale, scale)
	b.store(o.ScaleInv, inv)
}

var _ = implement((*Backend).pushHistory)

func (b *Backend) pushHistory(o *backend.PushHistory) {
	if b.set(o.Skip) {
		return
	}
	history, n := b.stored(o.History), o.Value.Elems()
	copy(history[n:], history)
	copy(history, b.read(o.Value))
	b.store(o.History, history)
}

var _ = implement((*Backend).fill)

func (b *Backend) fill(o *backend.Fill) {
	b.store(o.Out, b.readOr(nil, o.Out.Elems(), float64(o.Value)))
}
