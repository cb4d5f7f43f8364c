package adam

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// What becomes of v when gradients fall tenfold. Rounding to nearest undoes a
// decay of less than half an ulp, unless the scale moves from step to step; a
// format of little range turns v into 0 where m survives, and so it is with a
// scale for every 256 elements if these differ as much as the tensor's all.
func TestDrop(t *testing.T) {
	const far = math.MaxFloat64
	for _, c := range []struct {
		state         recipe.Optimizer
		beta2         float64
		before, after [2]float64 // bands of the median of v over its true value
		zeros         [2]float64
		update        [2]float64 // of the update's relative error after the drop
	}{
		{recipe.Optimizer{M2: fp8.F32}, 0.95, [2]float64{0.99, 1.01}, [2]float64{0.99, 1.01}, [2]float64{}, [2]float64{0, 1e-5}},
		{recipe.Optimizer{M2: fp8.BF16}, 0.95, [2]float64{0.99, 1.01}, [2]float64{0.99, 1.01}, [2]float64{}, [2]float64{0, 0.01}},
		{recipe.Optimizer{M2: fp8.E5M2, Pow2: true}, 0.95, [2]float64{1.5, 6}, [2]float64{50, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.E5M2, Pow2: true, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.05}, [2]float64{0.9, 1.05}, [2]float64{}, [2]float64{0.05, 0.2}},
		{recipe.Optimizer{M2: fp8.E5M2}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{}, [2]float64{0.03, 0.15}},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.05}, [2]float64{0.9, 1.05}, [2]float64{}, [2]float64{0.05, 0.2}},
		{recipe.Optimizer{M2: fp8.E4M3}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{0.05, 0.3}, [2]float64{5, far}},
		{recipe.Optimizer{M2: fp8.E4M3, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.1}, [2]float64{0.6, 1.1}, [2]float64{0.2, 0.6}, [2]float64{5, far}},
		{recipe.Optimizer{M2: fp8.E4M3, FloorV: true}, 0.95, [2]float64{0.8, 1.4}, [2]float64{1, 3}, [2]float64{}, [2]float64{0.2, 0.8}},
		{recipe.Optimizer{M2: fp8.E4M3, Block: 256}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{0.03, 0.3}, [2]float64{5, far}},

		// A memory of 1,000 steps decays by a thousandth of v, less than half an
		// ulp even of BF16.
		{recipe.Optimizer{M2: fp8.BF16}, 0.999, [2]float64{1.2, 6}, [2]float64{50, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.BF16, Rounding: fp8.Stochastic}, 0.999, [2]float64{0.97, 1.03}, [2]float64{0.97, 1.03}, [2]float64{}, [2]float64{0, 0.06}},
		{recipe.Optimizer{M2: fp8.E5M2}, 0.999, [2]float64{0.5, 6}, [2]float64{10, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 0.999, [2]float64{0.85, 1.1}, [2]float64{0.85, 1.1}, [2]float64{}, [2]float64{0.1, 0.3}},
	} {
		c.state.Master, c.state.M1 = fp8.F32, fp8.F32
		n := 4096
		if c.beta2 > 0.99 {
			n = 512 // the run is fifty times as long
		}
		d, err := MeasureDrop(c.state, c.beta2, n)
		require.NoError(t, err)
		about := fmt.Sprintf("%s, β2 %v: %+v", c.state, c.beta2, d)
		within(t, c.before, d.Before, about)
		within(t, c.after, d.After, about)
		within(t, c.zeros, d.Zeros, about)
		within(t, c.update, d.ErrorAfter, about)
	}
}

func within(t *testing.T, band [2]float64, x float64, about string) {
	t.Helper()
	require.GreaterOrEqual(t, x, band[0], about)
	require.LessOrEqual(t, x, band[1], about)
}

