package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestActivation(t *testing.T) {
	gelu := func(x float64) float64 { return x * 0.5 * (1 + math.Erf(x/math.Sqrt2)) }
	relu := func(x float64) float64 { return max(x, 0) }
	for kind, f := range []func(float64) float64{backend.GELU: gelu, backend.ReLU: relu} {
		kind := backend.ActivationKind(kind)
		tr := newTrial(t)
		x := tr.tensor("x", fp8.BF16, tr.noise(9*3000), 9, 3000)
		dy := tr.tensor("dy", fp8.F32, tr.noise(9*3000), 9, 3000)
		y, dx := tr.tensor("y", fp8.F32, nil, 9, 3000), tr.tensor("dx", fp8.F32, nil, 9, 3000)
		tr.program.Add(&backend.Activation{X: x, Out: []backend.Cast{{Out: y}}, Kind: kind})
		tr.program.Add(&backend.ActivationGrad{DOut: dy, X: x, DX: []backend.Cast{{Out: dx}}, Kind: kind})
		d := tr.run()
		xs, dys := d.values(x), d.values(dy)
		wantY, wantDX := make([]float64, len(xs)), make([]float64, len(xs))
		for i, v := range xs {
			const step = 1e-6 // no value but 0 is as close to the bend of ReLU
			wantY[i] = f(v)
			wantDX[i] = dys[i] * (f(v+step) - f(v-step)) / (2 * step)
		}
		near(t, wantY, d.values(y), 1e-7, "y")
		near(t, wantDX, d.values(dx), 1e-7, "dx")
	}
}

// A kind without a kernel is refused, not computed as another one.
func TestUnknownActivation(t *testing.T) {
	tr := newTrial(t)
	x, y := tr.tensor("x", fp8.F32, nil, 2, 8), tr.tensor("y", fp8.F32, nil, 2, 8)
	op := &backend.Activation{X: x, Out: []backend.Cast{{Out: y}}}
	tr.program.Add(op)
	d, _ := tr.load(1)
	op.Kind = 9 // after the check of Add
	_, err := d.Load(tr.program)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "no kernel for activation 9")
}
