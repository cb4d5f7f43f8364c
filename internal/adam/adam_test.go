package adam

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// The effect on v when gradients fall tenfold. Rounding to nearest undoes a decay of
// less than half an ulp, unless the scale changes from step to step. In a format with
// too little range v underflows to 0 where m does not, also with block scales if the
// elements of a block differ as much as those of the tensor.
func TestDrop(t *testing.T) {
	const far = math.MaxFloat64
	for _, c := range []struct {
		state         recipe.Optimizer
		beta2         float64
		before, after [2]float64 // bands of the median of v over its true value
		zeros         [2]float64 // of the share of elements with v = 0
		update        [2]float64 // of the update's relative error after the drop
	}{
		{recipe.Optimizer{M2: fp8.F32}, 0.95, [2]float64{0.99, 1.01}, [2]float64{0.99, 1.01}, [2]float64{}, [2]float64{0, 1e-5}},
		{recipe.Optimizer{M2: fp8.BF16}, 0.95, [2]float64{0.99, 1.01}, [2]float64{0.99, 1.01}, [2]float64{}, [2]float64{0, 0.01}},
		{recipe.Optimizer{M2: fp8.E5M2, Pow2: true}, 0.95, [2]float64{1.5, 6}, [2]float64{50, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.E5M2, Pow2: true, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.05}, [2]float64{0.9, 1.05}, [2]float64{}, [2]float64{0.05, 0.2}},
		{recipe.Optimizer{M2: fp8.E5M2}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{}, [2]float64{0.03, 0.15}},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.05}, [2]float64{0.9, 1.05}, [2]float64{}, [2]float64{0.05, 0.2}},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true}, 0.95, [2]float64{0.9, 1.05}, [2]float64{0.9, 1.05}, [2]float64{}, [2]float64{0.05, 0.2}},
		{recipe.Optimizer{M2: fp8.E4M3}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{0.05, 0.3}, [2]float64{5, far}},
		{recipe.Optimizer{M2: fp8.E4M3, Rounding: fp8.Stochastic}, 0.95, [2]float64{0.9, 1.1}, [2]float64{0.6, 1.1}, [2]float64{0.2, 0.6}, [2]float64{5, far}},
		{recipe.Optimizer{M2: fp8.E4M3, FloorV: true}, 0.95, [2]float64{0.8, 1.4}, [2]float64{1, 3}, [2]float64{}, [2]float64{0.2, 0.8}},
		{recipe.Optimizer{M2: fp8.E4M3, Block: 256}, 0.95, [2]float64{0.8, 1.4}, [2]float64{0.8, 1.4}, [2]float64{0.03, 0.3}, [2]float64{5, far}},

		// With β2 = 0.999, v decays by a thousandth per step, less than half an ulp
		// even of BF16.
		{recipe.Optimizer{M2: fp8.BF16}, 0.999, [2]float64{1.2, 6}, [2]float64{50, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.BF16, Rounding: fp8.Stochastic}, 0.999, [2]float64{0.97, 1.03}, [2]float64{0.97, 1.03}, [2]float64{}, [2]float64{0, 0.06}},
		{recipe.Optimizer{M2: fp8.E5M2}, 0.999, [2]float64{0.5, 6}, [2]float64{10, far}, [2]float64{}, [2]float64{0.5, 1}},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 0.999, [2]float64{0.85, 1.1}, [2]float64{0.85, 1.1}, [2]float64{}, [2]float64{0.1, 0.3}},
	} {
		c.state.Master, c.state.M1 = fp8.F32, fp8.F32
		n := 4096
		if c.beta2 > 0.99 && os.Getenv("OCTET_LONG") == "" {
			n = 512 // the run is fifty times as long
		}
		d, err := MeasureDrop(c.state, c.beta2, n)
		require.NoError(t, err)
		about := fmt.Sprintf("%s, β2 %v: %+.3v", c.state, c.beta2, d)
		t.Log(about)
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

// If v underflows to 0 and m does not, the next update is m over the root of a v from one
// small gradient alone, and explodes. With per-tensor scales this happens in E4M3 if
// gradients differ by 10³, and in E5M2, whose range covers gradients that differ by
// 10^4.8 at most, if they differ by 10⁶; with block scales if gradients of a block do. A
// floor bounds the update almost as tightly as exact arithmetic.
func TestSpread(t *testing.T) {
	const never = math.MaxFloat64
	for _, c := range []struct {
		state             recipe.Optimizer
		bounded, explodes float64 // decades up to which, and from which
	}{
		{recipe.Optimizer{M2: fp8.E5M2}, 3, 5},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic}, 3, 5},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true}, 6, never},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true, Block: 256}, 6, never},
		{recipe.Optimizer{M2: fp8.E5M2, Rounding: fp8.Stochastic, Block: 256}, 3, 6},
		{recipe.Optimizer{M2: fp8.E4M3}, 0, 3},
		{recipe.Optimizer{M2: fp8.E4M3, FloorV: true}, 6, never},
		{recipe.Optimizer{M2: fp8.E4M3, Block: 256}, 0, 3},
		{recipe.Optimizer{M2: fp8.BF16}, 6, never},
	} {
		c.state.Master, c.state.M1 = fp8.F32, fp8.F32
		for decades := 3.0; decades <= 6; decades++ {
			d, err := MeasureSpread(c.state, decades)
			require.NoError(t, err)
			about := fmt.Sprintf("%s, 10^%v: %+.3v", c.state, decades, d)
			t.Log(about)
			switch {
			case decades <= c.bounded:
				require.Less(t, d.Largest, 1.5, about)
				require.Zero(t, d.Beyond, about)
			case decades >= c.explodes:
				require.Greater(t, d.Largest, 1000.0, about)
				require.Greater(t, d.Beyond, 0.001, about)
			}
		}
	}
}

