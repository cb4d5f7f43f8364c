package emu

import (
	"cmp"
	"math"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// The ops of telemetry, in plain Go because they run once in many steps.

// castSums are the counts and sums of a cast over some rows.
type castSums struct {
	saturated, flushed int64
	signal, noise      float64 // Σx², Σ(x - value)²
	amax               float32
}

var _ = implement((*binder).castHealth, "Codes")

// castHealth sums the rows of each task, then the tasks in order, so that the bits do
// not depend on the number of workers.
func (b *binder) castHealth(o *backend.CastHealth) func() {
	x, codes, out := b.matrix(o.X), b.matrix(o.Codes), b.f32(o.Out)
	scales := b.blockScales(o.Codes)
	values := o.Codes.DType.Table()
	limit := float64(o.Codes.DType.ClipLimit())
	rows, cols := o.X.Rows(), x.Cols
	width := cmp.Or(o.Codes.Block.Cols, cols)
	buffers, unpacked := b.scratch(cols), make([][]uint8, b.pool.Size())
	for w := range unpacked {
		unpacked[w] = make([]uint8, cols)
	}
	count, each := pool.RowTasks(rows, cols)
	sums := make([]castSums, count)
	outer := 1.0
	task := func(worker, task int) {
		var s castSums
		for row := task * each; row < min(rows, (task+1)*each); row++ {
			line := x.Row(buffers[worker], row)
			s.amax = fp8.MaxAmax(s.amax, fp8.Amax(line))
			stored := codes.Codes(unpacked[worker], row, 0, cols)
			block := o.Codes.ScaleIndex(row * cols)
			for col := 0; col < cols; col += width {
				n, scale := min(width, cols-col), float64(scales.Block(block))*outer
				block++
				s.add(line[col:col+n], stored[col:col+n], values, scale, limit*scale)
			}
		}
		sums[task] = s
	}
	elems := float64(o.X.Elems())
	return func() {
		if o.Codes.Outer != nil {
			outer = float64(codes.ScaleInv())
		}
		b.pool.Run(count, task)
		var all castSums
		for _, s := range sums {
			all.saturated += s.saturated
			all.flushed += s.flushed
			all.signal += s.signal
			all.noise += s.noise
			all.amax = fp8.MaxAmax(all.amax, s.amax)
		}
		if all.noise != 0 { // for a zero tensor, noise and signal are 0
			all.noise /= all.signal
		}
		out[backend.HealthSaturated] = float32(float64(all.saturated) / elems)
		out[backend.HealthFlushed] = float32(float64(all.flushed) / elems)
		out[backend.HealthNoise] = float32(all.noise)
		out[backend.HealthAmax] = all.amax
		scaleStatistics(out, &scales)
	}
}

// add counts and sums elements that share a scale.
func (s *castSums) add(x []float32, codes []uint8, values *[256]float32, scale, limit float64) {
	for i, v := range x {
		x, value := float64(v), float64(values[codes[i]])
		if x > limit || x < -limit {
			s.saturated++
		}
		if value == 0 && x != 0 && x == x {
			s.flushed++
		}
		d := x - value*scale // the product is exact
		s.signal += x * x    // exact too
		s.noise += float64(d * d)
	}
}

// scaleStatistics writes the statistics of all scales to CastHealth.Out. Logarithms are
// relative to the first scale, so that equal scales have a deviation of exactly 0.
func scaleStatistics(out []float32, scales *memory.BlockScales) {
	n := max(len(scales.F32), len(scales.Codes))
	first := math.Log2(float64(scales.Block(0)))
	lowest, largest := math.Inf(1), 0.0
	var sum, squares float64
	for i := range n {
		s := float64(scales.Block(i))
		lowest, largest = min(lowest, s), max(largest, s) // NaN if s is
		d := math.Log2(s) - first
		sum += d
		squares += float64(d * d)
	}
	mean := sum / float64(n)
	out[backend.HealthScaleInvMin], out[backend.HealthScaleInvMax] = float32(lowest), float32(largest)
	out[backend.HealthScaleInvLog2Mean] = float32(first + mean)
	out[backend.HealthScaleInvLog2Std] = float32(math.Sqrt(max(0, squares/float64(n)-float64(mean*mean))))
}

var _ = implement((*binder).rowCosine)

// rowCosine sums each row in float64, in order.
func (b *binder) rowCosine(o *backend.RowCosine) func() {
	x, y, out := b.matrix(o.A), b.matrix(o.B), b.f32(o.Out)
	cols, ld := x.Cols, o.Out.LD
	left, right := b.scratch(cols), b.scratch(cols)
	return b.pool.Rows(x.Rows, cols, func(worker, i int) {
		u, v := x.Row(left[worker], i), y.Row(right[worker], i)
		var dot, uu, vv float64
		for j, a := range u {
			a, b := float64(a), float64(v[j])
			dot += a * b
			uu += a * a
			vv += b * b
		}
		cosine := 0.0
		if uu != 0 && vv != 0 {
			cosine = dot / (math.Sqrt(uu) * math.Sqrt(vv))
		}
		out[i], out[ld+i], out[2*ld+i] = float32(cosine), float32(math.Sqrt(uu)), float32(math.Sqrt(vv))
	})
}
