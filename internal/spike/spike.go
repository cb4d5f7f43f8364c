// Package spike measures the errors that an outlier channel of SwiGLU causes in the
// three GEMMs of w3 under a recipe: the experiment for Smooth-SwiGLU.
//
// A [Problem] is one MLP with random data. One channel has equal rows of up_proj and
// gate_proj, as training aligns them, with an adjustable norm, so its activation is
// about the square of its input. At size 1 its largest activation equals that of the
// other channels; at size 1000, a spike, it is 1000 times as large. A [Bench] runs the
// problem step by step under a recipe, with programs of package nn on backend emu. It
// computes w3's GEMMs in float64 from the operands that they read, and compares the
// results with those of the exact operands.
//
// Only w3's operands have errors: up_proj and gate_proj run in BF16, and the weights
// are constant.
package spike

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"octet/fp8"
)

// Problem is one MLP and its batch, equal in every step. Channel 0 is the outlier.
type Problem struct {
	Tokens, Dim, FFN int

	x, dy          []float32 // [tokens, dim], values of BF16
	up, gate, down []float32 // [ffn, dim], [ffn, dim], [dim, ffn]
	direction      []float32 // [dim]: the outlier's row before scaling; x·direction is about 1
	reach          float64   // the largest x·direction of the batch
	top            float64   // the largest activation of the other channels

	mu    sync.Mutex
	exact map[float64]*results // by size
}

// NewProblem draws the data, so that the results of up_proj and gate_proj are about 1.
func NewProblem(tokens, dim, ffn int, seed uint64) *Problem {
	rng := rand.New(rand.NewPCG(seed, 0))
	normal := func(n int, sigma float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(sigma * rng.NormFloat64())
		}
		return x
	}
	p := &Problem{Tokens: tokens, Dim: dim, FFN: ffn, exact: map[float64]*results{}}
	p.x, p.dy = roundBF16(normal(tokens*dim, 1)), roundBF16(normal(tokens*dim, 1))
	wide := 1 / math.Sqrt(float64(dim))
	p.up, p.gate = normal(ffn*dim, wide), normal(ffn*dim, wide)
	p.down = normal(dim*ffn, 1/math.Sqrt(float64(ffn)))
	p.direction = normal(dim, wide)
	for t := range tokens {
		x := p.x[t*dim : (t+1)*dim]
		p.reach = max(p.reach, dot(x, p.direction))
		for i := 1; i < ffn; i++ {
			a := dot(x, p.up[i*dim:(i+1)*dim]) * silu(dot(x, p.gate[i*dim:(i+1)*dim]))
			p.top = max(p.top, math.Abs(a))
		}
	}
	return p
}

// outlier returns the row of up_proj and gate_proj of channel 0 for a size.
func (p *Problem) outlier(size float64) []float32 {
	want := size * p.top // = s·silu(s), where s is the largest result of the row
	low, high := 0.0, 2+2*math.Sqrt(want)
	for range 60 {
		if s := (low + high) / 2; s*silu(s) < want {
			low = s
		} else {
			high = s
		}
	}
	row := slices.Clone(p.direction)
	for i := range row {
		row[i] *= float32(low / p.reach)
	}
	return row
}

