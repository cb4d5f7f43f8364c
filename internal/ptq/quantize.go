package ptq

import (
	"context"
	"fmt"
	"strings"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/fp8"
	"octet/infer"
	"octet/internal/hostmem"
	"octet/nn"
	"octet/recipe"
)

// Source is the model to quantize.
type Source struct {
	Config checkpoint.Config
	Model  nn.Config
	// Param returns a parameter by its Hugging Face name, in FP32.
	Param func(name string) ([]float32, error)
}

// Options say where and on what Quantize computes the inputs of linear layers.
type Options struct {
	// OnDevice calls do with a device that no program is bound to.
	OnDevice func(do func(backend.Backend) error) error
	Plain    recipe.Recipe // of the computation: one that quantizes nothing
	Tokens   data.Tokens   // up to 16 batches of them, spread evenly
	infer.Windows
}

// Model is a quantized model. It is what package infer evaluates, with the recipe
// [Scheme.Recipe] and the activation SwiGLU.
type Model struct {
	Scheme Scheme
	source Source
	shapes map[string][]int // of all parameters
	// SmoothQuant divides the rows of a parameter, elements of a norm's gain, and multiplies
	// the columns of the weights that read them.
	divide, multiply map[string][]float32
	done             map[string]Matrix // what GPTQ has quantized
}

// Check returns an error for a model that no scheme quantizes.
func (s Scheme) Check(from Source) error {
	if act := from.Config.HiddenAct; act != "silu" {
		return fmt.Errorf("quantization %s is for Llama models, with hidden_act silu: the model has %s", s.Name, act)
	}
	if from.Model.MoE.Experts > 0 {
		return fmt.Errorf("quantization %s is for models with one MLP in each layer: this one has %d experts; leave out --quant", s.Name, from.Model.MoE.Experts)
	}
	return nil
}

