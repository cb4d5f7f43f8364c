package nn_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// tanhGLU is Out = Up ⊙ tanh(Gate), an op of another package.
type tanhGLU struct {
	backend.Custom
	Up   *backend.Tensor `op:"in"`
	Gate *backend.Tensor `op:"in"`
	Out  []backend.Cast  `op:"cast"`
}

func (o *tanhGLU) Check(*backend.Check) {}

func (o *tanhGLU) Reference(a backend.Arguments) {
	y, gate := a.Read(o.Up), a.Read(o.Gate)
	for i := range y {
		y[i] *= math.Tanh(gate[i])
	}
	a.Cast(o.Out, y, o.Up.Cols())
}

type tanhGLUGrad struct {
	backend.Custom
	DOut  *backend.Tensor `op:"in"`
	Up    *backend.Tensor `op:"in"`
	Gate  *backend.Tensor `op:"in"`
	DUp   []backend.Cast  `op:"cast"`
	DGate []backend.Cast  `op:"cast"`
}

func (o *tanhGLUGrad) Check(*backend.Check) {}

func (o *tanhGLUGrad) Reference(a backend.Arguments) {
	dUp, dGate, up, gate := a.Read(o.DOut), a.Read(o.DOut), a.Read(o.Up), a.Read(o.Gate)
	for i, g := range gate {
		s := math.Tanh(g)
		dUp[i] *= s
		dGate[i] *= up[i] * (1 - s*s)
	}
	a.Cast(o.DUp, dUp, o.Up.Cols())
	a.Cast(o.DGate, dGate, o.Up.Cols())
}

var tanh = nn.Nonlinearity{
	Gated: true,
	Forward: func(up, gate *backend.Tensor, out []backend.Cast) backend.Op {
		return &tanhGLU{Up: up, Gate: gate, Out: out}
	},
	Backward: func(dOut, up, gate *backend.Tensor, dUp, dGate []backend.Cast) backend.Op {
		return &tanhGLUGrad{DOut: dOut, Up: up, Gate: gate, DUp: dUp, DGate: dGate}
	},
}

// errRegistered is of the registration of tanh-glu, with which TestGradientsMatchCentralDifferences
// builds a model.
var errRegistered = nn.RegisterActivation("tanh-glu", tanh)

func TestRegisterActivation(t *testing.T) {
	require.NoError(t, errRegistered)
	require.Contains(t, nn.Activations(), nn.Activation("tanh-glu"))
	f, err := nn.LookupActivation("tanh-glu")
	require.NoError(t, err)
	require.True(t, f.Gated)
	_, err = nn.LookupActivation("tanh-gl")
	known := strings.Trim(strings.ReplaceAll(fmt.Sprint(nn.Activations()), " ", ", "), "[]")
	require.EqualError(t, err, `unknown activation "tanh-gl": this program has `+known+`; for another, run a program that registers it (nn.RegisterActivation); did you mean tanh-glu?`)

	for name, want := range map[nn.Activation]string{
		"tanh-glu": "activation tanh-glu: this process already has an activation of this name",
		nn.SwiGLU:  "activation swiglu: this process already has an activation of this name",
		"silu":     "activation silu: config.json calls swiglu by this name",
		"":         `activation "": expected at most 40 lower-case letters`,
		"Tanh":     `activation "Tanh": expected at most 40 lower-case letters`,
		"a b":      `activation "a b": expected at most 40 lower-case letters`,
		"2relu":    `activation "2relu": expected at most 40 lower-case letters`,
	} {
		require.ErrorContains(t, nn.RegisterActivation(name, tanh), want)
	}
	require.EqualError(t, nn.RegisterActivation("half", nn.Nonlinearity{Forward: tanh.Forward}), "activation half needs Forward and Backward")
	require.NotContains(t, nn.Activations(), nn.Activation("half"))
}

// An unknown activation of an MLP is an error of Build, and of a model's configuration.
func TestUnknownActivation(t *testing.T) {
	r, err := recipe.Lookup("bf16")
	require.NoError(t, err)
	for _, name := range []nn.Activation{"", "tanh"} {
		b, err := nn.NewBase(r, backend.NewVars())
		require.NoError(t, err)
		b.MLP("layers.3.mlp", nn.MLPShape{Dim: 16, FFN: 32, Activation: name})
		require.ErrorContains(t, b.Build(), `layers.3.mlp: unknown activation "`+string(name)+`"`)
	}
	c := nn.Config{Layers: 1, Dim: 16, Heads: 1, KVHeads: 1, FFN: 16, Vocab: 16, Activation: "tanh", RopeTheta: 2, NormEps: 1, InitStd: 1}
	require.ErrorContains(t, c.Validate(), `model.activation: unknown activation "tanh"`)
}

// Telemetry of channels measures |up ⊙ silu(gate)|, which other activations do not have.
func TestChannelTelemetry(t *testing.T) {
	for activation, want := range map[nn.Activation]bool{nn.SwiGLU: true, nn.SmoothSwiGLU: true, nn.ReLU: false, "tanh-glu": false} {
		r, err := recipe.Lookup("fp8-delayed")
		require.NoError(t, err)
		vars := backend.NewVars()
		m, err := nn.New(nn.Config{
			Layers: 1, Dim: 16, Heads: 1, KVHeads: 1, FFN: 16, Vocab: 16, Activation: activation, RopeTheta: 2, NormEps: 1, InitStd: 1,
		}, r, vars)
		require.NoError(t, err)
		m.DeclareGrads()
		p := vars.Program("micro")
		pass := m.Pass(p, nn.Train, nn.Shape{Batch: 1, Seq: 16, Control: vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)})
		pass.Health = m.DeclareHealth()
		require.Equal(t, want, pass.Health.Channels != nil, activation)
		tokens := vars.Tensor(backend.Input, "tokens", fp8.I32, 16)
		m.LossAndGrads(pass, tokens, tokens)
		require.NoError(t, p.Err())
		measured := false
		for _, n := range p.Nodes() {
			_, ok := n.Op.(*backend.SwiGLUAmax)
			measured = measured || ok
		}
		require.Equal(t, want, measured, activation)
	}
}