// Where v is stored as 0 and m is not, the next update is m over the root of
// that step's small gradient alone. With one scale for the tensor E4M3 does so
// if gradients differ by 10³, and E5M2, whose range holds gradients that differ
// by 10^4.8 at most, if they differ by 10⁶; with scales by blocks where they do so
// within a block. A floor bounds the update by little more than exact arithmetic.
func TestSpread(t *testing.T) {
	for _, c := range []struct {
		state    recipe.Optimizer
		decades  float64
		explodes bool
	}{
		{recipe.Optimizer{M2: fp8.E5M2}, 3, false},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 3, false},
		{recipe.Optimizer{M2: fp8.E5M2}, 6, true},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 6, true},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true}, 6, false},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true, Block: 256}, 6, false},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, Block: 256}, 6, true},
		{recipe.Optimizer{M2: fp8.E4M3}, 3, true},
		{recipe.Optimizer{M2: fp8.E4M3}, 6, true},
		{recipe.Optimizer{M2: fp8.E4M3, FloorV: true}, 6, false},
		{recipe.Optimizer{M2: fp8.E4M3, Block: 256}, 6, true},
		{recipe.Optimizer{M2: fp8.BF16}, 6, false},
	} {
		c.state.Master, c.state.M1 = fp8.F32, fp8.F32
		d, err := MeasureSpread(c.state, c.decades)
		require.NoError(t, err)
		about := fmt.Sprintf("%s, 10^%v: %+v", c.state, c.decades, d)
		if c.explodes {
			require.Greater(t, d.Largest, 1000.0, about)
			require.Greater(t, d.Beyond, 0.001, about)
		} else {
			require.Less(t, d.Largest, 1.5, about)
			require.Zero(t, d.Beyond, about)
		}
	}
}

// The method's own state, its first moment in E4M3 too.
func TestSpreadOfTheMethod(t *testing.T) {
	r, err := recipe.Lookup("fp8-smooth")
	require.NoError(t, err)
	state := r.Optimizer
	state.Master = fp8.F32 // it is what the update is read from
	for decades := 3.0; decades <= 6; decades++ {
		d, err := MeasureSpread(state, decades)
		require.NoError(t, err)
		require.Less(t, d.Largest, 10.0, "10^%v: %+v", decades, d)
		require.Greater(t, d.Largest, 0.5, "10^%v: %+v", decades, d)
	}
	state.M2 = fp8.E4M3
	state.FloorV = false
	d, err := MeasureSpread(state, 6)
	require.NoError(t, err)
	require.Greater(t, d.Largest, 1000.0)
}

// Under constant gradients a moment divided by its amax is constant, and so are
// its codes: scaled by amax it is always within one ulp, whatever the rounding.
// A scale that is a power of two, and BF16's 1, do not move along. There
// stochastic rounding ends between the two codes around the truth, which it
// cannot leave: from either, the next value is between them. Nearest rounding
// stops where what is missing, d, adds less than half an ulp: (1−β)·d < ulp/2.
func TestConstantGradients(t *testing.T) {
	const n, steps = 512, 1000
	grad := make([]float32, n)
	for i := range grad {
		grad[i] = float32(0.37 * math.Pow(10, -float64(i*37%n)/n))
		if i%2 > 0 {
			grad[i] = -grad[i]
		}
	}
	rule := Rule{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
	for _, d := range []fp8.DType{fp8.BF16, fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		for _, s := range statesOf(d) {
			o, err := New(s, rule, make([]float32, n))
			require.NoError(t, err)
			truth := Truth{Rule: rule}
			var m, v float64 // largest errors in ulps
			moves := d != fp8.BF16 && !s.Pow2
			for step := range steps {
				require.NoError(t, o.Step(grad))
				truth.Step(grad)
				if moves && step%50 == 0 || step == steps-1 {
					m = max(m, o.worst(t, o.op.M1[0], truth.M))
					v = max(v, o.worst(t, o.op.M2[0], truth.V))
				}
			}
			require.NoError(t, o.Close())
			if moves || s.Rounding == fp8.Stochastic {
				require.LessOrEqual(t, m, 1.01, s) // FP32 has errors of its own
				require.LessOrEqual(t, v, 1.01, s)
				continue
			}
			require.Greater(t, m, 1.5, s)
			require.LessOrEqual(t, m, 0.5/(1-rule.Beta1)+0.5, s)
			require.Greater(t, v, 3.0, s)
			require.LessOrEqual(t, v, 0.5/(1-rule.Beta2)+0.5, s)
		}
	}
}

// statesOf lists every way to keep both moments in d.
func statesOf(d fp8.DType) (list []recipe.Optimizer) {
	for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
		s := recipe.Optimizer{Master: fp8.F32, M1: d, M2: d, Rounding: rounding}
		if d == fp8.BF16 {
			list = append(list, s)
			continue
		}
		for _, s.Pow2 = range []bool{false, true} {
			for _, s.Block = range []int{0, 256} {
				list = append(list, s)
			}
		}
	}
	return list
}

