package ref

import (
	"math"

	"octet/backend"
)

var _ = implement((*Backend).hadamard)

func (b *Backend) hadamard(o *backend.Hadamard) {
	x, cols := b.read(o.X), o.X.Cols()
	step, along := 1, func(i int) int { return i % cols } // between the elements of a group; position of element i
	if o.Columns {
		step, along = cols, func(i int) int { return i / cols }
	}
	seed := b.control(o.Control).Seed
	for i := range x {
		x[i] *= float64(o.SignOf(along(i)%o.Size, seed))
	}
	for stride := 1; stride < o.Size; stride *= 2 {
		for i := range x {
			if along(i)/stride%2 == 0 {
				j := i + stride*step
				x[i], x[j] = b.fp32(x[i]+x[j]), b.fp32(x[i]-x[j])
			}
		}
	}
	scale := b.fp32(1 / math.Sqrt(float64(o.Size)))
	for i := range x {
		x[i] *= scale
	}
	b.cast(x, cols, o.Out)
}
