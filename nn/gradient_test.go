package nn_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// lossProblem is a tiny model on the float64 reference backend.
type lossProblem struct {
	t            *testing.T
	model        *nn.Model
	dev          *ref.Backend
	run          backend.Executable
	loss, tokens *backend.Tensor
	program      *backend.Program
	nodes        int
}

// newLossProblem records the model in FP32; rows give formats to GEMM operands.
func newLossProblem(t *testing.T, c nn.Config, seq int, rows ...recipe.Row) *lossProblem {
	r, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	r.Rows = rows
	return newRecipeProblem(t, c, seq, r)
}

// newRecipeProblem is newLossProblem with a recipe.
func newRecipeProblem(t *testing.T, c nn.Config, seq int, r recipe.Recipe) *lossProblem {
	return newStartedProblem(t, c, seq, r, nil)
}

// newStartedProblem is newRecipeProblem with the starts of documents; nil: rows are whole.
func newStartedProblem(t *testing.T, c nn.Config, seq int, r recipe.Recipe, starts []float64) *lossProblem {
	const batch = 2
	vars := backend.NewVars()
	m, err := nn.New(c, r, vars)
	require.NoError(t, err)
	m.DeclareGrads()
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	tokens := vars.Tensor(backend.Input, "tokens", fp8.I32, batch*seq)
	targets := vars.Tensor(backend.Input, "targets", fp8.I32, batch*seq)
	loss := vars.Tensor(backend.Output, "loss", fp8.F32, 1)
	p := vars.Program("micro")
	shape := nn.Shape{Batch: batch, Seq: seq, Control: control}
	if starts != nil {
		shape.Start = vars.Tensor(backend.Input, "start", fp8.I32, batch*seq)
	}
	pass := m.Pass(p, nn.Train, shape)
	m.CastWeights(pass)
	losses := m.LossAndGrads(pass, tokens, targets)
	p.Add(&backend.Sum{X: losses, Out: loss})
	require.NoError(t, p.Err())

	dev := ref.Open(nil, ref.Exact)
	loaded, err := dev.Load(p)
	require.NoError(t, err)
	lp := &lossProblem{t: t, model: m, dev: dev, run: loaded[0], loss: loss, tokens: tokens, nodes: len(p.Nodes()), program: p}

	rng := rand.New(rand.NewPCG(7, 7))
	ids := make([]float64, batch*seq)
	for i := range ids {
		ids[i] = float64(rng.IntN(c.Vocab))
	}
	require.NoError(t, dev.SetValues(tokens, ids))
	next := append(ids[1:len(ids):len(ids)], ids[0])
	next[3] = -1 // an ignored target
	require.NoError(t, dev.SetValues(targets, next))
	if starts != nil {
		require.NoError(t, dev.SetValues(shape.Start, starts))
	}
	raw := backend.Control{InvTokens: 1}.AppendTo(nil)
	require.NoError(t, dev.Write(control, raw))
	for _, param := range m.Params {
		x := make([]float64, param.Master.Elems())
		for i := range x {
			x[i] = rng.NormFloat64() * 0.4
			if !param.Matrix {
				x[i]++
			}
		}
		require.NoError(t, dev.SetValues(param.Master, x))
	}
	return lp
}

func (lp *lossProblem) value() float64 {
	require.NoError(lp.t, lp.run.Run(context.Background()))
	loss := lp.values(lp.loss)[0]
	if stats := lp.model.RouteStats; stats != nil {
		for x := lp.values(stats); len(x) > 0; x = x[stats.Cols():] { // of a layer
			loss += lp.model.Config.MoE.Aux * x[backend.RouteAux]
		}
	}
	return loss
}

func (lp *lossProblem) values(t *backend.Tensor) []float64 {
	x, err := lp.dev.Values(t)
	require.NoError(lp.t, err)
	return x
}

