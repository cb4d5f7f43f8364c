package ref

import (
	"math"

	"octet/backend"
)

var _ = implement((*Backend).castHealth)

func (b *Backend) castHealth(o *backend.CastHealth) {
	codes, values, scales := b.stored(o.Codes), b.read(o.Codes), b.stored(o.Codes.Scale)
	limit := float64(o.Codes.DType.ClipLimit())
	var saturated, flushed, signal, noise, amax float64
	for i, x := range b.read(o.X) {
		if math.Abs(x) > limit*scales[o.Codes.ScaleIndex(i)] {
			saturated++
		}
		if codes[i] == 0 && x != 0 && !math.IsNaN(x) {
			flushed++
		}
		signal += x * x
		noise += (x - values[i]) * (x - values[i])
		amax = maxAmax(amax, x)
	}
	n := float64(len(codes))
	if noise > 0 || math.IsNaN(noise) {
		noise /= signal
	}
	out := make([]float64, backend.HealthFields)
	out[backend.HealthSaturated], out[backend.HealthFlushed] = saturated/n, flushed/n
	out[backend.HealthNoise], out[backend.HealthAmax] = noise, amax
	smallest, largest, mean, square := math.Inf(1), 0.0, 0.0, 0.0
	for _, s := range scales {
		smallest, largest = min(smallest, s), max(largest, s) // NaN if any s is NaN
		mean += math.Log2(s) / float64(len(scales))
	}
	for _, s := range scales {
		d := math.Log2(s) - mean
		square += d * d / float64(len(scales))
	}
	out[backend.HealthScaleInvMin], out[backend.HealthScaleInvMax] = smallest, largest
	out[backend.HealthScaleInvLog2Mean], out[backend.HealthScaleInvLog2Std] = mean, math.Sqrt(square)
	b.store(o.Out, out)
}

var _ = implement((*Backend).rowCosine)

func (b *Backend) rowCosine(o *backend.RowCosine) {
	x, y := b.read(o.A), b.read(o.B)
	rows, cols := o.A.Rows(), o.A.Cols()
	out := make([]float64, 3*rows)
	for i := range rows {
		var dot, xx, yy float64
		for j := i * cols; j < (i+1)*cols; j++ {
			dot += x[j] * y[j]
			xx += x[j] * x[j]
			yy += y[j] * y[j]
		}
		out[rows+i], out[2*rows+i] = math.Sqrt(xx), math.Sqrt(yy)
		if xx != 0 && yy != 0 {
			out[i] = dot / (out[rows+i] * out[2*rows+i])
		}
	}
	b.store(o.Out, out)
}
