package nn_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// classifier is a model that is no Llama: softmax(W2 · gelu(W1 · x)).
type classifier struct {
	*nn.Base
	first, second         *nn.Linear
	input, hidden         *nn.Slot
	hiddenGrad, logitGrad *nn.Slot
	width, classes        int
}

func newClassifier(r recipe.Recipe, vars *backend.Vars, in, width, classes int) (*classifier, error) {
	b, err := nn.NewBase(r, vars)
	if err != nil {
		return nil, err
	}
	m := &classifier{Base: b, width: width, classes: classes}
	m.first = b.Linear("first", in, width, 0.3)
	m.second = b.Linear("second", width, classes, 0.3)
	m.input = b.Slot("input", m.first.Inputs()...)
	m.hidden = b.Slot("hidden", m.second.Inputs()...)
	m.hiddenGrad = b.Slot("first.grad", m.first.Grads()...)
	m.logitGrad = b.Slot("second.grad", m.second.Grads()...)
	return m, b.Build()
}

// lossAndGrads appends a forward and a backward pass over samples [batch, in] with the
// classes labels. It returns each sample's cross-entropy.
func (m *classifier) lossAndGrads(p *nn.Pass, samples, labels *backend.Tensor) *backend.Tensor {
	m.ClearMaxima(p)
	batch := p.Tokens()
	x := p.Store(m.input, batch, samples.Cols(), func(out []backend.Cast) backend.Op {
		return &backend.Quantize{X: samples, Out: out}
	})
	up := m.first.Forward(p, x, nil)
	h := p.Store(m.hidden, batch, m.width, func(out []backend.Cast) backend.Op {
		return &backend.Activation{X: up, Out: out, Kind: backend.GELU}
	})
	logits, wide := m.second.Forward(p, h, nil), p.Temp("logits", fp8.F32, batch, m.classes)
	p.Add(&backend.Quantize{X: logits, Out: []backend.Cast{{Out: wide}}})
	losses, dLogits := p.Temp("losses", fp8.F32, batch), p.Temp("logits.grad", m.Recipe.Compute, batch, m.classes)
	p.Add(&backend.CrossEntropy{Logits: wide, Targets: labels, Loss: losses, DLogits: dLogits, Control: p.Control, Valid: m.classes})

	q := p.Backward()
	dy := q.Store(m.logitGrad, batch, m.classes, func(out []backend.Cast) backend.Op {
		return &backend.Quantize{X: dLogits, Out: out}
	})
	m.second.Wgrad(q, h, dy, nil)
	dh := q.Temp("hidden.grad", m.Recipe.Compute, batch, m.width)
	m.second.Dgrad(q, dy, dh, false)
	du := q.Store(m.hiddenGrad, batch, m.width, func(out []backend.Cast) backend.Op {
		return &backend.ActivationGrad{DOut: dh, X: up, DX: out, Kind: backend.GELU}
	})
	m.first.Wgrad(q, x, du, nil)
	return losses
}

// problem is a classifier on the float64 reference backend, with random weights.
func (m *classifier) problem(t *testing.T, mode ref.Mode) (run func() float64, dev *ref.Backend) {
	const batch = 16
	vars := m.Vars
	m.DeclareGrads()
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	samples := vars.Tensor(backend.Input, "samples", fp8.F32, batch, 32)
	labels := vars.Tensor(backend.Input, "labels", fp8.I32, batch)
	loss := vars.Tensor(backend.Output, "loss", fp8.F32, 1)
	shape := nn.Shape{Batch: batch, Seq: 1, Control: control}
	cast, step := vars.Program("cast"), vars.Program("step")
	m.CastWeights(m.Pass(cast, nn.Train, shape))
	step.Add(&backend.Sum{X: m.lossAndGrads(m.Pass(step, nn.Calibrate, shape), samples, labels), Out: loss})
	require.NoError(t, cast.Err())
	require.NoError(t, step.Err())

	dev = ref.Open(nil, mode)
	loaded, err := dev.Load(cast, step)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(3, 4))
	normal := func(n int, std float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = std * r.NormFloat64()
		}
		return x
	}
	require.NoError(t, dev.SetValues(samples, normal(batch*32, 1)))
	classes := make([]float64, batch)
	for i := range classes {
		classes[i] = float64(r.IntN(m.classes))
	}
	require.NoError(t, dev.SetValues(labels, classes))
	require.NoError(t, dev.Write(control, backend.Control{InvTokens: 1}.AppendTo(nil)))
	for c, value := range m.Constants() {
		require.NoError(t, dev.SetValues(c, slices.Repeat([]float64{float64(value)}, c.Elems())))
	}
	for _, p := range m.Params {
		require.NoError(t, dev.SetValues(p.Master, normal(p.Elems(), 0.3)))
	}
	return func() float64 {
		for _, x := range loaded {
			require.NoError(t, x.Run(t.Context()))
		}
		values, err := dev.Values(loss)
		require.NoError(t, err)
		return values[0]
	}, dev
}