// The state of fp8-smooth, whose first moment is E4M3.
func TestSpreadOfTheMethod(t *testing.T) {
	r, err := recipe.Lookup("fp8-smooth")
	require.NoError(t, err)
	state := r.Optimizer
	state.Master = fp8.F32 // the update is read from the master
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

// With constant gradients, a moment divided by its amax is constant, and so are its codes:
// with a scale of limit/amax it is always within one ulp, with any rounding. A
// power-of-two scale, and BF16's scale of 1, do not follow the amax. With these,
// stochastic rounding ends at one of the two codes around the exact value and stays
// there, since the next value is between them. Rounding to nearest stops at an error d
// whose correction is less than half an ulp: (1−β)·d < ulp/2.
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
			reference := Reference{Rule: rule}
			var m, v float64 // largest errors in ulps
			scaleFollows := d != fp8.BF16 && !s.Pow2
			for step := range steps {
				require.NoError(t, o.Step(grad))
				reference.Step(grad)
				if scaleFollows && step%50 == 0 || step == steps-1 {
					m = max(m, o.worst(t, o.op.M1[0], reference.M))
					v = max(v, o.worst(t, o.op.M2[0], reference.V))
				}
			}
			require.NoError(t, o.Close())
			if scaleFollows || s.Rounding == fp8.Stochastic {
				require.LessOrEqual(t, m, 1.01, s) // with a margin for errors of FP32
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

// statesOf lists the optimizer states with both moments in d.
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

// worst returns a moment's largest error in ulps of the exact value.
func (o *Optimizer) worst(t *testing.T, tensor *backend.Tensor, exact []float64) (worst float64) {
	values, err := o.read(tensor)
	require.NoError(t, err)
	scales := []float64{1}
	if tensor.Scale != nil {
		scales, err = o.read(tensor.Scale)
		require.NoError(t, err)
	}
	for i, want := range exact {
		scale := scales[i*len(scales)/len(exact)]
		worst = max(worst, math.Abs(values[i]-want)/(scale*ulp(tensor.DType, math.Abs(want)/scale)))
	}
	return worst
}

// ulp returns the distance between the two values of d around x.
func ulp(d fp8.DType, x float64) float64 {
	below := d.Nearest(float32(x), fp8.Saturate)
	if float64(d.Float32(below)) > x || d.Float32(below) == d.Max() {
		below--
	}
	return float64(d.Float32(below+1)) - float64(d.Float32(below))
}

// A weight decay of 3e-5 per step is an eighth of half an ulp of FP16. With stochastic
// rounding the weights decay on average as they should. With rounding to nearest they do
// not decay if the scale is constant, that is if the tensor's largest weight is: the test
// gives that weight a gradient whose update cancels its decay.
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
