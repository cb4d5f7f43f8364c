package nn

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Param is one trained tensor.
//
// With Base.Shards ranks share the optimizer state of a matrix, as in stage 1 of
// ZeRO: rank r holds the r-th of equal blocks of the master's rows, under the name of
// the full tensor. Rows of zeros pad the last blocks if the number of ranks does not divide
// that of rows. Gradients are computed in full and reduce-scattered to those rows: in the last
// micro-batch or, from stage 2 on, in every one. A gradient to which head and embedding add is
// always scattered in the last one.
// Readers need all rows: each rank casts its rows, and all-gathers join the codes (gather.go);
// a master that micro-batches read directly has a persistent full copy. At stage 3 they gather both in
// every micro-batch ([backend.GatherShards]).
type Param struct {
	Name    string          // of a decoder: the name in Hugging Face's Llama
	Shape   []int           // of the full tensor, padding rows included
	Split   Split           // how the ranks that share a layer divide it
	Part    []int           // shape of this rank's part by Split: Shape, unless ranks share layers
	Master  *backend.Tensor // F32 or BF16, or F16 with a scale; if sharded, this rank's rows and padding
	Grad    *backend.Tensor // Stash [Part], F32 or recipe.Optimizer.Grad; nil until DeclareGrads, and if micro-batches scatter it
	Reduced *backend.Tensor // the gradient that updates Master: Grad, or if sharded this rank's rows, in the same format

	Matrix    bool // weight decay applies
	Quantized bool // the recipe's optimizer formats apply: the weight of a linear layer other than the head
	Embedding bool // the table of an embedding
	Head      bool // the weight of a head; both if they share it
	Rows      int  // rows without padding; less than Shape[0] if the vocabulary is padded

	whole *backend.Tensor // all rows: Master, or if sharded of a Stash copy; nil if only casts read it
	// The tensors that collectives read and write, of which whole and Grad are the first rows
	// if shards have padding.
	paddedWhole, paddedGrad *backend.Tensor
	scatters                bool            // every micro-batch scatters the gradient, as in stage 2 of ZeRO
	mu, atMax               *backend.Tensor // of a gradient whose scale ranks share (shared_scale.go); nil otherwise
	std                     float64         // standard deviation of the initial values; 0: all are value
	value                   float32
}

// Elems returns the number of elements of the full tensor.
func (p *Param) Elems() int { return p.Shape[0] * p.Cols() }

// Cols returns the number of elements of a row, 1 for a vector.
func (p *Param) Cols() int {
	if p.Matrix {
		return p.Shape[1]
	}
	return 1
}

// Sharded reports whether Master holds only this rank's rows.
func (p *Param) Sharded() bool { return p.Master.Shape[0] < p.Part[0] }

// Init returns the initial values [Elems()]. Their random stream depends on the seed
// and the name alone, so models with the same seed have equal values in tensors of
// the same name and shape.
func (p *Param) Init(seed uint64) []float32 {
	if p.std == 0 {
		return slices.Repeat([]float32{p.value}, p.Elems())
	}
	x := make([]float32, p.Elems())
	r := rand.New(rand.NewPCG(seed, fp8.NameKey(p.Name)))
	for i := range x[:p.Rows*p.Cols()] {
		x[i] = float32(p.std * r.NormFloat64())
	}
	return x
}

// Padded returns x [Rows·Cols()], the values that files hold, with zeros appended
// for the padding rows: [Elems()]. Another number of values is an error.
func (p *Param) Padded(x []float32) ([]float32, error) {
	if want := p.Rows * p.Cols(); len(x) != want {
		return nil, fmt.Errorf("%s has %d values, the model expects %d", p.Name, len(x), want)
	}
	full := make([]float32, p.Elems())
	copy(full, x)
	return full, nil
}

// param declares a parameter of which every rank that shares a layer holds all.
func (b *Base) param(name string, quantized bool, std float64, shape ...int) *Param {
	return b.splitParam(NotSplit, name, quantized, std, shape...)
}