// The gradients equal central differences in float64: four elements of every
// parameter, for every activation, with grouped KV heads and a tied head.
func TestGradientsMatchCentralDifferences(t *testing.T) {
	base := nn.Config{
		Layers: 2, Dim: 8, Heads: 2, KVHeads: 2, FFN: 12, Vocab: 19,
		Activation: nn.SwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
	}
	variant := func(f func(*nn.Config)) nn.Config { c := base; f(&c); return c }
	for name, c := range map[string]nn.Config{
		"swiglu":  base,
		"grouped": variant(func(c *nn.Config) { c.KVHeads = 1 }),
		"tied":    variant(func(c *nn.Config) { c.Tied = true }),
		"gelu":    variant(func(c *nn.Config) { c.Activation = nn.GELU }),
		"relu":    variant(func(c *nn.Config) { c.Activation = nn.ReLU }),
		"post":    variant(func(c *nn.Config) { c.Norm = nn.PostNorm }),
		"both":    variant(func(c *nn.Config) { c.Norm, c.NormGain = nn.BothNorms, 0.5 }),
		"qk":      variant(func(c *nn.Config) { c.QKNorm, c.KVHeads = nn.LearnedQKNorm, 1 }),
		"frozen":  variant(func(c *nn.Config) { c.QKNorm = nn.FrozenQKNorm }),
		"biases":  variant(func(c *nn.Config) { c.QKVBias, c.KVHeads = true, 1 }),
		"qk bias": variant(func(c *nn.Config) { c.QKVBias, c.QKNorm, c.HeadSize = true, nn.LearnedQKNorm, 6 }),
		"wide":    variant(func(c *nn.Config) { c.HeadSize, c.KVHeads = 10, 1 }),
		"llama3":  variant(func(c *nn.Config) { c.HeadSize, c.RopeScaling = 8, nn.RopeScaling{8, 0.1, 2, 5} }),
		"linear":  variant(func(c *nn.Config) { c.RopeScaling = nn.RopeScaling{Factor: 3} }),
		"scaled":  variant(func(c *nn.Config) { c.LayerScale, c.EmbedScale, c.Tied = new(0.1), 3, true }),
		"fog": variant(func(c *nn.Config) {
			c.Norm, c.NoFinalNorm, c.QKNorm, c.EmbedScale = nn.PostNorm, true, nn.FrozenQKNorm, 3
		}),
		"all": variant(func(c *nn.Config) {
			c.Norm, c.NoFinalNorm, c.QKNorm, c.EmbedScale, c.Tied = nn.BothNorms, true, nn.LearnedQKNorm, 3, true
		}),
		"experts":   variant(func(c *nn.Config) { c.Layers, c.MoE = 1, nn.MoEShape{Experts: 3, PerToken: 2, Capacity: 2, Aux: 0.7} }),
		"switch":    variant(func(c *nn.Config) { c.Layers, c.MoE = 1, nn.MoEShape{Experts: 3, PerToken: 1, Capacity: 2, Aux: 0.7} }),
		"dropped":   variant(func(c *nn.Config) { c.Layers, c.MoE = 1, nn.MoEShape{Experts: 4, PerToken: 2, Capacity: 0.5, Aux: 0.7} }),
		"documents": variant(func(c *nn.Config) { c.KVHeads = 1 }),
		"other":     variant(func(c *nn.Config) { c.Activation = "tanh-glu" }), // registered
	} {
		t.Run(name, func(t *testing.T) {
			seq := 5
			if name == "dropped" {
				seq = 20
			}
			var starts []float64
			if name == "documents" {
				starts = []float64{0, 0, 2, 3, 3, 0, 1, 1, 1, 1}
			}
			plain, err := recipe.Lookup("fp32")
			require.NoError(t, err)
			plain.Rows = nil
			lp := newStartedProblem(t, c, seq, plain, starts)
			rng := rand.New(rand.NewPCG(1, 2))
			for _, p := range lp.model.Params {
				lp.value() // the previous run used shifted weights
				grad, x := lp.values(p.Grad), lp.values(p.Master)
				for range 4 {
					i := rng.IntN(len(x))
					const h = 1e-5
					at := func(v float64) float64 {
						y := slices.Clone(x)
						y[i] = v
						require.NoError(t, lp.dev.SetValues(p.Master, y))
						return lp.value()
					}
					numeric := (at(x[i]+h) - at(x[i]-h)) / (2 * h)
					require.NoError(t, lp.dev.SetValues(p.Master, x))
					require.InDelta(t, numeric, grad[i], 2e-6*(1+math.Abs(numeric)), fmt.Sprintf("%s[%d]", p.Name, i))
				}
			}
		})
	}
}

// The head computes the same loss and gradients in chunks of tokens; the last chunk is shorter.
func TestHeadInChunks(t *testing.T) {
	for _, tied := range []bool{false, true} {
		c := nn.Config{
			Layers: 1, Dim: 8, Heads: 2, KVHeads: 2, FFN: 12, Vocab: 19, Tied: tied,
			Activation: nn.SwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
		}
		whole := newLossProblem(t, c, 20)
		restore := nn.SetHeadElems(1)
		chunks := newLossProblem(t, c, 20) // 16, 16 and 8
		restore()
		require.Equal(t, whole.nodes+2*4, chunks.nodes, "logits GEMM, loss and two backward GEMMs for two more chunks")
		require.InEpsilon(t, whole.value(), chunks.value(), 1e-12)
		for i, p := range whole.model.Params {
			want, got := whole.values(p.Grad), chunks.values(chunks.model.Params[i].Grad)
			require.InDeltaSlice(t, want, got, 1e-12, p.Name)
		}
	}
}
