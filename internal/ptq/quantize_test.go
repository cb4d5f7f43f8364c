package ptq

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/infer"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

// ids is a stream of tokens.
type ids []int32

func (s ids) Len() int64 { return int64(len(s)) }

func (s ids) ReadTokens(dst []int32, at int64) error {
	copy(dst, s[at:])
	return nil
}

const (
	dim, ffn, vocab = 32, 48, 64
	batch, seq      = 2, 16
)

// small returns a model of two layers with normal weights, and how to observe it.
func small(t *testing.T, threads int) (Source, Options) {
	c := checkpoint.Config{
		HiddenSize: dim, IntermediateSize: ffn, NumHiddenLayers: 2, NumAttentionHeads: 2, NumKeyValueHeads: 1,
		VocabSize: vocab, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 1e4, HiddenAct: "silu", Gated: true,
	}
	model, err := train.FromHF(c)
	require.NoError(t, err)
	params := map[string][]float32{}
	r := rand.New(rand.NewPCG(1, 2))
	for name, shape := range c.Layout() {
		n := checkpoint.Tensor{Shape: shape}.Elems()
		params[name] = normal(r, int(n))
		if strings.HasSuffix(name, "_proj.weight") {
			for i := range params[name] {
				params[name][i] /= 8
			}
		}
	}
	plain, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	stream := make(ids, 2000)
	for i := range stream {
		stream[i] = r.Int32N(vocab)
	}
	return Source{c, model, func(name string) ([]float32, error) { return slices.Clone(params[name]), nil }}, Options{
		OnDevice: func(do func(backend.Backend) error) error {
			dev, err := backend.Open("emu", backend.Options{Threads: threads})
			if err != nil {
				return err
			}
			if err := do(dev); err != nil {
				return err
			}
			return dev.Close()
		},
		Plain: plain, Tokens: stream, Windows: infer.Windows{Batch: batch, Seq: seq},
	}
}

func lookup(t *testing.T, name string) Scheme {
	s, err := Lookup(name)
	require.NoError(t, err)
	return s
}

// The inputs that Quantize observes are those of the linear layers: that of the first
// q_proj is the norm of the embedding.
func TestObservedInputs(t *testing.T) {
	from, o := small(t, 0)
	m, err := Quantize(t.Context(), lookup(t, "w8a8-fp8"), from, o)
	require.NoError(t, err)
	var widths [2][4]map[int]int
	var first []float32
	require.NoError(t, m.observe(t.Context(), o, []int{0, 1}, func(layer, reader int, x []float32) {
		if first == nil && layer == 0 && reader == 0 {
			first = x
		}
		if widths[layer][reader] == nil {
			widths[layer][reader] = map[int]int{}
		}
		widths[layer][reader][len(x)]++
	}))
	const tokens = batch * seq
	for layer := range widths {
		for i, want := range []int{dim, dim, dim, ffn} {
			require.Equal(t, map[int]int{tokens * want: 16}, widths[layer][i])
		}
	}
	embedding, err := m.Param(checkpoint.EmbeddingWeight)
	require.NoError(t, err)
	gain, err := m.Param("model.layers.0.input_layernorm.weight")
	require.NoError(t, err)
	for token := range tokens {
		row := embedding[int(o.Tokens.(ids)[token])*dim:][:dim]
		squares := 0.0
		for _, v := range row {
			squares += float64(v) * float64(v)
		}
		for j, v := range row {
			require.InDelta(t, float64(v)*float64(gain[j])/math.Sqrt(squares/dim+1e-5), first[token*dim+j], 1e-5)
		}
	}
}

// SmoothQuant divides what computes an input and multiplies the weights that read it, by scales
// that move the largest inputs and weights together.
func TestSmoothKeepsTheFunction(t *testing.T) {
	from, o := small(t, 0)
	m, err := Quantize(t.Context(), lookup(t, "w8a8-int8-smooth"), from, o)
	require.NoError(t, err)
	get := func(name string) (before, after []float32) {
		before, err := from.Param("model.layers.1." + name + ".weight")
		require.NoError(t, err)
		after, err = m.smoothed("model.layers.1." + name + ".weight")
		require.NoError(t, err)
		return before, after
	}
	gain, smoothGain := get("post_attention_layernorm")
	up, smoothUp := get("mlp.up_proj")
	gate, smoothGate := get("mlp.gate_proj")
	down, smoothDown := get("mlp.down_proj")
	s, c := m.divide["model.layers.1.post_attention_layernorm.weight"], m.divide["model.layers.1.mlp.up_proj.weight"]
	for j := range dim {
		require.NotEqual(t, float32(1), s[j])
		require.InEpsilon(t, gain[j]/s[j], smoothGain[j], 1e-6)
		for i := range ffn {
			require.InEpsilon(t, up[i*dim+j]*s[j]/c[i], smoothUp[i*dim+j], 1e-6)
			require.InEpsilon(t, gate[i*dim+j]*s[j], smoothGate[i*dim+j], 1e-6)
			require.InEpsilon(t, down[j*ffn+i]*c[i], smoothDown[j*ffn+i], 1e-6)
		}
	}
	o1, smoothO := get("self_attn.o_proj")
	require.Equal(t, o1, smoothO)
	// Inputs and weights of every channel now have the same largest magnitude.
	inputs, weights := map[int][]float32{}, map[int][]float32{2: make([]float32, dim), 3: make([]float32, ffn)}
	require.NoError(t, m.observe(t.Context(), o, []int{1}, func(_, reader int, x []float32) {
		if inputs[reader] == nil {
			inputs[reader] = make([]float32, m.shapes[paramName(0, readers[reader].weights[0])][1])
		}
		columnMax(inputs[reader], x)
	}))
	columnMax(weights[2], smoothUp)
	columnMax(weights[2], smoothGate)
	columnMax(weights[3], smoothDown)
	for reader, w := range weights {
		for j := range w {
			require.InEpsilon(t, inputs[reader][j], w[j], 0.02, "rounding of the gains to BF16")
		}
	}
}