// splitParam declares a parameter, whose master has the recipe's format if quantized, else F32.
func (b *Base) splitParam(split Split, name string, quantized bool, std float64, shape ...int) *Param {
	b.declaring("parameter " + name)
	p := &Param{Name: name, Shape: shape, Part: shape, Matrix: len(shape) == 2, Quantized: quantized, Rows: shape[0], std: std, value: 1}
	if b.Tensor > 1 {
		p.Split, p.Part = split, split.part(shape, b.Tensor)
	}
	shape = p.Part
	dtype := fp8.F32
	if quantized {
		dtype = b.Recipe.Optimizer.Master
	}
	if p.Matrix && b.Shards > 1 {
		shape = []int{(shape[0] + b.Shards - 1) / b.Shards, shape[1]}
	}
	p.Master = b.Vars.Tensor(backend.Param, name, dtype, shape...)
	if recipe.Scaled(dtype) {
		p.Master.Scale = b.Vars.Tensor(backend.State, name+".scale_inv", fp8.F32, 1)
	}
	if !p.Sharded() {
		p.whole = p.Master
	}
	b.Params = append(b.Params, p)
	return p
}

// wholeOf returns all rows of a weight for a micro-batch that reads the master itself.
func (b *Base) wholeOf(p *Param) *backend.Tensor {
	if p.whole == nil {
		if name, shape := p.Name+".whole", p.paddedShape(b.Shards); b.Stage >= 3 {
			p.paddedWhole = b.Vars.Gathered(name, p.Master, shape[0], b.shardGroup())
		} else {
			p.paddedWhole = b.Vars.Tensor(backend.Stash, name, p.Master.DType, shape...)
			p.paddedWhole.Scale = p.Master.Scale
		}
		p.whole = p.withoutPadding(p.paddedWhole)
	}
	return p.whole
}

// storesWhole reports whether the rank has memory for all rows of the master: its own, or a copy.
func (p *Param) storesWhole() bool { return p.whole != nil && p.whole.Shard() == nil }

// paddedShape returns the shape of all ranks' blocks of rows together.
func (p *Param) paddedShape(ranks int) []int {
	if !p.Sharded() {
		return p.Part
	}
	return []int{ranks * p.Master.Rows(), p.Part[1]}
}

// withoutPadding returns the parameter's rows of a tensor with all ranks' blocks.
func (p *Param) withoutPadding(t *backend.Tensor) *backend.Tensor {
	if t.Shape[0] == p.Part[0] {
		return t
	}
	return t.RowRange(0, p.Part[0])
}

// comm returns the program, which records nodes as collectives on their own queue.
func (p *Pass) comm() *backend.Program { return p.Program.Phase(backend.Comm).On(backend.CommQueue) }

// DeclareGrads declares a gradient for every parameter, and the loss scale and μ if the recipe
// has them. Call it once, before recording backward passes.
func (b *Base) DeclareGrads() {
	if b.Recipe.LossScaling() {
		b.LossScale = b.Vars.Tensor(backend.State, "loss_scale", fp8.F32, 1)
	}
	for _, p := range b.Params {
		p.scatters = b.Stage >= 2 && p.Sharded() && !(p.Embedding && p.Head)
		d := fp8.F32
		if p.Quantized {
			d = b.Recipe.Optimizer.GradFormat()
		}
		if d != fp8.F32 || p.scatters {
			p.declareStoredGrad(b.Vars, d)
			continue
		}
		p.paddedGrad = b.Vars.Tensor(backend.Stash, p.Name+".grad", fp8.F32, p.paddedShape(b.Shards)...)
		p.Grad = p.withoutPadding(p.paddedGrad)
		if p.Reduced = p.Grad; p.Sharded() {
			p.Reduced = b.Vars.Tensor(backend.Stash, p.Name+".grad.shard", fp8.F32, p.Master.Shape...)
		}
	}
	b.declareMu()
	b.declareRouteStats()
}