// worst is a moment's largest error, in distances of the codes around the truth.
func (o *Optimizer) worst(t *testing.T, tensor *backend.Tensor, truth []float64) (worst float64) {
	values, err := o.read(tensor)
	require.NoError(t, err)
	scales := []float64{1}
	if tensor.Scale != nil {
		scales, err = o.read(tensor.Scale)
		require.NoError(t, err)
	}
	for i, want := range truth {
		scale := scales[i*len(scales)/len(truth)]
		worst = max(worst, math.Abs(values[i]-want)/(scale*ulp(tensor.DType, math.Abs(want)/scale)))
	}
	return worst
}

// ulp is the distance of the two numbers around x.
func ulp(d fp8.DType, x float64) float64 {
	below := d.Nearest(float32(x), fp8.Saturate)
	if float64(d.Float32(below)) > x || d.Float32(below) == d.Max() {
		below--
	}
	return float64(d.Float32(below+1)) - float64(d.Float32(below))
}

// A decay of 3e-5 a step is an eighth of half an ulp of FP16. Rounded
// stochastically the weights decay all the same, on average; to nearest not at
// all, if the tensor's largest weight stays where it is and with it the scale.
// That weight has a gradient, whose step is its decay.
func TestDecay(t *testing.T) {
	const n, steps, largest = 1024, 2000, 10
	rule := Rule{LR: 3e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 1.0 / largest}
	want := 1 - math.Pow(1-rule.LR*rule.WeightDecay, steps)
	grad, weights := make([]float32, n), make([]float32, n)
	grad[0], weights[0] = -1, largest
	for i := 1; i < n; i++ {
		weights[i] = largest * float32(i) / n
	}
	for _, c := range []struct {
		master   fp8.DType
		rounding fp8.Rounding
		decays   bool
	}{
		{fp8.F32, fp8.Nearest, true},
		{fp8.F16, fp8.Stochastic, true},
		{fp8.F16, fp8.Nearest, false},
		{fp8.BF16, fp8.Stochastic, true},
		{fp8.BF16, fp8.Nearest, false},
	} {
		o, err := New(recipe.Optimizer{Master: c.master, M1: fp8.F32, M2: fp8.F32, Rounding: c.rounding}, rule, weights)
		require.NoError(t, err)
		before, err := o.Weights()
		require.NoError(t, err)
		for range steps {
			require.NoError(t, o.Step(grad))
		}
		after, err := o.Weights()
		require.NoError(t, err)
		require.NoError(t, o.Close())
		require.InEpsilon(t, largest, after[0], 1e-3)
		decay := 1 - sum(after[1:])/sum(before[1:])
		if c.decays {
			require.InEpsilon(t, want, decay, 0.1, "%+v", c)
		} else {
			require.Less(t, math.Abs(decay), want/100, "%+v", c)
		}
	}
}

func sum(x []float64) (total float64) {
	for _, v := range x {
		total += v
	}
	return total
}
