package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

var _ = implement((*builder).rope)

// rope writes elementwise arithmetic on {HeadDim, heads, Seq, batch}, the rows' own
// layout. With the halves of a head exchanged,
//
//	x·(cos, cos) + exchanged x·(−sin, sin)
//
// which the compiler fuses into one kernel with the casts. SynapseAI has a kernel
// rotary_pos_embedding, but PyTorch's bridge passes it heads before positions, and two
// transpositions would cost more than it saves.
func (b *builder) rope(o *backend.Rope) error {
	size, seq := uint64(o.HeadDim), uint64(o.Seq)
	x := b.reshape(b.in(o.X), size, uint64(o.X.Cols())/size, seq, uint64(o.X.Rows())/seq)
	exchanged := b.concat(0, b.slice(x, 0, size/2, size), b.slice(x, 0, 0, size/2))

	r := b.rowRotations(o)
	if o.Control != nil {
		r = b.compose(b.startRotation(o), r)
	}
	y := b.add(b.mul(b.cast(x, libsynapse.F32), r.cos), b.mul(b.cast(exchanged, libsynapse.F32), r.sin))
	b.store(o.Out, b.reshape(y, uint64(o.X.Cols()), uint64(o.X.Rows())))
	return nil
}

// A rotation holds the cosines and sines for the elements of a head, at some positions;
// the sines of a head's first half have the sign of the formula above. They come from
// tables computed in float64, because the device's sin and cos lose bits for large
// angles. Angles are added by compose.
type rotation struct{ cos, sin value }

// compose returns the rotation by the sum of both angles.
func (b *builder) compose(x, y rotation) rotation {
	return rotation{
		cos: b.sub(b.mul(x.cos, y.cos), b.mul(x.sin, y.sin)), // the signs of the sines cancel
		sin: b.add(b.mul(x.sin, y.cos), b.mul(x.cos, y.sin)),
	}
}

// rotations returns a table of the given sizes for n positions from 0, step apart.
func (b *builder) rotations(o *backend.Rope, n, step int, sizes ...uint64) rotation {
	half, frequency := o.HeadDim/2, o.Frequencies()
	if o.Inverse {
		for i := range frequency {
			frequency[i] = -frequency[i]
		}
	}
	cosines, sines := make([]float32, n*o.HeadDim), make([]float32, n*o.HeadDim)
	for p := range n {
		at := p * o.HeadDim
		for i, f := range frequency {
			sin, cos := math.Sincos(float64(p*step) * f)
			cosines[at+i], cosines[at+half+i] = float32(cos), float32(cos)
			sines[at+i], sines[at+half+i] = float32(-sin), float32(sin)
		}
	}
	return rotation{b.table(cosines, sizes...), b.table(sines, sizes...)}
}

// rowRotations returns the rotation of every row of a sequence that starts at position 0,
// {HeadDim, 1, Seq, 1}. A long sequence composes two small tables instead of one of
// megabytes.
func (b *builder) rowRotations(o *backend.Rope) rotation {
	const base = digitBase
	size, seq := uint64(o.HeadDim), uint64(o.Seq)
	if o.Seq <= base {
		return b.rotations(o, o.Seq, 1, size, 1, seq, 1)
	}
	blocks := (o.Seq + base - 1) / base
	r := b.compose(b.rotations(o, blocks, base, size, 1, uint64(blocks)), b.rotations(o, base, 1, size, base, 1))
	whole := func(v value) value {
		v = b.slice(b.reshape(v, size, uint64(blocks*base)), 1, 0, seq)
		return b.reshape(v, size, 1, seq, 1)
	}
	return rotation{whole(r.cos), whole(r.sin)}
}

// startRotation returns the rotation of Control.Position, {HeadDim, 1, 1, 1}, composed
// from the looked-up rotations of its digits.
func (b *builder) startRotation(o *backend.Rope) rotation {
	size := uint64(o.HeadDim)
	digit := b.reshape(b.digits(b.position(o.Control)), digits)
	index := b.cast(digit, libsynapse.I32)
	var r rotation
	for d, unit := 0, 1; d < digits; d, unit = d+1, unit*digitBase {
		list := b.slice(index, 0, uint64(d), uint64(d+1))
		table := b.rotations(o, digitBase, unit, size, digitBase)
		found := rotation{
			b.reshape(b.gather(table.cos, list), size, 1, 1, 1),
			b.reshape(b.gather(table.sin, list), size, 1, 1, 1),
		}
		if d > 0 {
			found = b.compose(r, found)
		}
		r = found
	}
	return r
}

// positionWord is the word of step.control that holds the position of the first row.
const positionWord = 8

// position returns Control.Position as an F32 scalar, exact below 2^24.
func (b *builder) position(control *backend.Tensor) value {
	return b.cast(b.intWord(control, positionWord), libsynapse.F32)
}