func roundBF16(x []float32) []float32 {
	codes := make([]uint16, len(x))
	fp8.EncodeBF16(codes, x)
	fp8.DecodeBF16(x, codes)
	return x
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// dot returns a·b. Four independent partial sums make it faster.
func dot[E float32 | float64](a, b []E) float64 {
	var sum [4]float64
	for len(a) >= 4 && len(b) >= 4 {
		for i := range sum {
			sum[i] += float64(a[i]) * float64(b[i])
		}
		a, b = a[4:], b[4:]
	}
	for i, x := range a {
		sum[0] += float64(x) * float64(b[i])
	}
	return sum[0] + sum[1] + (sum[2] + sum[3])
}

// Errors holds the relative errors of the results of w3's GEMMs, in the Euclidean norm.
// The fields named Others exclude the outlier: for fprop its channel's contribution to
// y, for dgrad and wgrad its column. An outlier that dominates a result hides the errors
// of everything else in the total.
type Errors struct {
	Fprop, FpropOthers float64
	Dgrad, DgradOthers float64
	Wgrad, WgradOthers float64

	Saturated float64 // fraction of h's elements that saturated in the cast
}

// Worst returns the largest of the six errors.
func (e Errors) Worst() float64 {
	return max(e.Fprop, e.FpropOthers, e.Dgrad, e.DgradOthers, e.Wgrad, e.WgradOthers)
}

// operands holds the dequantized operands of w3's GEMMs: the input of fprop
// [tokens, ffn], W3 [dim, ffn], dY [tokens, dim] and so on.
type operands struct {
	input, weight         []float64
	grad, gradWeight      []float64
	wgradGrad, wgradInput []float64

	rowScale         []float64 // of fprop, [tokens], or nil
	colScale         []float64 // of wgrad, [ffn], or nil
	invC, tokenScale []float64 // of the activation's backward, [ffn] and [tokens], or nil
}

// results holds the results of w3's three GEMMs.
type results struct {
	y, others []float64 // [tokens, dim]: fprop, and fprop without channel 0
	da        []float64 // [tokens, ffn]: dgrad
	dw        []float64 // [dim, ffn]: wgrad
}

func (p *Problem) gemms(o operands) *results {
	tokens, dim, ffn := p.Tokens, p.Dim, p.FFN
	r := &results{
		y: make([]float64, tokens*dim), others: make([]float64, tokens*dim),
		da: make([]float64, tokens*ffn), dw: make([]float64, dim*ffn),
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for t := range tokens {
			h := o.input[t*ffn : (t+1)*ffn]
			for j := range dim {
				w := o.weight[j*ffn : (j+1)*ffn]
				r.others[t*dim+j] = dot(h[1:], w[1:])
				r.y[t*dim+j] = r.others[t*dim+j] + h[0]*w[0]
			}
		}
		scaleRows(r.y, o.rowScale)
		scaleRows(r.others, o.rowScale)
	})
	wait.Go(func() {
		for t := range tokens {
			for j := range dim {
				addTo(r.da[t*ffn:(t+1)*ffn], o.grad[t*dim+j], o.gradWeight[j*ffn:(j+1)*ffn])
			}
		}
		scaleCols(r.da, o.invC)
		scaleRows(r.da, inverse(o.tokenScale))
	})
	wait.Go(func() {
		for t := range tokens {
			for j := range dim {
				addTo(r.dw[j*ffn:(j+1)*ffn], o.wgradGrad[t*dim+j], o.wgradInput[t*ffn:(t+1)*ffn])
			}
		}
		scaleCols(r.dw, o.colScale)
	})
	wait.Wait()
	return r
}

// errors returns the relative errors of got.
func (p *Problem) errors(got, want *results) Errors {
	return Errors{
		Fprop: distance(got.y, want.y, p.Dim, 0), FpropOthers: distance(got.others, want.others, p.Dim, 0),
		Dgrad: distance(got.da, want.da, p.FFN, 0), DgradOthers: distance(got.da, want.da, p.FFN, 1),
		Wgrad: distance(got.dw, want.dw, p.FFN, 0), WgradOthers: distance(got.dw, want.dw, p.FFN, 1),
	}
}

// distance returns ‖got − want‖/‖want‖ without the first from columns.
func distance(got, want []float64, cols, from int) float64 {
	var diff, norm float64
	for i, w := range want {
		if i%cols >= from {
			diff += (got[i] - w) * (got[i] - w)
			norm += w * w
		}
	}
	return math.Sqrt(diff / norm)
}

func addTo(sum []float64, scale float64, x []float64) {
	for i, v := range x {
		sum[i] += scale * v
	}
}

func scaleRows(x, scales []float64) {
	for i, f := range scales {
		cols := len(x) / len(scales)
		for j := range x[i*cols : (i+1)*cols] {
			x[i*cols+j] *= f
		}
	}
}

func scaleCols(x, scales []float64) {
	if scales != nil {
		for i := range x {
			x[i] *= scales[i%len(scales)]
		}
	}
}

func inverse(x []float64) []float64 {
	inv := make([]float64, len(x))
	for i, v := range x {
		inv[i] = 1 / v
	}
	return inv
}
