package nn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/backend/world"
	"octet/fp8"
	"octet/recipe"
)

// reduced runs the reduction of a weight [rows, cols] over ranks with the gradients grads, and
// returns the rows that each rank receives.
func reduced(t *testing.T, how recipe.Reduce, rows, cols int, grads [][]float32) [][]float32 {
	out, _ := reducedWith(t, how, 0, rows, cols, grads)
	return out
}

// reducedWith is reduced with a μ, or the initial one if mu is 0, and also returns the number of
// sums at the largest value if the reduction counts it.
func reducedWith(t *testing.T, how recipe.Reduce, mu float32, rows, cols int, grads [][]float32) ([][]float32, float32) {
	t.Helper()
	n := len(grads)
	out, counts := make([][]float32, n), make([]float32, n)
	groups := world.Local(n, time.Minute)
	require.NoError(t, world.Each(groups, func(g *world.Group) error {
		r, err := recipe.Lookup("bf16")
		if err != nil {
			return err
		}
		r.Reduce = how
		vars := backend.NewVars()
		b, err := NewBase(r, vars)
		if err != nil {
			return err
		}
		b.Shards = n
		w := b.Linear("linear", cols, rows, 1).weight
		if err := b.Build(); err != nil {
			return err
		}
		b.DeclareGrads()
		p := vars.Program("reduce")
		b.Pass(p, Train, Shape{Ranks: n}).complete(w)
		d, err := backend.Open("emu", backend.Options{Threads: 1, Group: g})
		if err != nil {
			return err
		}
		defer d.Close()
		loaded, err := d.Load(p)
		if err != nil {
			return err
		}
		for x, value := range b.Constants() {
			if x == b.Mu && mu != 0 {
				value = mu
			}
			if err := d.Write(x, fp8.AppendFloats(nil, slices.Repeat([]float32{value}, x.Elems())...)); err != nil {
				return err
			}
		}
		padded := make([]float32, w.paddedGrad.Elems())
		copy(padded, grads[g.Rank()])
		if err := d.Write(w.paddedGrad, fp8.AppendFloats(nil, padded...)); err != nil {
			return err
		}
		if err := loaded[0].Run(t.Context()); err != nil {
			return err
		}
		raw := make([]byte, w.Reduced.Bytes())
		out[g.Rank()] = make([]float32, w.Reduced.Elems())
		err = d.Read(w.Reduced, raw)
		fp8.F32.Decode(out[g.Rank()], raw)
		if w.atMax != nil {
			var count [4]byte
			err = errors.Join(err, d.Read(w.atMax, count[:]))
			fp8.F32.Decode(counts[g.Rank():][:1], count[:])
		}
		return err
	}))
	total := float32(0)
	for _, n := range counts {
		total += n
	}
	return out, total
}

// ownReduction casts each rank's gradient [rows, cols] with a scale for each width elements
// of a row, or one for all if width is 0, and adds the ranks' values in FP32, in order.
func ownReduction(d fp8.DType, width, cols int, grads [][]float32) []float32 {
	sum := make([]float32, len(grads[0]))
	for rank, x := range grads {
		for i := range x {
			block := x
			if width > 0 {
				row, col := i/cols*cols, i%cols
				block = x[row+col/width*width : row+min(cols, (col/width+1)*width)]
			}
			scale := float32(1)
			if d.IsQuantized() {
				scale, _ = fp8.ScaleFor(fp8.Amax(block), d.Max(), true)
			}
			v := d.Float32(d.Nearest(x[i]*scale, fp8.Saturate)) / scale
			if rank == 0 {
				sum[i] = v
			} else {
				sum[i] += v
			}
		}
	}
	return sum
}

