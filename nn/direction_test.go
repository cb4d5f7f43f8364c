package nn

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	_ "octet/backend/ref"
	"octet/fp8"
)

// clipOn returns what the ops of clipDirection choose for x [rows, cols] on a device.
func clipOn(t *testing.T, device string, threads int, x []float32, rows, cols int) (clip, distance float32) {
	t.Helper()
	d, err := backend.Open(device, backend.Options{Threads: threads})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	vars := backend.NewVars()
	in := vars.Tensor(backend.Input, "x", fp8.F32, rows, cols)
	out := vars.Tensor(backend.Output, "out", fp8.F32, 2)
	p := vars.Program("clip")
	amax, sums := p.Temp("amax", fp8.F32, 1), p.Temp("sums", fp8.F32, rows, directionWidth)
	p.Add(&backend.Amax{X: in, Out: amax})
	p.Add(&directionSums{X: in, Amax: amax, Out: sums, Limit: 127})
	p.Add(&directionClip{Sums: sums.Slice("sums.all", 0, sums.Elems()), Amax: amax, Clip: out.Slice("c", 0, 1), Distance: out.Slice("d", 1, 1)})
	require.NoError(t, p.Err())
	loaded, err := backend.Load(d, p)
	require.NoError(t, err)
	require.NoError(t, d.Write(in, fp8.AppendFloats(nil, x...)))
	require.NoError(t, loaded[0].Run(t.Context()))
	raw, got := make([]byte, 8), make([]float32, 2)
	require.NoError(t, d.Read(out, raw))
	fp8.F32.Decode(got, raw)
	return got[0], got[1]
}

// drawn returns 1 − cos(x, x̂) and the share of elements that become 0, with x̂ the INT8 cast of x
// clipped at c, rounded stochastically.
func drawn(x []float32, c float32) (distance, zeros float64) {
	scale := 127 / c
	codes := make([]uint8, len(x))
	fp8.Quantize8Stochastic(codes, x, fp8.INT8, scale, 7, 0, false)
	var dot, xx, yy float64
	for i, code := range codes {
		v, y := float64(x[i]), float64(int8(code))
		dot, xx, yy = dot+v*y, xx+v*v, yy+y*y
		if code == 0 {
			zeros++
		}
	}
	return 1 - dot/math.Sqrt(xx*yy), zeros / float64(len(x))
}

// The value at which a gradient clips, for three distributions. The oracle draws the random bits
// of the cast at each candidate. It changes the direction less than the amax does, the control;
// with tails as heavy as the last one's, hardly, and the small distance hides that the cast
// drops nearly all elements.
func TestDirectionClip(t *testing.T) {
	const rows, cols = 512, 128
	r := rand.New(rand.NewPCG(3, 4))
	normal := r.NormFloat64
	for _, c := range []struct {
		name     string
		gain     float64 // d at the amax over that of the choice, at least
		flushed  float64 // share of elements, at least
		distance float64 // at most
		draw     func() float64
	}{
		{"normal", 1.05, 0, 2e-4, normal},
		{"Student-3", 1.3, 0.05, 0.006, func() float64 {
			chi := 0.
			for range 3 {
				chi += math.Pow(normal(), 2)
			}
			return normal() / math.Sqrt(chi/3)
		}},
		{"log-normal 3", 0.9, 0.95, 0.01, func() float64 { return math.Copysign(math.Exp(3*normal()), normal()) }},
	} {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(c.draw())
		}
		amax := fp8.Amax(x)
		clip, distance := clipOn(t, "emu", 1, x, rows, cols)
		again, same := clipOn(t, "emu", 3, x, rows, cols)
		require.Equal(t, []float32{clip, distance}, []float32{again, same}, "the number of threads shows")
		refClip, refDistance := clipOn(t, "ref", 1, x, rows, cols)
		require.Equal(t, refClip, clip)
		require.InDelta(t, refDistance, distance, 1e-6)

		for _, size := range []float32{0x1p-80, 0x1p80} {
			sized := make([]float32, len(x))
			for i := range x {
				sized[i] = x[i] * size
			}
			c, d := clipOn(t, "emu", 1, sized, rows, cols)
			require.Equal(t, []float32{clip * size, distance}, []float32{c, d}, "the size of the values shows")
		}

		got, zeros := drawn(x, clip)
		require.InEpsilon(t, got, distance, 0.05, "the draws have the expected distance")
		best, worst := math.Inf(1), 0.
		for i := range clipCandidates {
			d, _ := drawn(x, float32(clipCandidate(float64(amax), i)))
			best, worst = min(best, d), max(worst, d)
		}
		require.Less(t, got, 1.05*best)
		atAmax, _ := drawn(x, amax)
		t.Logf("%-13s d %.6f at c = amax·%.3f, %.6f at the amax, %.4f at the worst candidate; %.3f of the elements are 0",
			c.name, distance, clip/amax, atAmax, worst, zeros)
		require.Greater(t, atAmax, c.gain*got)
		require.GreaterOrEqual(t, zeros, c.flushed)
		require.Less(t, got, c.distance)
		require.Greater(t, worst, 10*got)
	}
}

// Tensors of zeros, and with an infinity or a NaN, keep their amax, which the scale then carries.
func TestDirectionOfAmax(t *testing.T) {
	for _, device := range []string{"emu", "ref"} {
		for _, v := range []float64{0, math.Inf(1), math.NaN()} {
			clip, distance := clipOn(t, device, 1, []float32{0, float32(v), 0, 0}, 2, 2)
			require.True(t, clip == float32(v) || math.IsNaN(v) && clip != clip, "%s: %v of %v", device, clip, v)
			require.Zero(t, distance)
		}
	}
}
