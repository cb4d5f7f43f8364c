package gaudi

import (
	"math"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// rope is elementwise arithmetic on rows as they lie, {HeadDim, heads, Seq, batch}:
// with the halves of a head exchanged,
//
//	x·(cos, cos) + exchanged x·(−sin, sin)
//
// which the compiler makes one kernel, casts included. SynapseAI has a kernel for
// it, rotary_pos_embedding, but PyTorch's bridge gives that its heads before its
// positions, and two transpositions cost more than they save.
func (b *builder) rope(o *backend.Rope) error {
	size, seq := uint64(o.HeadDim), uint64(o.Seq)
	x := b.reshape(b.in(o.X), size, uint64(o.X.Cols())/size, seq, uint64(o.X.Rows())/seq)
	exchanged := b.concat(0, b.slice(x, 0, size/2, size), b.slice(x, 0, 0, size/2))

	r := b.rows(o)
	if o.Control != nil {
		r = b.turn(b.start(o), r)
	}
	y := b.add(b.mul(b.cast(x, libsynapse.F32), r.cos), b.mul(b.cast(exchanged, libsynapse.F32), r.sin))
	b.store(o.Out, b.reshape(y, uint64(o.X.Cols()), uint64(o.X.Rows())))
	return nil
}

// A rotation is cosines and sines for the elements of a head, at some positions;
// those of the first half of a head have the sign that the formula above gives
// them. Sines and cosines of the device are nobody's business: large angles lose
// their bits there. They come from tables, computed in float64, and angles add.
type rotation struct{ cos, sin value }

// turn is the rotation by both angles.
func (b *builder) turn(x, y rotation) rotation {
	return rotation{
		cos: b.sub(b.mul(x.cos, y.cos), b.mul(x.sin, y.sin)), // the signs of the sines cancel
		sin: b.add(b.mul(x.sin, y.cos), b.mul(x.cos, y.sin)),
	}
}

// rotations is a table for n positions from 0 on, step apart, of the given sizes.
func (b *builder) rotations(o *backend.Rope, n, step int, sizes ...uint64) rotation {
	half := o.HeadDim / 2
	frequency := make([]float64, half)
	for i := range frequency {
		frequency[i] = math.Pow(o.Theta, -2*float64(i)/float64(o.HeadDim))
		if o.Inverse {
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

// rows is the rotation of every row of a sequence that starts at position 0, {HeadDim,
// 1, Seq, 1}. Of a long one it is the product of two tables, which would be
// megabytes as one.
func (b *builder) rows(o *backend.Rope) rotation {
	const base = digitBase
	size, seq := uint64(o.HeadDim), uint64(o.Seq)
	if o.Seq <= base {
		return b.rotations(o, o.Seq, 1, size, 1, seq, 1)
	}
	parts := (o.Seq + base - 1) / base
	r := b.turn(b.rotations(o, parts, base, size, 1, uint64(parts)), b.rotations(o, base, 1, size, base, 1))
	whole := func(v value) value {
		v = b.slice(b.reshape(v, size, uint64(parts*base)), 1, 0, seq)
		return b.reshape(v, size, 1, seq, 1)
	}
	return rotation{whole(r.cos), whole(r.sin)}
}

// start is the rotation of Control.Position, {HeadDim, 1, 1, 1}: those of its
// digits, looked up.
func (b *builder) start(o *backend.Rope) rotation {
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
			found = b.turn(r, found)
		}
		r = found
	}
	return r
}

// positionWord is the word of step.control that holds the position of the first row.
const positionWord = 8

// position is Control.Position as an F32 scalar, exact below 2^24.
func (b *builder) position(control *backend.Tensor) value {
	return b.cast(b.intWord(control, positionWord), libsynapse.F32)
}
