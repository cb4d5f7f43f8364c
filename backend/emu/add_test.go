package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestAdd(t *testing.T) {
	tr := newTrial(t)
	a := tr.tensor("a", fp8.F32, []float32{1, 2, 3}, 5, 3000)
	b := tr.tensor("b", fp8.BF16, []float32{10, 20}, 5, 3000)
	out := tr.tensor("out", fp8.F32, nil, 5, 3000)
	tr.program.Add(&backend.Add{A: a, B: b, Out: []backend.Cast{{Out: out}}})
	d := tr.run()
	x, y := d.values(a), d.values(b)
	for i, v := range d.values(out) {
		require.Equal(t, x[i]+y[i], v)
	}
}
