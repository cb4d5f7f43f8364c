package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/recipe"
)

func wire(s recipe.ReduceScale, sum recipe.ReduceSum) recipe.Reduce {
	return recipe.Reduce{DType: fp8.E4M3, Granularity: recipe.PerTensor, Scale: s, Sum: sum}
}

// ownExchange is FP8-LM's exchange of gradients, and Octet's other ones with a scale of all ranks,
// in plain code. mu 0 is 1/N. It returns the sums, the number of those at ± 448, and the share of
// codes that are 0 of values that are not.
func ownExchange(how recipe.Reduce, mu float64, grads [][]float32) (out []float32, atMax int, flushed float64) {
	n := float64(len(grads))
	a := 0.0
	for _, x := range grads {
		a = max(a, float64(fp8.Amax(x)))
	}
	if mu == 0 {
		mu = 1 / n
	}
	below := func(x float64) float64 { return math.Exp2(math.Floor(math.Log2(x))) }
	scale := map[recipe.ReduceScale]float64{
		recipe.AutoMu: below(mu) * below(448/a), recipe.RMSMu: below(1/math.Sqrt(n)) * below(448/a),
		recipe.PreScale: 1, recipe.PostScale: n,
	}[how.Scale]
	inv := float32(1 / scale)
	q := func(x float64) float64 {
		return float64(how.DType.Float32(how.DType.Nearest(float32(x), fp8.Saturate)))
	}
	for i := range grads[0] {
		sum, wide := 0.0, float32(0)
		for _, x := range grads {
			code := q(float64(x[i]) * scale)
			if code == 0 && x[i] != 0 {
				flushed += 1 / n / float64(len(x))
			}
			wide += float32(code) * inv
			if sum += code; how.Sum == recipe.SumEach {
				sum = q(sum)
			}
		}
		if how.Sum == recipe.SumFP32 {
			out = append(out, wide)
			continue
		}
		if sum = q(sum); math.Abs(sum) == float64(how.DType.Max()) {
			atMax++
		}
		out = append(out, float32(sum)*inv)
	}
	return out, atMax, flushed
}

// draws returns n ranks' gradients of a matrix: of each element a signal that all ranks share, and
// noise of each rank of the same size, which is size·e^(spread·z), z normal.
func draws(n, elems int, size, spread float64) [][]float32 {
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	grads := make([][]float32, n)
	for range elems {
		x := size * math.Exp(spread*rng.NormFloat64())
		signal := rng.NormFloat64()
		for rank := range grads {
			grads[rank] = append(grads[rank], float32(x*(signal+rng.NormFloat64())))
		}
	}
	return grads
}

// Every scale of all ranks and every sum gives the bits of the plain code, also where the ranks do
// not divide the rows, and where sums saturate, which are counted.
func TestSharedScaleOfGradients(t *testing.T) {
	const rows, cols = 32, 48
	for _, ranks := range []int{2, 3, 8} {
		for scale := recipe.AutoMu; scale <= recipe.PostScale; scale++ {
			for _, sum := range []recipe.ReduceSum{recipe.SumFP32, recipe.SumOnce, recipe.SumEach} {
				for _, mu := range []float32{0, 0.7, 1} {
					how := wire(scale, sum)
					if how.Validate() != nil || mu != 0 && scale != recipe.AutoMu {
						continue
					}
					t.Run(fmt.Sprint(scale, sum, ranks, mu), func(t *testing.T) {
						grads := draws(ranks, rows*cols, 3, 1)
						want, atMax, _ := ownExchange(how, float64(mu), grads)
						got, count := reducedWith(t, how, mu, rows, cols, grads)
						require.Equal(t, want, slices.Concat(got...)[:rows*cols])
						if scale == recipe.AutoMu {
							require.Equal(t, float32(atMax), count)
							require.True(t, mu < 1 || count > 0, "μ = 1 saturates")
						}
					})
				}
			}
		}
	}
}

// A value that is not finite on one rank makes the sums of all ranks NaN, with fixed scales too.
func TestSharedScaleKeepsNonfinite(t *testing.T) {
	for scale := recipe.AutoMu; scale <= recipe.PostScale; scale++ {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
			grads := draws(2, 32*16, 1, 0)
			grads[1][17*16+3] = bad
			got := reduced(t, wire(scale, recipe.SumEach), 32, 16, grads)
			require.True(t, math.IsNaN(float64(got[0][0])) && math.IsNaN(float64(got[1][16+3])), "%v %v", scale, bad)
		}
	}
}

