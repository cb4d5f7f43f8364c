package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/simd"
)

// rotatedElems is the number of elements that a task rotates: with the codes that it stores
// they fit the first-level cache.
const rotatedElems = 4096

var _ = implement((*binder).hadamard)

// hadamard rotates whole groups at a time: a part of a row, or, along columns, Size rows of
// some columns.
func (b *binder) hadamard(o *backend.Hadamard) func() {
	x, words, result := b.matrix(o.X), b.i32(o.Control), b.output(o.Out)
	height := 1 // rows of a task
	if o.Columns {
		height = o.Size
	}
	width := rotatedElems / height
	buffers, scale := b.scratch(rotatedElems), float32(1/math.Sqrt(float64(o.Size)))
	signs := make([]float32, o.Size)
	run := b.pool.Blocks(x.Rows/height, x.Cols, 1, width, func(worker, group, col, n int) {
		buffer := buffers[worker][:height*n]
		for i := range height {
			x.Load(buffer[i*n:(i+1)*n], group*height+i, col)
		}
		unit := 1 // between the elements of a group
		if o.Columns {
			unit = n
		}
		rotate(buffer, unit, signs)
		simd.Scale(buffer, scale)
		for i := range height {
			result.Store(worker, group*height+i, col, buffer[i*n:(i+1)*n])
		}
	})
	return cast.Storing(func() {
		seed := backend.ControlFrom(words).Seed
		for i := range signs {
			signs[i] = o.SignOf(i, seed)
		}
		run()
	}, result)
}

// rotate multiplies each group of x by its signs and then by H, see backend.Hadamard.
// Element i of a group is unit elements, of as many groups.
func rotate(x []float32, unit int, signs []float32) {
	for i := range len(x) / unit {
		if signs[i%len(signs)] < 0 {
			simd.Scale(x[i*unit:(i+1)*unit], -1)
		}
	}
	for stride := unit; stride < unit*len(signs); stride *= 2 {
		for from := 0; from < len(x); from += 2 * stride {
			simd.Butterfly(x[from:from+stride], x[from+stride:from+2*stride])
		}
	}
}
