package nn

import (
	"math"
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Param is one trained tensor.
type Param struct {
	Name   string          // as Hugging Face's Llama names it
	Master *backend.Tensor // F32 or BF16, or F16 with a scale
	Grad   *backend.Tensor // F32 Stash; nil until DeclareGrads

	Matrix  bool // decayed; its moments may be quantised
	InLayer bool // belongs to a decoder layer, not to embedding, head or final norm
	Rows    int  // rows that mean something: a padded vocabulary has more

	std float64 // of the initial values; 0: ones, a norm's gain
}

// Init returns the initial values [Master.Elems()], drawn from a stream of
// their own that depends on the seed and the name alone: models that share a
// seed share their tensors, whatever else differs.
func (p *Param) Init(seed uint64) []float32 {
	x := make([]float32, p.Master.Elems())
	if p.std == 0 {
		for i := range x {
			x[i] = 1
		}
		return x
	}
	r := rand.New(rand.NewPCG(seed, fp8.NameKey(p.Name)))
	for i := range x[:p.Rows*p.Master.Cols()] {
		x[i] = float32(p.std * r.NormFloat64())
	}
	return x
}

// param declares a master in the recipe's format: scaled F16 belongs to the
// matrices of the layers, everything else is F32.
func (m *Model) param(name string, inLayer bool, std float64, shape ...int) *Param {
	p := &Param{Name: name, Matrix: len(shape) == 2, InLayer: inLayer, Rows: shape[0], std: std}
	dtype := fp8.F32
	if p.Quantized() {
		dtype = m.Recipe.Optimizer.Master
	}
	p.Master = m.Vars.Tensor(backend.Param, name, dtype, shape...)
	if recipe.Scaled(dtype) {
		p.Master.Scale = m.Vars.Tensor(backend.State, name+".scale_inv", fp8.F32, 1)
	}
	m.Params = append(m.Params, p)
	return p
}

// Quantized reports whether the recipe's optimizer formats apply.
func (p *Param) Quantized() bool { return p.Matrix && p.InLayer }

// DeclareGrads declares a gradient for every parameter: called once, by who
// records backward passes.
func (m *Model) DeclareGrads() {
	for _, p := range m.Params {
		p.Grad = m.Vars.Tensor(backend.Stash, p.Name+".grad", fp8.F32, p.Master.Shape...)
	}
}

// complete marks a gradient as final: in the last micro-batch it is summed
// over ranks, beside the rest of the backward.
func (p *Pass) complete(param *Param) {
	if p.Last && p.Ranks > 1 {
		p.Program.Phase(backend.Comm).On(backend.CommQueue).Add(&backend.AllReduce{X: param.Grad})
	}
}

// residualStd is the initial spread of projections that write to the residual
// stream, so that its variance does not grow with depth.
func (c Config) residualStd() float64 {
	return c.InitStd / math.Sqrt(2*float64(c.Layers))
}
