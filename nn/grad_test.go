package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// accumulator runs the wgrad of one linear layer on emu, whose x is the identity: dW = dyᵀ.
type accumulator struct {
	t           *testing.T
	dev         backend.Backend
	first, rest backend.Executable
	grad, dy    *backend.Tensor
}

func newAccumulator(t *testing.T, d fp8.DType, in, out int) *accumulator {
	t.Helper()
	r, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	r.Optimizer.Grad = d
	vars := backend.NewVars()
	b, err := NewBase(r, vars)
	require.NoError(t, err)
	l := b.Linear("linear", in, out, 1)
	x, dy := b.Slot("linear.input", l.Inputs()...), b.gradSlot(l)
	require.NoError(t, b.Build())
	b.DeclareGrads()
	a := &accumulator{t: t, grad: l.weight.Grad}
	xs := vars.Tensor(backend.Input, "x", fp8.F32, in, in)
	a.dy = vars.Tensor(backend.Input, "dy", fp8.F32, in, out)
	var programs []*backend.Program
	for _, first := range []bool{true, false} {
		p := vars.Program(fmt.Sprintf("micro.first-%v", first))
		pass := b.Pass(p, Train, Shape{Batch: 1, Seq: in})
		pass.First, pass.Last = first, false
		l.Wgrad(pass, pass.castStored(x, xs), pass.castStored(dy, a.dy), nil)
		require.NoError(t, p.Err())
		programs = append(programs, p)
	}
	a.dev, err = backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.dev.Close()) })
	loaded, err := a.dev.Load(programs...)
	require.NoError(t, err)
	a.first, a.rest = loaded[0], loaded[1]
	identity := make([]float32, in*in)
	for i := range in {
		identity[i*in+i] = 1
	}
	require.NoError(t, a.dev.Write(xs, fp8.AppendFloats(nil, identity...)))
	return a
}

// add runs micro-batch i, whose gradient [out, in] is g.
func (a *accumulator) add(i int, g []float32) {
	in, out := a.grad.Cols(), a.grad.Rows()
	dy := make([]float32, len(g))
	for row := range in {
		for col := range out {
			dy[row*out+col] = g[col*in+row]
		}
	}
	require.NoError(a.t, a.dev.Write(a.dy, fp8.AppendFloats(nil, dy...)))
	run := a.rest
	if i == 0 {
		run = a.first
	}
	require.NoError(a.t, run.Run(a.t.Context()))
}

// sum returns the stored gradient.
func (a *accumulator) sum() []float64 {
	read := func(t *backend.Tensor) []float32 {
		raw, x := make([]byte, t.Bytes()), make([]float32, t.Elems())
		require.NoError(a.t, a.dev.Read(t, raw))
		t.DType.Decode(x, raw)
		return x
	}
	values, scale := make([]float64, a.grad.Elems()), 1.
	if a.grad.Scale != nil {
		scale = float64(read(a.grad.Scale)[0])
	}
	for i, x := range read(a.grad) {
		values[i] = float64(x) * scale
	}
	return values
}

// onGrid returns x·scale rounded to E4M3, to nearest even or stochastically, and divided by scale.
func onGrid(x, scale float64, random func() float64) float64 {
	y := math.Abs(x * scale)
	exponent := -6
	if y >= 0x1p-6 {
		exponent = math.Ilogb(y)
	}
	step := math.Ldexp(1, exponent-3)
	if random == nil {
		y = math.RoundToEven(y/step) * step
	} else {
		y = math.Floor(y/step+random()) * step
	}
	return math.Copysign(min(y, 448), x) / scale
}

// grads returns the gradients of n micro-batches, of which a half is common to all and a half is
// noise, as multiples of 2^-10: sums in FP32 are exact.
func grads(rng *rand.Rand, n, elems int) [][]float32 {
	signal, list := make([]float64, elems), make([][]float32, n)
	for i := range signal {
		signal[i] = rng.NormFloat64()
	}
	for k := range list {
		list[k] = make([]float32, elems)
		for i, s := range signal {
			list[k][i] = float32(math.Round(0x1p10*(s+rng.NormFloat64())) * 0x1p-10)
		}
	}
	return list
}

