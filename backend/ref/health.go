package ref

import (
	"math"

	"octet/backend"
)

func (b *Backend) castHealth(o *backend.CastHealth) {
	codes := b.stored(o.Codes)
	scaleInv := b.readOr(o.Codes.Scale, 1, 1)[0]
	limit := float64(o.Codes.DType.ClipLimit()) * scaleInv
	var clipped, flushed float64
	for i, x := range b.read(o.X) {
		if math.Abs(x) > limit {
			clipped++
		}
		if x != 0 && codes[i] == 0 {
			flushed++
		}
	}
	n := float64(len(codes))
	b.store(o.Out, []float64{clipped / n, flushed / n, scaleInv})
}

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
