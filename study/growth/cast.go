package main

import (
	"math"
	"math/rand/v2"

	"octet/fp8"
)

// Sizes of the tensors: tokens, channels of the MLP, rows of w3.
const (
	tokens   = 512
	channels = 128
	width    = 64
)

// problem is one MLP's up = w1·x, gate = w2·x [tokens, channels] and w3 [width, channels]. The
// rows of w1 and w2 of channel 0 are equal. Token 0 is the one that excites it: the input has the
// component c along those rows and none that other channels see.
type problem struct{ up, gate, w3 []float32 }

func newProblem(seed uint64) problem {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := problem{normal(rng, tokens*channels, 1), normal(rng, tokens*channels, 1), normal(rng, width*channels, 1/math.Sqrt(channels))}
	for t := range tokens {
		p.gate[t*channels] = p.up[t*channels]
	}
	return p
}

func normal(rng *rand.Rand, n int, std float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(std * rng.NormFloat64())
	}
	return x
}

// hidden returns a = up ⊙ silu(gate) with c in place of up and gate at token 0, channel 0, and
// stored in FP32.
func (p problem) hidden(c float64) []float32 {
	a := make([]float32, len(p.up))
	for i, u := range p.up {
		value, _ := silu(float64(p.gate[i]))
		a[i] = float32(float64(u) * value)
	}
	value, _ := silu(c)
	a[0] = float32(c * value)
	return a
}

// smoothing returns the smoothing scales of the form "balanced", √(m_i/k_i) rounded up to a
// power of two, where m_i is the largest |a| of channel i and k_i the largest |w3|.
func smoothing(a, w3 []float32) []float32 {
	m, k := columnMax(a), columnMax(w3)
	scales := make([]float32, channels)
	for i := range scales {
		exponent := math.Ceil(math.Log2(float64(m[i])/float64(k[i])) / 2)
		scales[i] = float32(math.Ldexp(1, int(exponent)))
	}
	return scales
}

// columnMax returns the largest magnitude of each channel.
func columnMax(x []float32) []float32 {
	top := make([]float32, channels)
	for i, v := range x {
		top[i%channels] = fp8.MaxAmax(top[i%channels], v)
	}
	return top
}

// divided returns x with each channel divided by its scale, multiplied with it.
func divided(x, scales []float32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = v / scales[i%channels]
	}
	return out
}

func multiplied(x, scales []float32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = v * scales[i%channels]
	}
	return out
}

// currentScale returns the scale per tensor, a power of two, of E4M3.
func currentScale(x []float32) float32 {
	scale, _ := fp8.ScaleFor(fp8.Amax(x), fp8.E4M3.Max(), true)
	return scale
}

// throughE4M3 casts x to E4M3 and back.
func throughE4M3(x []float32, scale float32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = fp8.E4M3.Float32(fp8.E4M3.Nearest(v*scale, fp8.Saturate)) / scale
	}
	return out
}

// castErrors are relative errors of a cast: of the outlier's value, of the values of the other
// channels of a, and of the other columns of w3 (root of the sum of squares, over that of the
// values).
type castErrors struct{ outlier, others, weight float64 }

// worst returns the largest of the three.
func (e castErrors) worst() float64 { return max(e.outlier, e.others, e.weight) }

func errorsOf(a, aCast, w3, w3Cast []float32) castErrors {
	return castErrors{
		outlier: math.Abs(float64(aCast[0])-float64(a[0])) / math.Abs(float64(a[0])),
		others:  others(a, aCast),
		weight:  others(w3, w3Cast),
	}
}

func others(x, cast []float32) float64 {
	var wrong, all float64
	for i, v := range x {
		if i%channels != 0 {
			d := float64(cast[i]) - float64(v)
			wrong += d * d
			all += float64(v) * float64(v)
		}
	}
	return math.Sqrt(wrong / all)
}

// variants are ways to choose the scales of E4M3 at an outlier of c.
var variants = []struct {
	name string
	cast func(p problem, c float64) castErrors
}{
	{"delayed", func(p problem, c float64) castErrors {
		a := p.hidden(c)
		return errorsOf(a, throughE4M3(a, currentScale(p.hidden(1))), p.w3, throughE4M3(p.w3, currentScale(p.w3)))
	}},
	{"current", func(p problem, c float64) castErrors {
		a := p.hidden(c)
		return errorsOf(a, throughE4M3(a, currentScale(a)), p.w3, throughE4M3(p.w3, currentScale(p.w3)))
	}},
	{"Smooth-SwiGLU", func(p problem, c float64) castErrors {
		a := p.hidden(c)
		s := smoothing(a, p.w3)
		h, folded := divided(a, s), multiplied(p.w3, s)
		return errorsOf(a, multiplied(throughE4M3(h, currentScale(h)), s), p.w3, divided(throughE4M3(folded, currentScale(folded)), s))
	}},
}

// sameInFP32 reports whether Smooth-SwiGLU without casts has the bits of SwiGLU: c·(a/c) those
// of a, and h·W3′ᵀ, summed in FP32, those of a·W3ᵀ.
func (p problem) sameInFP32(c float64) bool {
	a := p.hidden(c)
	s := smoothing(a, p.w3)
	h, folded := divided(a, s), multiplied(p.w3, s)
	for i, v := range multiplied(h, s) {
		if v != a[i] {
			return false
		}
	}
	for t := range tokens {
		for o := range width {
			if product(a, p.w3, t, o) != product(h, folded, t, o) {
				return false
			}
		}
	}
	return true
}

// product returns y of a token and a row of w3.
func product(a, w3 []float32, token, row int) (y float32) {
	for i := range channels {
		y += float32(a[token*channels+i] * w3[row*channels+i])
	}
	return y
}