// A model of another package than nn computes exact gradients in FP32, and under every
// recipe gradients that point the same way.
func TestModelOfLayers(t *testing.T) {
	exact, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	m, err := newClassifier(exact, backend.NewVars(), 32, 48, 16)
	require.NoError(t, err)
	value, dev := m.problem(t, ref.Exact)
	values := func(dev *ref.Backend, x *backend.Tensor) []float64 {
		v, err := dev.Values(x)
		require.NoError(t, err)
		return v
	}
	value()
	r := rand.New(rand.NewPCG(1, 2))
	for _, p := range m.Params {
		grad, x := values(dev, p.Grad), values(dev, p.Master)
		for range 5 {
			i := r.IntN(len(x))
			const h = 1e-5
			at := func(v float64) float64 {
				y := slices.Clone(x)
				y[i] = v
				require.NoError(t, dev.SetValues(p.Master, y))
				return value()
			}
			numeric := (at(x[i]+h) - at(x[i]-h)) / (2 * h)
			require.NoError(t, dev.SetValues(p.Master, x))
			require.InDelta(t, numeric, grad[i], 2e-6*(1+math.Abs(numeric)), "%s[%d]", p.Name, i)
		}
	}
	value()
	want := values(dev, m.Params[0].Grad)

	for _, name := range recipe.Names() {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		if name == "fp8-unit" {
			continue // scale 1 underflows these gradients
		}
		m, err := newClassifier(r.Over(nil), backend.NewVars(), 32, 48, 16) // no layer has a number
		require.NoError(t, err, name)
		value, dev := m.problem(t, ref.Rounded)
		value()
		least := 0.97
		if slices.ContainsFunc(r.Rows, func(row recipe.Row) bool { return row.DType == fp8.E2M1 }) {
			least = 0.9 // each operand of 4 bits has a relative error above 0.1
		}
		require.Greater(t, cosine(want, values(dev, m.Params[0].Grad)), least, name)
	}
}

func cosine(a, b []float64) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab, aa, bb = ab+a[i]*b[i], aa+a[i]*a[i], bb+b[i]*b[i]
	}
	return ab / math.Sqrt(aa*bb)
}

// Declarations come before Build, passes after it, and a slot has the copies of its readers.
func TestOrderOfDeclarations(t *testing.T) {
	r, err := recipe.Lookup("fp8-delayed")
	require.NoError(t, err)
	m, err := newClassifier(r, backend.NewVars(), 32, 48, 16)
	require.NoError(t, err)
	require.EqualError(t, m.Build(), "nn: Build is called twice: call it once, after all layers and slots are declared")
	p := m.Pass(m.Vars.Program("p"), nn.Train, nn.Shape{Batch: 16, Seq: 1})
	require.PanicsWithValue(t, "nn: slot late is declared after Build: declare all layers and slots before", func() {
		p.Open(m.Slot("late", m.first.Inputs()...), 16, 32)
	})
	require.PanicsWithValue(t, "nn: parameter third.weight is declared after Build: declare all layers and slots before", func() {
		m.Linear("third", 16, 16, 0.1)
	})
	require.PanicsWithValue(t, "nn: slot input has no copy e5m2 delayed history 16 margin 4 stochastic: declare the slot with the copies of all its readers", func() {
		p.Open(m.input, 16, 32).As(m.first.Grads()[0])
	})
	require.NoError(t, p.Err())

	early, err := nn.NewBase(r, backend.NewVars())
	require.NoError(t, err)
	require.PanicsWithValue(t, "nn: program q records a pass before Build: call Build first", func() {
		early.Pass(early.Vars.Program("q"), nn.Train, nn.Shape{})
	})
}

// A model with an embedding needs no head.
func TestEmbeddingWithoutAHead(t *testing.T) {
	for _, name := range []string{"fp32", "bf16"} {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		for _, shards := range []int{1, 2} {
			vars := backend.NewVars()
			b, err := nn.NewBase(r, vars)
			require.NoError(t, err)
			b.Shards = shards
			e := b.Embedding("words", "words", 20, 16, 0.1)
			require.NoError(t, b.Build())
			p := vars.Program("p")
			ids := vars.Tensor(backend.Input, "ids", fp8.I32, 4)
			x := e.Forward(b.Pass(p, nn.Train, nn.Shape{Batch: 4, Seq: 1}), ids)
			require.NoError(t, p.Err())
			require.Equal(t, []int{4, 16}, x.Shape)
		}
	}
}

// A Base cannot count the layers that are yet to be declared; a Model knows their number.
func TestSlicesNeedTheLayers(t *testing.T) {
	r, err := recipe.Lookup("fp8-current")
	require.NoError(t, err)
	r.Rows = append([]recipe.Row{{Scope: "layers[-1:].*", DType: fp8.BF16}}, r.Rows...)
	_, err = nn.NewBase(r, backend.NewVars())
	require.ErrorContains(t, err, "recipe fp8-current: its scopes have slices, which count the model's layers: call Recipe.Over")
	c := nn.Config{Layers: 2, Dim: 32, Heads: 2, KVHeads: 1, FFN: 32, Vocab: 32, Activation: nn.SwiGLU, RopeTheta: 1e4, NormEps: 1e-5, InitStd: 0.1}
	m, err := nn.New(c, r, backend.NewVars())
	require.NoError(t, err)
	for _, l := range m.Linears() {
		got := m.Recipe.Cast(l, recipe.Fprop, recipe.Weight).DType
		require.Equal(t, strings.HasPrefix(l.Scope, "layers.0."), got == fp8.E4M3, l.Scope)
	}
}
