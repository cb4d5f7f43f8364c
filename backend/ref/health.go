package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

var _ = implement((*Backend).castHealth)

func (b *Backend) castHealth(o *backend.CastHealth) {
	codes, values, scales := b.stored(o.Codes), b.read(o.Codes), b.stored(o.Codes.Scale)
	outer := 1.0
	if o.Codes.Outer != nil {
		outer = b.stored(o.Codes.Outer)[0]
	}
	limit := float64(o.Codes.DType.ClipLimit())
	var saturated, flushed, signal, fourth, noise, amax, zeros float64
	blocks := make([]float64, len(scales)) // amaxes
	for i, x := range b.read(o.X) {
		block := o.Codes.ScaleIndex(i)
		scale := scales[block] * outer
		if scale != 0 && math.Abs(x) > limit*scale {
			saturated++
		}
		if (codes[i] == 0 || scale == 0) && x != 0 && !math.IsNaN(x) {
			flushed++
		}
		signal += x * x
		fourth += x * x * x * x
		noise += (x - values[i]) * (x - values[i])
		amax, blocks[block] = maxAmax(amax, x), maxAmax(blocks[block], x)
	}
	n := float64(len(codes))
	if noise > 0 || math.IsNaN(noise) {
		noise /= signal
	}
	for _, a := range blocks {
		if a == 0 {
			zeros++
		}
	}
	out := make([]float64, backend.HealthFields)
	out[backend.HealthSaturated], out[backend.HealthFlushed] = saturated/n, flushed/n
	out[backend.HealthNoise], out[backend.HealthAmax] = noise, amax
	out[backend.HealthRMS] = math.Sqrt(signal / n)
	if signal != 0 {
		out[backend.HealthKurtosis] = fourth / signal * n / signal
	}
	out[backend.HealthZeroBlocks], out[backend.HealthOuter] = zeros/float64(len(scales)), outer
	scaleStatistics(out, scales, o.Codes.Scale.DType)
	b.store(o.Out, out)
}

// scaleStatistics writes the statistics of scales in a format to CastHealth.Out.
func scaleStatistics(out, scales []float64, d fp8.DType) {
	lowest, highest := d.ScaleRange()
	smallest, largest, sum, squares := math.Inf(1), 0.0, 0.0, 0.0
	var low, high, n float64
	for _, s := range scales {
		if s <= float64(lowest) {
			low++
		}
		if s >= float64(highest) {
			high++
		}
		if s != 0 {
			smallest, largest = min(smallest, s), max(largest, s) // NaN if any s is NaN
			sum += math.Log2(s)
			n++
		}
	}
	all := float64(len(scales))
	out[backend.HealthLowestScales], out[backend.HealthHighestScales] = low/all, high/all
	if n == 0 {
		return
	}
	for _, s := range scales {
		if s != 0 {
			d := math.Log2(s) - sum/n
			squares += d * d
		}
	}
	out[backend.HealthScaleInvMin], out[backend.HealthScaleInvMax] = smallest, largest
	out[backend.HealthScaleInvLog2Mean], out[backend.HealthScaleInvLog2Std] = sum/n, math.Sqrt(squares/n)
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
