package gaudi

import (
	"math"

	"octet/backend"
)

var _ = implement((*builder).hadamard)

// hadamard writes the additions of backend.Hadamard, a pass over {stride, 2, pairs} for each
// stride. Their order gives the bits of other backends, which a GEMM by H would not.
func (b *builder) hadamard(o *backend.Hadamard) error {
	if o.Control != nil {
		return b.unsupported("signs from the seed: give it fixed signs (in a recipe, signs = %q)", "te")
	}
	unit, size := uint64(1), uint64(o.Size) // unit: distance of the elements of a group
	if o.Columns {
		unit = uint64(o.X.Cols())
	}
	signs := make([]float32, size)
	for i := range signs {
		signs[i] = o.SignOf(i, 0)
	}
	x, elems := b.wide(o.X), uint64(o.X.Elems())
	x = b.mul(b.reshape(x, unit, size, elems/(unit*size)), b.table(signs, 1, size, 1))
	for stride := unit; stride < unit*size; stride *= 2 {
		x = b.reshape(x, stride, 2, elems/(2*stride))
		first, second := b.slice(x, 1, 0, 1), b.slice(x, 1, 1, 2)
		x = b.concat(1, b.add(first, second), b.sub(first, second))
	}
	x = b.mul(x, b.constant(float32(1/math.Sqrt(float64(size)))))
	b.store(o.Out, b.reshape(x, uint64(o.X.Cols()), uint64(o.X.Rows())))
	return nil
}
