package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Param is one trained tensor.
//
// With Config.Shards ranks share the optimizer's state of a matrix, as in ZeRO's
// first stage: rank r has the r-th of equal parts of the master's rows, under the
// name of the whole. The gradient is computed whole and reduced to those rows.
// What reads the weight reads all of them: casts gather the masters for as long as
// they need them, and what a micro-batch reads itself is kept whole beside.
type Param struct {
	Name    string          // as Hugging Face's Llama names it
	Shape   []int           // of the whole, padding rows included
	Master  *backend.Tensor // F32 or BF16, or F16 with a scale; in shards: this rank's rows
	Grad    *backend.Tensor // F32 Stash, whole; nil until DeclareGrads
	Reduced *backend.Tensor // what Master is updated with: Grad, or in shards F32 Stash

	Matrix    bool // decayed
	Quantized bool // the recipe's optimizer formats apply: a matrix of a decoder layer
	Rows      int  // rows that mean something: a padded vocabulary has more

	whole *backend.Tensor // all rows: Master, or in shards Stash; nil if only casts read it
	std   float64         // of the initial values; 0: ones, a norm's gain
}

// Elems is the number of elements of the whole.
func (p *Param) Elems() int { return p.Shape[0] * p.Cols() }

// Cols is the number of elements of a row; a vector has one.
func (p *Param) Cols() int {
	if p.Matrix {
		return p.Shape[1]
	}
	return 1
}

// Sharded reports whether Master holds a part of the rows.
func (p *Param) Sharded() bool { return p.Master.Shape[0] < p.Shape[0] }

// Init returns the initial values [Elems()], drawn from a stream of their own that
// depends on the seed and the name alone: models that share a seed share their
// tensors, whatever else differs.
func (p *Param) Init(seed uint64) []float32 {
	if p.std == 0 {
		return slices.Repeat([]float32{1}, p.Elems())
	}
	x := make([]float32, p.Elems())
	r := rand.New(rand.NewPCG(seed, fp8.NameKey(p.Name)))
	for i := range x[:p.Rows*p.Cols()] {
		x[i] = float32(p.std * r.NormFloat64())
	}
	return x
}

// Padded returns a parameter's values [Rows·Cols()], which is what files hold, with
// zeros for the padding rows: [Elems()]. Another number of values is an error.
func (p *Param) Padded(x []float32) ([]float32, error) {
	if want := p.Rows * p.Cols(); len(x) != want {
		return nil, fmt.Errorf("%s has %d values, the model wants %d", p.Name, len(x), want)
	}
	full := make([]float32, p.Elems())
	copy(full, x)
	return full, nil
}

// param declares a master: in the recipe's format if quantized, else in F32.
func (m *Model) param(name string, quantized bool, std float64, shape ...int) *Param {
	p := &Param{Name: name, Shape: shape, Matrix: len(shape) == 2, Quantized: quantized, Rows: shape[0], std: std}
	dtype := fp8.F32
	if quantized {
		dtype = m.Recipe.Optimizer.Master
	}
	if p.Matrix && m.Config.Shards > 1 {
		shape = []int{shape[0] / m.Config.Shards, shape[1]}
	}
	p.Master = m.Vars.Tensor(backend.Param, name, dtype, shape...)
	if recipe.Scaled(dtype) {
		p.Master.Scale = m.Vars.Tensor(backend.State, name+".scale_inv", fp8.F32, 1)
	}
	if !p.Sharded() {
		p.whole = p.Master
	}
	m.Params = append(m.Params, p)
	return p
}

// wholeOf is the weight for what a micro-batch reads itself.
func (m *Model) wholeOf(p *Param) *backend.Tensor {
	if p.whole == nil {
		p.whole = m.Vars.Tensor(backend.Stash, p.Name+".whole", p.Master.DType, p.Shape...)
		p.whole.Scale = p.Master.Scale
	}
	return p.whole
}

// gather returns all rows of a weight: a temp of this name, unless they are kept.
// The ranks meet there.
func (p *Pass) gather(w *Param, name string) *backend.Tensor {
	if w.whole != nil {
		return w.whole
	}
	t := p.Temp(name, w.Master.DType, w.Shape...)
	t.Scale = w.Master.Scale
	p.comm().Add(&backend.AllGather{X: w.Master, Out: t})
	return t
}

// comm is the program as ranks meet in it.
func (p *Pass) comm() *backend.Program { return p.Program.Phase(backend.Comm).On(backend.CommQueue) }

// DeclareGrads declares a gradient for every parameter: called once, by who
// records backward passes.
func (m *Model) DeclareGrads() {
	for _, p := range m.Params {
		p.Grad = m.Vars.Tensor(backend.Stash, p.Name+".grad", fp8.F32, p.Shape...)
		if p.Reduced = p.Grad; p.Sharded() {
			p.Reduced = m.Vars.Tensor(backend.Stash, p.Name+".grad.shard", fp8.F32, p.Master.Shape...)
		}
	}
}

// complete marks a gradient as final: in the last micro-batch it is summed
// over ranks, beside the rest of the backward.
func (p *Pass) complete(param *Param) {
	switch {
	case !p.Last || p.Ranks < 2:
	case param.Sharded():
		p.comm().Add(&backend.ReduceScatter{X: param.Grad, Out: param.Reduced})
	default:
		p.comm().Add(&backend.AllReduce{X: param.Grad})
	}
}

// residualStd is the initial spread of projections that write to the residual
// stream, so that its variance does not grow with depth.
func (c Config) residualStd() float64 {
	return c.InitStd / math.Sqrt(2*float64(c.Layers))
}