// relative returns √(Σ(x−y)²/Σy²) for the float64 sum y of the ranks' gradients.
func relative(x []float32, grads [][]float32) float64 {
	e, total := 0.0, 0.0
	for i := range x {
		y := 0.0
		for _, g := range grads {
			y += float64(g[i])
		}
		e += (float64(x[i]) - y) * (float64(x[i]) - y)
		total += y * y
	}
	return math.Sqrt(e / total)
}

// The errors of docs/cluster.md, of sums over 8 ranks against float64, with the shares of codes
// that are flushed to 0 and of sums at the largest value. The last rows have the range of gradients,
// with the controls: no μ, and a scale of 1. go test -v -run TestErrorsOfExchangedSums ./nn
func TestErrorsOfExchangedSums(t *testing.T) {
	const ranks, rows, cols = 8, 128, 256
	normal, wide, same := draws(ranks, rows*cols, 1, 0), draws(ranks, rows*cols, 1, 1.5), draws(1, rows*cols, 1, 1.5)
	for len(same) < ranks {
		same = append(same, same[0])
	}
	small, large := draws(ranks, rows*cols, 1e-4/ranks, 1.5), draws(ranks, rows*cols, 1./ranks, 1.5)
	for _, c := range []struct {
		name      string
		grads     [][]float32
		how       recipe.Reduce
		mu        float32
		low, high float64 // of the error
	}{
		{"FP32 sum", normal, recipe.Reduce{DType: fp8.E4M3, Granularity: recipe.PerTensor}, 0, .012, .013},
		{"rounded once, μ = 1/N", normal, wire(recipe.AutoMu, recipe.SumOnce), 0, .028, .030},
		{"rounded at each addition, μ = 1/N", normal, wire(recipe.AutoMu, recipe.SumEach), 0, .050, .053},
		{"wide range, μ = 1/N", wide, wire(recipe.AutoMu, recipe.SumEach), 0, .05, .065},
		{"wide range, μ = 1/√N", wide, wire(recipe.RMSMu, recipe.SumEach), 0, .05, .065},
		{"wide range, μ = 1", wide, wire(recipe.AutoMu, recipe.SumEach), 1, .2, .35},
		{"equal gradients, μ = 1/N", same, wire(recipe.AutoMu, recipe.SumEach), 0, .05, .07},
		{"equal gradients, μ = 1/√N", same, wire(recipe.RMSMu, recipe.SumEach), 0, .15, .2},
		{"equal gradients, μ = 1", same, wire(recipe.AutoMu, recipe.SumEach), 1, .45, .55},
		{"g near 1e-4, μ = 1/N", small, wire(recipe.AutoMu, recipe.SumEach), 0, .05, .065},
		{"g near 1e-4, scale 1, divided before", small, wire(recipe.PreScale, recipe.SumEach), 0, .4, .6},
		{"g near 1e-4, scale 1, divided after", small, wire(recipe.PostScale, recipe.SumEach), 0, .14, .2},
		{"g near 1, μ = 1/N", large, wire(recipe.AutoMu, recipe.SumEach), 0, .05, .065},
		{"g near 1, scale 1, divided before", large, wire(recipe.PreScale, recipe.SumEach), 0, .07, .12},
		{"g near 1, scale 1, divided after", large, wire(recipe.PostScale, recipe.SumEach), 0, .5, .65},
	} {
		got, _ := reducedWith(t, c.how, c.mu, rows, cols, c.grads)
		e := relative(slices.Concat(got...), c.grads)
		text := fmt.Sprintf("%-36s error %.4f", c.name, e)
		if c.how.Scale != recipe.RankScale {
			_, atMax, flushed := ownExchange(c.how, float64(c.mu), c.grads)
			text += fmt.Sprintf("  flushed %4.1f %%  at the largest %.4f %%", 100*flushed, 100*float64(atMax)/rows/cols)
		}
		t.Log(text)
		assert.True(t, c.low <= e && e <= c.high, "%s, expected %v to %v", text, c.low, c.high)
	}
}
