package bench

import (
	"encoding/binary"
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// Activations is the default of Layers: tensors that caches may hold, and larger ones.
var Activations = []Matrix{{1024, 1024}, {1 << 15, 1 << 11}}

// layerOps are the ops of a step between its GEMMs and attention, on BF16 tensors. What a GEMM
// reads is stored in E4M3.
var layerOps = []struct {
	name string
	op   func(t *layerTensors) backend.Op
}{
	{"embedding", func(t *layerTensors) backend.Op {
		return &backend.Embed{Table: t.input(), IDs: t.ids(t.rows), Out: t.bf16()}
	}},
	{"embedding backward", func(t *layerTensors) backend.Op {
		return &backend.EmbedGrad{IDs: t.ids(t.rows), DOut: t.input(), DTable: t.add(backend.State, fp8.F32, t.rows, t.cols), Accumulate: true}
	}},
	{"rmsnorm", func(t *layerTensors) backend.Op {
		return &backend.RMSNorm{X: t.input(), Gain: t.vector(t.cols), Out: t.fp8(), InvRMS: t.add(backend.Output, fp8.F32, t.rows), Eps: 1e-5}
	}},
	{"rmsnorm backward", func(t *layerTensors) backend.Op {
		return &backend.RMSNormGrad{
			DOut: t.input(), X: t.input(), Gain: t.vector(t.cols), InvRMS: t.vector(t.rows), Residual: t.input(),
			DX: t.bf16(), DGain: t.add(backend.Output, fp8.F32, t.cols),
		}
	}},
	{"rope", func(t *layerTensors) backend.Op {
		return &backend.Rope{X: t.input(), Out: t.bf16(), Seq: t.rows, HeadDim: t.headSize(), Theta: 1e4}
	}},
	{"swiglu", func(t *layerTensors) backend.Op {
		return &backend.SwiGLU{Up: t.input(), Gate: t.input(), Out: t.fp8()}
	}},
	{"swiglu, maxima of channels", func(t *layerTensors) backend.Op {
		return &backend.SwiGLUAmax{Up: t.input(), Gate: t.input(), Out: t.add(backend.Output, fp8.F32, t.cols)}
	}},
	{"swiglu, smoothed per channel", func(t *layerTensors) backend.Op {
		return &backend.SwiGLU{Up: t.input(), Gate: t.input(), InvC: t.vector(t.cols), Out: t.fp8()}
	}},
	{"swiglu, smoothed per token", func(t *layerTensors) backend.Op {
		return &backend.SwiGLU{Up: t.input(), Gate: t.input(), TokenScale: t.add(backend.Output, fp8.F32, t.rows), Out: t.fp8()}
	}},
	{"swiglu backward", func(t *layerTensors) backend.Op {
		return &backend.SwiGLUGrad{DOut: t.input(), Up: t.input(), Gate: t.input(), DUp: t.fp8(), DGate: t.fp8()}
	}},
	{"gelu", func(t *layerTensors) backend.Op {
		return &backend.Activation{X: t.input(), Out: t.fp8(), Kind: backend.GELU}
	}},
	{"gelu backward", func(t *layerTensors) backend.Op {
		return &backend.ActivationGrad{X: t.input(), DOut: t.input(), DX: t.fp8(), Kind: backend.GELU}
	}},
	{"add", func(t *layerTensors) backend.Op {
		return &backend.Add{A: t.input(), B: t.input(), Out: t.bf16()}
	}},
	{"cross-entropy", func(t *layerTensors) backend.Op {
		return &backend.CrossEntropy{
			Logits: t.input(), Targets: t.ids(t.cols), Control: t.fill.control(t.vars),
			Loss: t.add(backend.Output, fp8.F32, t.rows), DLogits: t.add(backend.Output, fp8.BF16, t.rows, t.cols), Valid: t.cols,
		}
	}},
}

// Layers returns the cases of the ops between GEMMs and attention, for tensors of each shape: tokens,
// and features or the vocabulary.
func (b *Bench) Layers(shapes []Matrix) ([]Case, error) {
	var list []Case
	for _, m := range shapes {
		for _, op := range layerOps {
			t := &layerTensors{vars: backend.NewVars(), fill: contents{}, rows: m.Rows, cols: m.Cols, e4m3: b.spec.E4M3}
			p := t.vars.Program("layers")
			p.Add(op.op(t))
			list = append(list, Case{bench: "layers", name: op.name, shape: m.String(), program: p, fill: t.fill, limit: byBytes})
		}
	}
	return b.check(list)
}

// layerTensors declares the operands of an op.
type layerTensors struct {
	vars       *backend.Vars
	fill       contents
	rows, cols int
	e4m3       fp8.DType
	count      int
}

func (t *layerTensors) add(class backend.Class, d fp8.DType, shape ...int) *backend.Tensor {
	t.count++
	return t.vars.Tensor(class, fmt.Sprintf("t%d", t.count), d, shape...)
}

func (t *layerTensors) input() *backend.Tensor       { return t.add(backend.Stash, fp8.BF16, t.rows, t.cols) }
func (t *layerTensors) vector(n int) *backend.Tensor { return t.add(backend.Stash, fp8.F32, n) }

func (t *layerTensors) bf16() []backend.Cast {
	return []backend.Cast{{Out: t.add(backend.Output, fp8.BF16, t.rows, t.cols)}}
}

// fp8 is a cast with a scale and an amax, as in delayed scaling.
func (t *layerTensors) fp8() []backend.Cast {
	t.count++
	name := fmt.Sprintf("t%d", t.count)
	out := t.vars.Tensor(backend.Output, name, t.e4m3, t.rows, t.cols)
	out.Scale = t.fill.one(t.vars, name+".scale_inv")
	return []backend.Cast{{Out: out, Scale: t.fill.one(t.vars, name+".scale"), Amax: t.fill.one(t.vars, name+".amax")}}
}

// ids gives each row a number below n.
func (t *layerTensors) ids(n int) *backend.Tensor {
	list := t.add(backend.Input, fp8.I32, t.rows)
	for i := range t.rows {
		t.fill[list] = binary.LittleEndian.AppendUint32(t.fill[list], uint32(i*7%n))
	}
	return list
}

// headSize is 64 where that divides the columns, else all columns.
func (t *layerTensors) headSize() int {
	if t.cols%64 == 0 {
		return 64
	}
	return t.cols
}
