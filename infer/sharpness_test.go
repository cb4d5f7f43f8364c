package infer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// entropyAt returns the cross-entropy and its gradient.
func entropyAt(y []float64, target int) (f float64, gradient []float64) {
	sum := 0.0
	for _, v := range y {
		sum += math.Exp(v)
	}
	gradient = make([]float64, len(y))
	for j, v := range y {
		gradient[j] = math.Exp(v) / sum
	}
	gradient[target]--
	return math.Log(sum) - y[target], gradient
}

// No point of the box exceeds Sharpness: neither 2,000 random points and corners nor a
// projected gradient ascent, which comes close. The corner with the sign of the target's
// coordinate reversed, the control, is far below.
func TestSharpnessIsTheMaximum(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, vocab := range []int{2, 256, 4096} {
		y, logits, box := make([]float64, vocab), make([]float32, vocab), make([]float64, vocab)
		target := random.IntN(vocab)
		for j := range y {
			logits[j] = float32(3 * random.NormFloat64())
			y[j] = float64(logits[j])
			box[j] = 5e-4 * (math.Abs(y[j]) + 1)
		}
		f, slope := entropyAt(y, target)
		phi := func(z []float64) float64 {
			at := make([]float64, vocab)
			for j := range at {
				at[j] = y[j] + min(max(z[j], -box[j]), box[j])
			}
			g, _ := entropyAt(at, target)
			return 100 * (g - f) / (1 + f)
		}
		got := Sharpness(logits, target)
		z, best := make([]float64, vocab), 0.0
		for i := range 2000 {
			for j := range z {
				u := 2*random.Float64() - 1
				if i%2 == 0 {
					u = math.Copysign(1, u)
				}
				z[j] = u * box[j]
			}
			best = max(best, phi(z))
			require.LessOrEqual(t, best, got)
		}
		// Ten steps of gradient ascent, as long as the box, from its middle.
		clear(z)
		step := 0.0
		for j := range box {
			step += box[j] * box[j]
		}
		for range 10 {
			at, norm := make([]float64, vocab), 0.0
			for j := range at {
				at[j] = y[j] + z[j]
			}
			_, gradient := entropyAt(at, target)
			for _, d := range gradient {
				norm += d * d
			}
			for j, d := range gradient {
				z[j] = min(max(z[j]+math.Sqrt(step/norm)*d, -box[j]), box[j])
			}
		}
		ascent := phi(z)
		require.LessOrEqual(t, ascent, got+1e-12)
		firstOrder := 0.0
		for j, d := range slope {
			firstOrder += 100 * math.Abs(d) * box[j] / (1 + f)
			z[j] = box[j]
		}
		require.InEpsilon(t, firstOrder, got, 5e-3)
		reversed := phi(z)
		require.Less(t, reversed, 0.7*got, "the control")
		z[target] = -box[target]
		require.InDelta(t, phi(z), got, 1e-9)
		t.Logf("vocabulary %4d: sharpness %.4f, best of 2,000 points %.4f, ascent %.4f, wrong corner %.4f", vocab, got, best, ascent, reversed)
	}
}

// Softmax does not see a constant in all logits, sharpness does.
func TestSharpnessIsNotShiftInvariant(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	logits, shifted := make([]float32, 256), make([]float32, 256)
	for j := range logits {
		logits[j] = float32(3 * random.NormFloat64())
		shifted[j] = logits[j] + 10
	}
	t.Logf("%.4f, with all logits 10 higher %.4f", Sharpness(logits, 7), Sharpness(shifted, 7))
	require.Greater(t, Sharpness(shifted, 7), 1.8*Sharpness(logits, 7))
}
