package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// own is a network without attention and without nn's MLP: embedding, norm, two linear
// layers with GELU beside a residual connection, norm, head.
type own struct {
	*nn.Base
	embed                   *nn.Embedding
	norm, last              *nn.RMSNorm
	up, down                *nn.Linear
	head                    *nn.Head
	input, hidden, dUp, dUs *nn.Slot
	embedGrad               *nn.Slot
	dim, ffn                int
}

func newOwn(b *nn.Base, c Config) (Network, error) {
	m := &own{Base: b, dim: c.Model.Dim, ffn: c.Model.FFN}
	m.embed = b.Embedding("embed", "embed", c.Model.Vocab, m.dim, 0.1)
	m.norm, m.last = b.RMSNorm("norm", m.dim, 1e-5), b.RMSNorm("last", m.dim, 1e-5)
	m.up, m.down = b.Linear("up", m.dim, m.ffn, 0.1), b.Linear("down", m.ffn, m.dim, 0.1)
	m.head = b.Head("lm_head", c.Model.Vocab, m.dim, 0.1)
	m.input, m.hidden = b.Slot("up.input", m.up.Inputs()...), b.Slot("down.input", m.down.Inputs()...)
	m.dUp = b.Slot("up.grad", m.up.Grads()...)
	m.dUs = b.Slot("down.grad", append(m.down.Grads(), b.Plain())...)
	m.embedGrad = b.Slot("embed.grad", b.Plain())
	return m, nil
}

func (m *own) Loss(p *nn.Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	losses, _ := m.record(p, tokens, targets, false)
	return losses
}

func (m *own) LossAndGrads(p *nn.Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	if p.First {
		m.ClearMaxima(p)
	}
	losses, backward := m.record(p, tokens, targets, true)
	backward()
	return losses
}

func (m *own) record(p *nn.Pass, tokens, targets *backend.Tensor, grads bool) (*backend.Tensor, func()) {
	n := p.Tokens()
	x := m.embed.Forward(p, tokens)
	in, saved := m.norm.Forward(p, x, m.input)
	up := m.up.Forward(p, in, nil)
	h := p.Store(m.hidden, n, m.ffn, func(out []backend.Cast) backend.Op {
		return &backend.Activation{X: up, Out: out, Kind: backend.GELU}
	})
	y, lastSaved := m.last.Forward(p, m.down.Forward(p, h, x), m.head.Input())
	losses, dy := m.head.Loss(p, y, targets, grads)
	return losses, func() {
		q := p.Backward()
		dx := m.last.Backward(q, lastSaved, dy, nil, m.dUs)
		m.down.Wgrad(q, h, dx, nil)
		dh := q.Temp("hidden.grad", m.Recipe.Compute, n, m.ffn)
		m.down.Dgrad(q, dx, dh, false)
		du := q.Store(m.dUp, n, m.ffn, func(out []backend.Cast) backend.Op {
			return &backend.ActivationGrad{DOut: dh, X: up, DX: out, Kind: backend.GELU}
		})
		m.up.Wgrad(q, in, du, nil)
		dIn := q.Temp("input.grad", m.Recipe.Compute, n, m.dim)
		m.up.Dgrad(q, du, dIn, false)
		below := m.norm.Backward(q, saved, dIn, q.Plain(dx), m.embedGrad)
		m.embed.Backward(q, tokens, q.Plain(below), false)
	}
}

// A Trainer trains a network of another package, with ranks that share the optimizer state
// and a change of recipe, and two runs have equal bits.
func TestOwnNetwork(t *testing.T) {
	c := small(t, "bf16")
	c.Network = newOwn
	c.Train.Steps, c.Train.Accumulate, c.Train.HealthEvery = 30, 2, 10
	c.Precision.Schedule = []RecipeChange{{Step: 5, Recipe: "fp8-delayed"}}
	run := func(c Config) (*team, []StepResult) {
		tr := newTrainer(t, c, c.Train.Ranks, false)
		require.NoError(t, tr.Init(t.Context()))
		return tr, steps(t, tr, c.Train.Steps)
	}
	tr, results := run(c)
	require.Less(t, results[c.Train.Steps-1].Loss, results[0].Loss-0.3)
	require.Equal(t, "fp8-delayed", tr.Recipe.Name)
	require.Equal(t, []Group{{"embedding", 256 * 32}, {"norms", 64}, {"head", 256 * 32}, {"linear", 2 * 32 * 48}}, tr.ParamGroups())
	loss, err := tr.Evaluate(t.Context())
	require.NoError(t, err)
	require.Less(t, loss, results[0].Loss)
	h, err := tr.Health(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, h.Casts)
	require.Empty(t, h.SwiGLU)

	again, same := run(c)
	for i := range results {
		require.Equal(t, results[i].Loss, same[i].Loss)
	}
	for i, p := range tr.Model.Params {
		want, err := tr.Weights(p)
		require.NoError(t, err)
		require.Len(t, want, p.Elems())
		got, err := again.Weights(again.Model.Params[i])
		require.NoError(t, err)
		require.Equal(t, want, got, p.Name)
	}

	_, err = tr.Contents("", "")
	require.ErrorIs(t, err, ErrOwnNetwork)
	require.ErrorIs(t, tr.InitFrom(t.Context(), "."), ErrOwnNetwork)
	require.ErrorIs(t, tr.Restore(t.Context(), nil), ErrOwnNetwork)

	c.Train.Ranks, c.Train.ZeroStage, c.Train.Steps = 2, 1, 8
	_, results = run(c)
	require.Less(t, results[7].Loss, results[0].Loss)
}

// Rows and the number of ranks are checked against the network's own layers.
func TestOwnNetworkIsChecked(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Network = newOwn
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.*", Format: "bf16"}}
	_, err := NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, `scope "layers.0.*" matches none of the linear layers up to down; use one of the paths up, down, lm_head, where`)
	c.Precision.Rows = []PrecisionRow{{Scope: "lm_head", Format: "e4m3", Scaling: "current"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "lm_head: grad in e4m3 current stochastic: this gradient exists in chunks of tokens only")
	c.Precision.Rows = []PrecisionRow{{Scope: "up", Format: "bf16"}}
	j, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	require.Equal(t, []recipe.Layer{{Scope: "up"}, {Scope: "down"}, {Scope: "lm_head", Head: true}}, j.Model.Linears())

	c = small(t, "bf16")
	c.Network = func(*nn.Base, Config) (Network, error) { return nil, nil }
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "Config.Network returned nil")
}

// A network without an nn.MLP has nothing to smooth, and FP8 moments.
func TestOwnNetworkUnderTheMethod(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Network = newOwn
	tr := newTrainer(t, c, 1, false)
	require.NoError(t, tr.Init(t.Context()))
	results := steps(t, tr, 10)
	require.Less(t, results[9].Loss, results[0].Loss)
	for _, p := range tr.Model.Params {
		require.Equal(t, p.Quantized, tr.optimizer.m1[p].DType.IsQuantized(), p.Name)
	}
}