// lossOf returns the error of got, relative to exact, and the share of exact that it lacks.
func lossOf(got, exact []float64) (relative, lost float64) {
	difference, dot, square := 0., 0., 0.
	for i, x := range exact {
		difference += (got[i] - x) * (got[i] - x)
		dot += got[i] * x
		square += x * x
	}
	return math.Sqrt(difference / square), 1 - dot/square
}

// Gradients in E4M3 hold a sum of up to 16 micro-batches with an error near that of a cast; of 64,
// the control, nearest rounding loses a large share, which stochastic rounding keeps with a larger
// error, and BF16 keeps. The stored codes are those of a float64 model. A scale that is not chosen
// again in each micro-batch, the other control, saturates.
func TestAccumulationInFP8(t *testing.T) {
	const in, out = 64, 256
	rng := rand.New(rand.NewPCG(3, 4))
	list := grads(rng, 64, in*out)
	e4m3, bf16 := newAccumulator(t, fp8.E4M3, in, out), newAccumulator(t, fp8.BF16, in, out)
	exact, model := make([]float64, in*out), make([]float64, in*out)
	stochastic, fixed := make([]float64, in*out), make([]float64, in*out)
	errors, lost := map[int]float64{}, map[int]float64{}
	firstScale := 0.
	for k, g := range list {
		e4m3.add(k, g)
		bf16.add(k, g)
		for i, x := range g {
			exact[i] += float64(x)
			model[i] += float64(x)
			stochastic[i] += float64(x)
			fixed[i] += float64(x)
		}
		scale := scaleOf(model)
		if k == 0 {
			firstScale = scale
		}
		randomScale := scaleOf(stochastic)
		for i := range model {
			model[i] = onGrid(model[i], scale, nil)
			stochastic[i] = onGrid(stochastic[i], randomScale, rng.Float64)
			fixed[i] = onGrid(fixed[i], firstScale, nil)
		}
		n := k + 1
		if n&(n-1) != 0 {
			continue
		}
		require.Equal(t, model, e4m3.sum(), "after %d micro-batches", n)
		errors[n], lost[n] = lossOf(model, exact)
		wide, _ := lossOf(bf16.sum(), exact)
		random, randomLost := lossOf(stochastic, exact)
		saturated, saturatedLost := lossOf(fixed, exact)
		t.Logf("%2d micro-batches: e4m3 error %.3f lost %4.1f %%; stochastic %.3f, %4.1f %%; bf16 %.4f; first scale kept %.3f, %4.1f %%",
			n, errors[n], 100*lost[n], random, 100*randomLost, wide, saturated, 100*saturatedLost)
		if n == 64 {
			require.Less(t, wide, 0.03)
			require.Less(t, math.Abs(randomLost), 0.03)
			require.Greater(t, saturatedLost, 0.5)
		}
	}
	require.Less(t, errors[recipe.MaxAccumulate], 0.075)
	require.Greater(t, errors[64], 0.2, "the control")
	require.Greater(t, lost[64], 0.15, "the control")
}

// scaleOf returns the power of two that maps the largest magnitude to at most 448.
func scaleOf(x []float64) float64 {
	top := 0.
	for _, v := range x {
		top = max(top, math.Abs(v))
	}
	return math.Exp2(math.Floor(math.Log2(448 / top)))
}

// A gradient that is not finite makes every value read NaN, in this and in later micro-batches,
// and the first micro-batch of the next step starts afresh. A gradient of zeros is stored.
func TestStoredGradientsKeepNonFinite(t *testing.T) {
	const in, out = 16, 32
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E5M2, fp8.BF16} {
		for _, bad := range []float64{math.Inf(1), math.NaN()} {
			a := newAccumulator(t, d, in, out)
			zeros, spoiled, ones := make([]float32, in*out), make([]float32, in*out), make([]float32, in*out)
			for i := range ones {
				ones[i] = 1
			}
			spoiled[77] = float32(bad)
			a.add(0, zeros)
			require.Equal(t, make([]float64, in*out), a.sum())
			a.add(1, spoiled)
			finite := func() bool { x := a.sum()[77]; return x-x == 0 }
			require.False(t, finite(), "%s %v", d, bad)
			a.add(2, ones)
			require.False(t, finite(), "%s %v", d, bad)
			a.add(0, ones)
			require.Equal(t, 1., a.sum()[77])
		}
	}
}
