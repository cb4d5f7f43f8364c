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
	fourth             float64 // Σx⁴
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
	countZeros, zeros := b.zeroBlocks(o, &x)
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
			all.fourth += s.fourth
			all.amax = fp8.MaxAmax(all.amax, s.amax)
		}
		if all.noise != 0 { // for a zero tensor, noise and signal are 0
			all.noise /= all.signal
		}
		kurtosis := 0.0
		if all.signal != 0 {
			kurtosis = all.fourth / all.signal * elems / all.signal
		}
		out[backend.HealthSaturated] = float32(float64(all.saturated) / elems)
		out[backend.HealthFlushed] = float32(float64(all.flushed) / elems)
		out[backend.HealthNoise] = float32(all.noise)
		out[backend.HealthAmax] = all.amax
		out[backend.HealthRMS] = float32(math.Sqrt(all.signal / elems))
		out[backend.HealthKurtosis] = float32(kurtosis)
		countZeros()
		zero := 0
		for _, n := range zeros {
			zero += n
		}
		out[backend.HealthZeroBlocks] = float32(float64(zero) / float64(o.Codes.Scale.Elems()))
		out[backend.HealthOuter] = float32(outer)
		scaleStatistics(out, &scales, o.Codes.Scale.DType)
	}
}

// zeroBlocks returns a function that counts the blocks of zeros, and the counts that it
// writes, one for each row of blocks. It reads a block up to its first element that is not
// zero.
func (b *binder) zeroBlocks(o *backend.CastHealth, x *memory.Matrix) (count func(), counts []int) {
	rows, cols := o.X.Rows(), x.Cols
	height, width := cmp.Or(o.Codes.Block.Rows, rows), cmp.Or(o.Codes.Block.Cols, cols)
	down, _ := o.Codes.Block.ScaleShape(rows, cols)
	counts = make([]int, down)
	buffers := b.scratch(cols)
	return b.pool.Rows(down, cols, func(worker, i int) {
		counts[i] = 0
		for col := 0; col < cols; col += width {
			zero := true
			for row := i * height; zero && row < min(rows, (i+1)*height); row++ {
				zero = fp8.Amax(x.Piece(buffers[worker], row, col, min(width, cols-col))) == 0
			}
			if zero {
				counts[i]++
			}
		}
	}), counts
}

// add counts and sums elements that share a scale.
func (s *castSums) add(x []float32, codes []uint8, values *[256]float32, scale, limit float64) {
	if limit == 0 { // all values are 0: nothing saturates
		limit = math.Inf(1)
	}
	for i, v := range x {
		x, value := float64(v), float64(values[codes[i]])*scale // exact
		if x > limit || x < -limit {
			s.saturated++
		}
		if value == 0 && x != 0 && x == x {
			s.flushed++
		}
		d := x - value
		square := x * x // exact too
		s.signal += square
		s.fourth += float64(square * square)
		s.noise += float64(d * d)
	}
}

// scaleStatistics writes the statistics of all scales, in the format d, to CastHealth.Out.
// Logarithms are relative to the first scale that is not 0, so that equal scales have a
// deviation of exactly 0.
func scaleStatistics(out []float32, scales *memory.BlockScales, d fp8.DType) {
	lowest, highest := d.ScaleRange()
	all := max(len(scales.F32), len(scales.Codes))
	var smallest, largest, first, sum, squares float64
	low, high, n := 0, 0, 0
	for i := range all {
		scale := scales.Block(i)
		if scale <= lowest {
			low++
		}
		if scale >= highest {
			high++
		}
		if scale == 0 {
			continue
		}
		s := float64(scale)
		if n++; n == 1 {
			smallest, largest, first = s, s, math.Log2(s)
		}
		smallest, largest = min(smallest, s), max(largest, s) // NaN if s is
		d := math.Log2(s) - first
		sum += d
		squares += float64(d * d)
	}
	mean, square := sum/float64(max(1, n)), squares/float64(max(1, n))
	out[backend.HealthScaleInvMin], out[backend.HealthScaleInvMax] = float32(smallest), float32(largest)
	out[backend.HealthScaleInvLog2Mean] = float32(first + mean)
	out[backend.HealthScaleInvLog2Std] = float32(math.Sqrt(max(0, square-float64(mean*mean))))
	out[backend.HealthLowestScales] = float32(float64(low) / float64(all))
	out[backend.HealthHighestScales] = float32(float64(high) / float64(all))
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
