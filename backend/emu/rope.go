package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).rope)

// rope rotates whole rows at a time by a table of angles.
func (b *binder) rope(o *backend.Rope) func() {
	x, words := b.matrix(o.X), b.i32(o.Control)
	result := b.output(o.Out)
	table := b.angles(o.Frequencies(), o.Seq)
	sign := float32(1)
	if o.Inverse {
		sign = -1
	}
	var position int
	b.pool.Reserve(2 * x.Cols)
	run := b.pool.Rows(x.Rows, x.Cols, func(worker, r int) {
		scratch := b.pool.Scratch[worker]
		buffer, out := scratch[:x.Cols], scratch[x.Cols:2*x.Cols]
		in := x.Row(buffer, r)
		cos, sin := table.at(position + r%o.Seq)
		simd.Rotate(out, in, cos, sin, sign)
		result.Store(worker, r, 0, out)
	})
	return cast.Storing(func() {
		position = int(backend.ControlFrom(words).Position)
		table.cover(position, o.Seq)
		run()
	}, result)
}

// angleTable holds the cosines and sines of a window of positions, for one list of
// frequencies. All Rope ops of a device with these share it: training fills it once;
// decoding, where each run has another position, at most once per run instead of once
// per layer.
//
// Angles are float64: in float32 the product of position and frequency would be off by
// a radian at positions of some millions.
type angleTable struct {
	frequency []float64 // of each pair of a head
	positions int       // length of the window
	first     int
	filled    bool
	cos, sin  []float32 // [positions, len(frequency)]
}

// angles returns the table of some frequencies, with a window of at least n positions. It
// makes or grows the table as needed.
func (d *device) angles(frequency []float64, n int) *angleTable {
	at := slices.IndexFunc(d.rope, func(t *angleTable) bool { return slices.Equal(t.frequency, frequency) })
	if at < 0 {
		at = len(d.rope)
		d.rope = append(d.rope, &angleTable{frequency: frequency})
	}
	t := d.rope[at]
	if n > t.positions {
		t.positions, t.filled = n, false
		t.cos, t.sin = make([]float32, n*len(frequency)), make([]float32, n*len(frequency))
	}
	return t
}

// cover makes the window hold positions [first, first+n), moving it if needed.
func (t *angleTable) cover(first, n int) {
	if t.filled && first >= t.first && first+n <= t.first+t.positions {
		return
	}
	t.first, t.filled = first, true
	half := len(t.frequency)
	for i, frequency := range t.frequency {
		for row := range t.positions {
			s, c := math.Sincos(float64(first+row) * frequency)
			t.cos[row*half+i], t.sin[row*half+i] = float32(c), float32(s)
		}
	}
}

// at returns the cosines and sines of a position in the window.
func (t *angleTable) at(position int) (cos, sin []float32) {
	half := len(t.frequency)
	from := (position - t.first) * half
	return t.cos[from : from+half], t.sin[from : from+half]
}
