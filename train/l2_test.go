package train

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// neuron trains one SwiGLU neuron, f(x) = (w1·x)·silu(w2·x), by AdamW on emu. It returns |w1|/|w2|.
func neuron(t *testing.T, seed uint64, op backend.AdamW) float64 {
	t.Helper()
	const dim, samples, updates = 8, 24, 8000
	rng := rand.New(rand.NewPCG(seed, 1))
	vars := backend.NewVars()
	f32 := func(name string, n int) *backend.Tensor { return vars.Tensor(backend.Stash, name, fp8.F32, n) }
	op.Control = vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	op.Step, op.Skip = vars.Tensor(backend.Stash, "step", fp8.I32, 1), vars.Tensor(backend.Stash, "skip", fp8.I32, 1)
	op.Coef, op.Amaxes = f32("coef", 1), f32("amaxes", 3)
	grad, w, m, v := f32("grad", 2*dim), f32("w", 2*dim), f32("m", 2*dim), f32("v", 2*dim)
	op.Grad, op.Master, op.M1, op.M2 = []*backend.Tensor{grad}, []*backend.Tensor{w}, []*backend.Tensor{m}, []*backend.Tensor{v}
	op.MasterScale, op.M1Scale, op.M2Scale = make([]*backend.Tensor, 1), make([]*backend.Tensor, 1), make([]*backend.Tensor, 1)
	p := vars.Program("update")
	p.Add(&op)
	d, err := backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	defer d.Close()
	loaded, err := d.Load(p)
	require.NoError(t, err)
	write := func(x *backend.Tensor, values ...float32) {
		require.NoError(t, d.Write(x, fp8.AppendFloats(nil, values...)))
	}
	write(op.Coef, 1)

	// Inputs share a direction, and targets are large: the gates saturate, as the theorem asks.
	x, y := make([][dim]float64, samples), make([]float64, samples)
	for n := range x {
		for i := range x[n] {
			x[n][i] = 1 + 0.3*rng.NormFloat64()
		}
		y[n] = 300 + 10*rng.NormFloat64()
	}
	weights := make([]float32, 2*dim)
	for i := range weights { // w2 begins larger
		weights[i] = float32((0.1 + 0.9*float64(i/dim)) * (1 + 0.2*rng.NormFloat64()))
	}
	write(w, weights...)
	for step := range updates {
		gradient := make([]float64, 2*dim)
		for n := range x {
			u, z := 0.0, 0.0
			for i, xi := range x[n] {
				u += float64(weights[i]) * xi
				z += float64(weights[dim+i]) * xi
			}
			sigma := 1 / (1 + math.Exp(-z))
			outer := (u*z*sigma - y[n]) / samples
			for i, xi := range x[n] {
				gradient[i] += outer * z * sigma * xi
				gradient[dim+i] += outer * u * sigma * (1 + z*(1-sigma)) * xi
			}
		}
		list := make([]float32, len(gradient))
		for i, g := range gradient {
			list[i] = float32(g)
		}
		write(grad, list...)
		lr := float32(0.02 * (1 - float64(step)/updates))
		require.NoError(t, d.Write(op.Control, backend.Control{LR: lr}.AppendTo(nil)))
		require.NoError(t, d.Write(op.Step, []byte{byte(step + 1), byte((step + 1) >> 8), 0, 0}))
		require.NoError(t, loaded[0].Run(t.Context()))
		raw := make([]byte, w.Bytes())
		require.NoError(t, d.Read(w, raw))
		fp8.F32.Decode(weights, raw)
	}
	var squares [2]float64
	for i, x := range weights {
		squares[i/dim] += float64(x) * float64(x)
	}
	return math.Sqrt(squares[0] / squares[1])
}

// With coupled L2, w1 and w2 of a SwiGLU neuron whose gates saturate end with one norm, as the
// theorem of Fishman et al. says (arXiv 2409.12517). With decoupled weight decay they do not: its
// fixed points are others.
func TestCoupledDecayBalancesANeuron(t *testing.T) {
	for seed := range uint64(4) {
		common := backend.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
		coupled, decoupled := common, common
		coupled.L2, decoupled.WeightDecay = 0.1, 0.1
		require.InDelta(t, 1, neuron(t, seed, coupled), 0.01, "seed %d", seed)
		require.Greater(t, math.Abs(math.Log(neuron(t, seed, decoupled))), 0.05, "seed %d", seed)
	}
}