// Each rank receives its rows of the sum of all ranks' codes, added in order of rank, also
// where the ranks do not divide the rows.
func TestGradientsAreReducedAsCodes(t *testing.T) {
	const rows, cols = 32, 48
	for _, c := range []struct {
		recipe.Reduce
		width int // elements that share a scale; 0: all
	}{
		{recipe.Reduce{DType: fp8.E4M3}, 128},
		{recipe.Reduce{DType: fp8.E4M3, Granularity: recipe.By(1, 16)}, 16},
		{recipe.Reduce{DType: fp8.E5M2, Granularity: recipe.PerRow}, cols},
		{recipe.Reduce{DType: fp8.E4M3, Granularity: recipe.PerTensor}, 0},
		{recipe.Reduce{DType: fp8.BF16}, 0},
		{recipe.Reduce{DType: fp8.F32}, 0},
		{recipe.Reduce{}, 0},
	} {
		for _, ranks := range []int{2, 3, 4} {
			t.Run(fmt.Sprint(c.Reduce, ranks), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, uint64(ranks)))
				grads := make([][]float32, ranks)
				for rank := range grads {
					for range rows * cols {
						x := rng.NormFloat64() * math.Exp(3*rng.NormFloat64())
						grads[rank] = append(grads[rank], float32(x*math.Pow(10, float64(rank-1))))
					}
				}
				want := ownReduction(c.Cast().DType, c.width, cols, grads)
				got := reduced(t, c.Reduce, rows, cols, grads)
				var all []float32
				for _, part := range got {
					all = append(all, part...)
				}
				require.Equal(t, want, all[:rows*cols])
				for _, x := range all[rows*cols:] {
					require.Zero(t, x, "padding")
				}
			})
		}
	}
}

// A value that is not finite, on any rank, is not finite in the sum, so that the update is
// skipped: a saturating cast would hide it.
func TestReducedCodesKeepNonfinite(t *testing.T) {
	for _, g := range []recipe.Granularity{recipe.By(1, 16), recipe.PerRow, recipe.PerTensor} {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			grads := [][]float32{make([]float32, 32*16), make([]float32, 32*16)}
			grads[1][17*16+3] = bad
			got := reduced(t, recipe.Reduce{DType: fp8.E4M3, Granularity: g}, 32, 16, grads)
			require.False(t, got[1][16+3]-got[1][16+3] == 0, "%v %v", g, bad)
		}
	}
}

// A gradient of zeros is reduced to zeros.
func TestReducedCodesOfZeros(t *testing.T) {
	for _, g := range []recipe.Granularity{recipe.By(1, 128), recipe.PerTensor} {
		got := reduced(t, recipe.Reduce{DType: fp8.E4M3, Granularity: g}, 32, 16, [][]float32{make([]float32, 32*16), make([]float32, 32*16)})
		require.Equal(t, make([]float32, 32*16/2), got[1])
	}
}

func TestReduceIsValidated(t *testing.T) {
	for text, r := range map[string]recipe.Reduce{
		"gradients do not travel in fp16":                                                                             {DType: fp8.F16},
		"gradients do not travel in e2m1":                                                                             {DType: fp8.E2M1},
		"gradients do not travel in e8m0":                                                                             {DType: fp8.E8M0},
		"gradients do not travel in int8":                                                                             {DType: fp8.INT8},
		"gradients do not travel with scales for 128x128":                                                             {DType: fp8.E4M3, Granularity: recipe.By(128, 128)},
		`reduce_scale = "auto" scales formats of eight bits, but gradients travel in fp32`:                            {Scale: recipe.AutoMu, Sum: recipe.SumEach},
		`reduce_scale = "pre" is one scale for a tensor (use reduce_granularity = "tensor" instead of "1x128"`:        {DType: fp8.E4M3, Scale: recipe.PreScale},
		`reduce_sum = "once" rounds sums to codes, for which all ranks need one scale (use reduce_scale = "auto", or`: {DType: fp8.E4M3, Sum: recipe.SumOnce},
		`reduce_scale = "auto" counts the sums that saturate, but with reduce_sum = "fp32" none does`:                 wire(recipe.AutoMu, recipe.SumFP32),
	} {
		require.ErrorContains(t, r.Validate(), text)
	}
}
