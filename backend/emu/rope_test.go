package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestRope(t *testing.T) {
	const batch, seq, heads, dim, theta = 2, 7, 3, 10, 10000.0
	for _, position := range []int32{0, 5, 100_000} {
		tr := newTrial(t)
		x := tr.tensor("x", fp8.BF16, tr.noise(batch*seq*heads*dim), batch*seq, heads*dim)
		y := tr.tensor("y", fp8.F32, nil, x.Shape...)
		back := tr.tensor("back", fp8.F32, nil, x.Shape...)
		var control *backend.Tensor
		if position > 0 {
			control = tr.control(backend.Control{Position: position})
		}
		tr.program.Add(&backend.Rope{X: x, Control: control, Out: []backend.Cast{{Out: y}}, Seq: seq, HeadDim: dim, Theta: theta})
		tr.program.Add(&backend.Rope{X: y, Control: control, Out: []backend.Cast{{Out: back}}, Seq: seq, HeadDim: dim, Theta: theta, Inverse: true})
		d := tr.run()
		require.Len(t, d.rope, 1, "ops share one table")

		xs := d.values(x)
		want := make([]float64, len(xs))
		for r := range batch * seq {
			for h := range heads {
				at := r*heads*dim + h*dim
				for i := range dim / 2 {
					angle := float64(int(position)+r%seq) * math.Pow(theta, -2*float64(i)/dim)
					s, c := math.Sincos(angle)
					a, b := xs[at+i], xs[at+i+dim/2]
					want[at+i], want[at+i+dim/2] = a*c-b*s, b*c+a*s
				}
			}
		}
		near(t, want, d.values(y), 1e-7, "rotated")
		near(t, xs, d.values(back), 2e-7, "rotated back")
	}
}

func frequencies(headDim int, theta float64) []float64 {
	return (&backend.Rope{HeadDim: headDim, Theta: theta}).Frequencies()
}

// A moved window holds the values of a window that was never moved.
func TestAngleTableMoves(t *testing.T) {
	var d device
	table := d.angles(frequencies(8, 500), 4)
	require.Same(t, table, d.angles(frequencies(8, 500), 3))
	require.NotSame(t, table, d.angles(frequencies(8, 501), 4))
	require.NotSame(t, table, d.angles(frequencies(4, 500), 4))
	var whole device
	want := whole.angles(frequencies(8, 500), 200)
	want.cover(0, 200)
	for _, first := range []int{0, 2, 1, 3, 100, 97, 0} {
		table.cover(first, 3)
		for position := first; position < first+3; position++ {
			wantCos, wantSin := want.at(position)
			cos, sin := table.at(position)
			require.Equal(t, wantCos, cos)
			require.Equal(t, wantSin, sin)
		}
	}
	d.angles(frequencies(8, 500), 50).cover(0, 50)
	wantCos, _ := want.at(40)
	cos, _ := table.at(40)
	require.Equal(t, wantCos, cos)
}
