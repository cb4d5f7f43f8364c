// Package spike measures what an outlier channel of SwiGLU costs w3's three
// products under a recipe: the experiment behind Smooth-SwiGLU.
//
// A [Problem] is one MLP with random data, in which one channel's rows of
// up_proj and gate_proj are equal, as training aligns them, and as large as
// asked for: its activation is then about the square of its input. Of the
// channel's size 1 the largest activation is that of the other channels, of
// size 1000 it is a spike. A [Bench] runs the problem step by step under a
// recipe, with the programs of packages nn and the kernels of backend emu, and
// compares the operands that w3's products read with the exact ones.
//
// Everything but w3's operands is kept out: up_proj and gate_proj run in BF16,
// and the weights do not learn.
package spike

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"octet/fp8"
)

// Problem is one MLP and its batch, the same in every step. Channel 0 is the
// outlier.
type Problem struct {
	Tokens, Dim, FFN int

	x, dy          []float32 // [tokens, dim], values of BF16
	up, gate, down []float32 // [ffn, dim], [ffn, dim], [dim, ffn]
	direction      []float32 // [dim]: the outlier's row but for its length, x·direction being about 1
	reach          float64   // the largest x·direction of the batch
	top            float64   // the largest activation of the other channels

	mu    sync.Mutex
	exact map[float64]*products // by size
}

// NewProblem draws the data. Inputs and weights are such that up_proj's and
// gate_proj's results are about 1.
func NewProblem(tokens, dim, ffn int, seed uint64) *Problem {
	rng := rand.New(rand.NewPCG(seed, 0))
	normal := func(n int, sigma float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(sigma * rng.NormFloat64())
		}
		return x
	}
	p := &Problem{Tokens: tokens, Dim: dim, FFN: ffn, exact: map[float64]*products{}}
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

// outlier is channel 0's row of up_proj and gate_proj for a size.
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

// dot adds up in four parts, which do not wait for each other.
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

// Errors is how far w3's products are from the exact ones, as a share of their
// norm; and without the outlier's part: of y what does not come from its
// channel, of dgrad and wgrad the other columns. Once an outlier dominates a
// product, the error of the whole does not show that everything else is lost.
type Errors struct {
	Fprop, FpropOthers float64
	Dgrad, DgradOthers float64
	Wgrad, WgradOthers float64

	Saturated float64 // share of h's elements that the cast clipped
}

// Worst is the largest of the six.
func (e Errors) Worst() float64 {
	return max(e.Fprop, e.FpropOthers, e.Dgrad, e.DgradOthers, e.Wgrad, e.WgradOthers)
}

// operands is what w3's products read, dequantised: the input of fprop
// [tokens, ffn], W3 [dim, ffn], dY [tokens, dim] and so on.
type operands struct {
	input, weight         []float64
	grad, gradWeight      []float64
	wgradGrad, wgradInput []float64

	rowScale     []float64 // of fprop, [tokens], or nil
	colScale     []float64 // of wgrad, [ffn], or nil
	invC, factor []float64 // of the activation's backward, [ffn] and [tokens], or nil
}

// products is what they compute.
type products struct {
	y, others []float64 // [tokens, dim]
	da        []float64 // [tokens, ffn]
	dw        []float64 // [dim, ffn]
}

func (p *Problem) products(o operands) *products {
	tokens, dim, ffn := p.Tokens, p.Dim, p.FFN
	r := &products{
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
		scaleRows(r.da, inverse(o.factor))
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

// errors compares what was computed with what is exact.
func (p *Problem) errors(got, want *products) Errors {
	return Errors{
		Fprop: distance(got.y, want.y, p.Dim, 0), FpropOthers: distance(got.others, want.others, p.Dim, 0),
		Dgrad: distance(got.da, want.da, p.FFN, 0), DgradOthers: distance(got.da, want.da, p.FFN, 1),
		Wgrad: distance(got.dw, want.dw, p.FFN, 0), WgradOthers: distance(got.dw, want.dw, p.FFN, 1),
	}
}

// distance is ‖got − want‖/‖want‖ over the columns from one on.
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

func addTo(sum []float64, factor float64, x []float64) {
	for i, v := range x {
		sum[i] += factor * v
	}
}

func scaleRows(x, factors []float64) {
	for i, f := range factors {
		cols := len(x) / len(factors)
		for j := range x[i*cols : (i+1)*cols] {
			x[i*cols+j] *= f
		}
	}
}

func scaleCols(x, factors []float64) {
	if factors != nil {
		for i := range x {
			x[i] *= factors[i%len(factors)]
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