// Quantize quantizes a model. A scheme with SmoothQuant or GPTQ computes the model on
// o.Tokens, once for SmoothQuant and once for each layer for GPTQ, whose inputs are those
// of a model with the earlier layers quantized.
func Quantize(ctx context.Context, s Scheme, from Source, o Options) (*Model, error) {
	if err := s.Check(from); err != nil {
		return nil, err
	}
	from.Model.Activation = nn.SwiGLU
	m := &Model{
		Scheme: s, source: from, shapes: map[string][]int{},
		divide: map[string][]float32{}, multiply: map[string][]float32{}, done: map[string]Matrix{},
	}
	for name, shape := range from.Config.Layout() {
		m.shapes[name] = shape
	}
	if s.Smooth > 0 {
		if err := m.smooth(ctx, o); err != nil {
			return nil, err
		}
	}
	if !s.GPTQ {
		return m, nil
	}
	c := from.Config
	n := int64(max(c.IntermediateSize, c.NumAttentionHeads*c.HeadSize()))
	if err := hostmem.Check("quantization "+s.Name, 4*8*n*n, "use "+s.Name+"-rtn, or a machine with more memory"); err != nil {
		return nil, err
	}
	for layer := range c.NumHiddenLayers {
		if err := m.gptqLayer(ctx, layer, o); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// IsLinear reports whether a parameter is a weight that schemes quantize: of a linear layer,
// but for the head.
func IsLinear(name string) bool { return strings.HasSuffix(name, "_proj.weight") }

// Weight returns a quantized weight.
func (m *Model) Weight(name string) (Matrix, error) {
	if w, ok := m.done[name]; ok {
		return w, nil
	}
	w, err := m.smoothed(name)
	if err != nil {
		return Matrix{}, err
	}
	shape := m.shapes[name]
	return m.Scheme.nearest(w, shape[0], shape[1]), nil
}

// Param returns a parameter as the model computes with it: quantized integer weights
// dequantized, those of W8A8 before the cast, which the recipe makes, and others rounded to
// BF16. Before GPTQ quantizes a weight, Param returns the source's.
func (m *Model) Param(name string) ([]float32, error) {
	_, done := m.done[name]
	if IsLinear(name) && m.Scheme.Bits > 0 && (done || !m.Scheme.GPTQ) {
		w, err := m.Weight(name)
		if err != nil {
			return nil, err
		}
		return w.Values(), nil
	}
	x, err := m.smoothed(name)
	if err != nil || IsLinear(name) {
		return x, err
	}
	codes := make([]uint16, len(x))
	fp8.EncodeBF16(codes, x)
	fp8.DecodeBF16(x, codes)
	return x, nil
}

// Bits returns the mean number of bits of a quantized weight, scales included.
func (m *Model) Bits() float64 {
	bits, weights := 0.0, 0.0
	for name, shape := range m.source.Config.Layout() {
		if IsLinear(name) {
			n := float64(shape[0]) * float64(shape[1])
			bits, weights = bits+n*m.Scheme.bits(shape[1]), weights+n
		}
	}
	return bits / weights
}

// Scale implements infer.Weights: a quantized model has no scale state.
func (m *Model) Scale(name string) ([]float32, error) {
	return nil, fmt.Errorf("a quantized model has no scale state: %w %q", nn.ErrNoTensor, name)
}

// smoothed returns a parameter of the source with SmoothQuant's scales folded in.
func (m *Model) smoothed(name string) ([]float32, error) {
	x, err := m.source.Param(name)
	if err != nil {
		return nil, err
	}
	if s := m.divide[name]; s != nil {
		cols := len(x) / len(s)
		for i := range x {
			x[i] /= s[i/cols]
		}
	}
	if s := m.multiply[name]; s != nil {
		for i := range x {
			x[i] *= s[i%len(s)]
		}
	}
	return x, nil
}

// reader is an input of linear layers: the weights that read it, and the parameter whose rows
// compute its channels, "" if channels are shared. Names are those within a layer.
type reader struct {
	weights []string
	source  string
}

// readers are the inputs of a layer. A down_proj's channels are linear in those of up_proj.
// The heads of o_proj's channels may share a value, so nothing is folded there.
var readers = []reader{
	{[]string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, "input_layernorm"},
	{[]string{"self_attn.o_proj"}, ""},
	{[]string{"mlp.up_proj", "mlp.gate_proj"}, "post_attention_layernorm"},
	{[]string{"mlp.down_proj"}, "mlp.up_proj"},
}

func paramName(layer int, module string) string {
	return fmt.Sprintf("model.layers.%d.%s.weight", layer, module)
}

// observe computes the model on the calibration tokens and calls see with the inputs
// [tokens, channels] of the readers of these layers, batch by batch.
func (m *Model) observe(ctx context.Context, o Options, layers []int, see func(layer, reader int, x []float32)) error {
	type key struct{ layer, reader int }
	at := map[string]key{} // by the path of the first linear layer that reads the input
	for _, layer := range layers {
		for i, r := range readers {
			at[fmt.Sprintf("layers.%d.%s", layer, r.weights[0])] = key{layer, i}
		}
	}
	return o.OnDevice(func(dev backend.Backend) error {
		e, err := infer.NewEvaluator(ctx, m.source.Model, o.Plain, m, dev, o.Windows, nil)
		if err != nil {
			return err
		}
		return e.Observe(ctx, o.Tokens, func(n *backend.Node, mem backend.Memory) error {
			op, ok := n.Op.(*backend.MatMul)
			k, first := at[n.Scope]
			if !ok || !first {
				return nil
			}
			raw, err := mem.Read(op.A)
			if err != nil {
				return err
			}
			x := make([]float32, op.A.Elems())
			op.A.DType.Decode(x, raw)
			see(k.layer, k.reader, x)
			return nil
		})
	})
}

// gptqLayer quantizes the weights of a layer.
func (m *Model) gptqLayer(ctx context.Context, layer int, o Options) error {
	sums := make([]*hessian, len(readers))
	for i, r := range readers {
		sums[i] = newHessian(m.shapes[paramName(layer, r.weights[0])][1])
	}
	err := m.observe(ctx, o, []int{layer}, func(_, reader int, x []float32) { sums[reader].add(x) })
	if err != nil {
		return err
	}
	for i, r := range readers {
		u, err := sums[i].factor()
		if err != nil {
			return fmt.Errorf("layers.%d.%s: %w", layer, r.weights[0], err)
		}
		for _, module := range r.weights {
			name := paramName(layer, module)
			w, err := m.smoothed(name)
			if err != nil {
				return err
			}
			shape := m.shapes[name]
			m.done[name] = m.Scheme.gptq(w, u, shape[0], shape[1])
		}
	}
	return nil
}
