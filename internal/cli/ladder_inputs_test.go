package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/infer"
	"octet/internal/ptq"
	"octet/run"
)

// dequantized are the weights of a W8A8 model after the cast.
type dequantized struct{ *ptq.Model }

func (d dequantized) Param(name string) ([]float32, error) {
	if !ptq.IsLinear(name) {
		return d.Model.Param(name)
	}
	w, err := d.Weight(name)
	if err != nil {
		return nil, err
	}
	return w.Values(), nil
}

// lossOfInputs returns the loss of a run's model in FP32 on 16 batches of its validation data,
// with INT8 weights, and cast applied to the input [tokens, cols] of every linear layer. A nil
// cast leaves weights and inputs.
func lossOfInputs(t *testing.T, dir string, cast func(x []float32, cols int)) float64 {
	w, err := run.OpenWeights(dir, "fp32")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	corpus, _, err := run.OpenCorpus(t.Context(), *w.Run, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, corpus.Close()) }()
	scheme, err := ptq.Lookup("w8a8-int8")
	require.NoError(t, err)
	q, err := ptq.Quantize(t.Context(), scheme, ptq.Source{Config: w.HF, Model: w.Model, Param: w.Param}, ptq.Options{})
	require.NoError(t, err)
	var weights infer.Weights = dequantized{q}
	if cast == nil {
		weights = w
	}
	dev, err := backend.Open("emu", backend.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	const batch, seq = 8, 256
	e, err := infer.NewEvaluator(t.Context(), w.Model, w.Recipe, weights, dev, infer.Windows{Batch: batch, Seq: seq}, nil)
	require.NoError(t, err)

	inputs, total := map[string]bool{}, 0.0
	require.NoError(t, e.Observe(t.Context(), corpus.Val, func(n *backend.Node, m backend.Memory) error {
		switch op := n.Op.(type) {
		case *backend.MatMul:
			inputs[op.A.Name] = inputs[op.A.Name] || ptq.IsLinear(n.Scope+".weight")
		case *backend.Sum:
			x, err := backend.Values(m, op.Out)
			total += x[0]
			return err
		}
		return nil
	}))
	if cast == nil {
		return total / (16 * batch * seq)
	}
	total = 0
	casts := 0
	require.NoError(t, e.Observe(t.Context(), corpus.Val, func(n *backend.Node, m backend.Memory) error {
		if op, ok := n.Op.(*backend.Sum); ok {
			x, err := backend.Values(m, op.Out)
			total += x[0]
			return err
		}
		for _, o := range n.Operands() {
			if !inputs[o.Tensor.Name] || o.Access == backend.In {
				continue
			}
			raw, err := m.Read(o.Tensor)
			if err != nil {
				return err
			}
			x := make([]float32, o.Tensor.Elems())
			o.Tensor.DType.Decode(x, raw)
			cast(x, o.Tensor.Cols())
			casts++
			return m.Write(o.Tensor, fp8.AppendFloats(nil, x...))
		}
		return nil
	}))
	require.Equal(t, 16*4*w.Model.Layers, casts)
	return total / (16 * batch * seq)
}

// int8Cast returns a cast to INT8 and back with a scale for this many tokens; 0: for all.
func int8Cast(tokens int) func(x []float32, cols int) {
	return func(x []float32, cols int) {
		n := tokens * cols
		if n == 0 {
			n = len(x)
		}
		for ; len(x) > 0; x = x[n:] {
			scale, _ := fp8.ScaleFor(fp8.Amax(x[:n]), fp8.INT8.Max(), false)
			codes := make([]uint8, n)
			fp8.Quantize8(codes, x[:n], fp8.INT8, scale, false)
			fp8.Dequantize8(x[:n], codes, fp8.INT8, 1/scale)
		}
	}
}