// GPTQ observes each layer after the earlier ones are quantized. The codes do not depend on
// the number of threads.
func TestGPTQOfAModel(t *testing.T) {
	from, o := small(t, 1)
	s := Scheme{Name: "test", Bits: 3, Group: 16, GPTQ: true}
	m, err := Quantize(t.Context(), s, from, o)
	require.NoError(t, err)
	_, others := small(t, 3)
	again, err := Quantize(t.Context(), s, from, others)
	require.NoError(t, err)
	require.Equal(t, m.done, again.done)
	require.Len(t, m.done, 14)
	require.InDelta(t, 4, m.Bits(), 1e-9)

	name := paramName(1, "self_attn.k_proj")
	w, err := from.Param(name)
	require.NoError(t, err)
	quantizedFrom := func(of *Model) Matrix {
		h := newHessian(dim)
		require.NoError(t, of.observe(t.Context(), o, []int{1}, func(_, reader int, x []float32) {
			if reader == 0 {
				h.add(x)
			}
		}))
		u, err := h.factor()
		require.NoError(t, err)
		return s.gptq(w, u, dim/2, dim)
	}
	source, err := Quantize(t.Context(), Scheme{Name: "w8a8", Input: fp8.E4M3}, from, o)
	require.NoError(t, err)
	require.Equal(t, m.done[name], quantizedFrom(m))
	require.NotEqual(t, m.done[name], quantizedFrom(source))
	values, err := m.Param(name)
	require.NoError(t, err)
	require.Equal(t, m.done[name].Values(), values)
}

// A W8A8 model computes in its recipe; weights of 16-bit schemes are dequantized values.
func TestEvaluation(t *testing.T) {
	from, o := small(t, 0)
	loss := func(name string) float64 {
		s := lookup(t, name)
		m, err := Quantize(t.Context(), s, from, o)
		require.NoError(t, err)
		r, err := s.Recipe(o.Plain)
		require.NoError(t, err)
		require.NoError(t, r.Validate())
		sum := 0.0
		require.NoError(t, o.OnDevice(func(dev backend.Backend) error {
			e, err := infer.NewEvaluator(t.Context(), from.Model, r, m, dev, infer.Windows{Batch: batch, Seq: seq}, nil)
			require.NoError(t, err)
			sum, err = e.Evaluate(t.Context(), o.Tokens, nil)
			return err
		}))
		return sum
	}
	eight := loss("w8a8-int8")
	for _, name := range []string{"w8a8-fp8", "w4a16-g32-rtn"} {
		require.NotEqual(t, eight, loss(name))
		require.InDelta(t, eight, loss(name), 0.3, name)
	}
}

func TestRefusedModels(t *testing.T) {
	from, o := small(t, 0)
	from.Config.HiddenAct = "gelu"
	_, err := Quantize(t.Context(), lookup(t, "w8a8-fp8"), from, o)
	require.EqualError(t, err, "quantization w8a8-fp8 is for Llama models, with hidden_act silu: the model has gelu")
	from.Config.HiddenAct = "silu"
	from.Param = func(string) ([]float32, error) { return nil, errNotPositive }
	for _, name := range []string{"w4a16-g32-rtn", "w8a8-fp8"} {
		m, err := Quantize(t.Context(), lookup(t, name), from, o)
		require.NoError(t, err)
		_, err = m.Param(paramName(0, "self_attn.q_proj"))
		require.ErrorIs(t, err, errNotPositive)
		_, err = m.Weight(paramName(0, "self_attn.q_proj"))
		require.ErrorIs(t, err, errNotPositive)
	}
	_, err = Quantize(t.Context(), lookup(t, "w4a16-g32"), from, o)
	require.ErrorIs(t, err, errNotPositive)
	_, err = (&Model{}).Scale("x")
	require.ErrorIs(t, err, nn.ErrNoTensor)
}
