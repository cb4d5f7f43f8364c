package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// pair is an input of a forward op and its gradient.
type pair struct{ x, dx *backend.Tensor }

// layer adds a forward op and its backward to one program. The backward computes the
// gradient of Σ dout ⊙ out.
type layer struct {
	name  string
	build func(g *gradients) (out *backend.Tensor, pairs []pair)
}

// gradients is a layer's program under construction.
type gradients struct {
	vars *backend.Vars
	p    *backend.Program
	rng  *rand.Rand
	data map[*backend.Tensor][]float64
}

func (g *gradients) normal(name string, shape ...int) *backend.Tensor {
	t := g.vars.Tensor(backend.Stash, name, fp8.F32, shape...)
	values := make([]float64, t.Elems())
	for i := range values {
		values[i] = g.rng.NormFloat64()
	}
	g.data[t] = values
	return t
}

func (g *gradients) given(name string, d fp8.DType, values ...float64) *backend.Tensor {
	t := g.vars.Tensor(backend.Stash, name, d, len(values))
	g.data[t] = values
	return t
}

func cast(t *backend.Tensor) []backend.Cast { return []backend.Cast{{Out: t}} }

var layers = []layer{
	{"matmul", func(g *gradients) (*backend.Tensor, []pair) {
		x, w, y := g.normal("x", 5, 7), g.normal("w", 3, 7), g.normal("y", 5, 3)
		dx, dw, dy := g.normal("dx", 5, 7), g.normal("dw", 3, 7), g.normal("dout", 5, 3)
		g.p.Add(&backend.MatMul{A: x, B: w, TransB: true, Out: y})
		g.p.Add(&backend.MatMul{A: dy, B: w, Out: dx})
		g.p.Add(&backend.MatMul{A: dy, TransA: true, B: x, Out: dw})
		return y, []pair{{x, dx}, {w, dw}}
	}},
	{"embed", func(g *gradients) (*backend.Tensor, []pair) {
		table, ids, out := g.normal("table", 4, 3), g.given("ids", fp8.I32, 2, 0, 2, 3), g.normal("out", 4, 3)
		dTable := g.normal("dtable", 4, 3)
		g.p.Add(&backend.Embed{Table: table, IDs: ids, Out: cast(out)})
		g.p.Add(&backend.EmbedGrad{IDs: ids, DOut: g.normal("dout", 4, 3), DTable: dTable})
		return out, []pair{{table, dTable}}
	}},
	{"rmsnorm", func(g *gradients) (*backend.Tensor, []pair) {
		x, gain, out, inv := g.normal("x", 4, 6), g.normal("gain", 6), g.normal("out", 4, 6), g.normal("inv", 4)
		dx, dGain := g.normal("dx", 4, 6), g.normal("dgain", 6)
		g.p.Add(&backend.RMSNorm{X: x, Gain: gain, Out: cast(out), InvRMS: inv, Eps: 0.1})
		g.p.Add(&backend.RMSNormGrad{DOut: g.normal("dout", 4, 6), X: x, Gain: gain, InvRMS: inv, DX: cast(dx), DGain: dGain})
		return out, []pair{{x, dx}, {gain, dGain}}
	}},
	{"rope", func(g *gradients) (*backend.Tensor, []pair) {
		x, out, dx := g.normal("x", 6, 8), g.normal("out", 6, 8), g.normal("dx", 6, 8)
		forward := backend.Rope{X: x, Out: cast(out), Seq: 3, HeadDim: 4, Theta: 100}
		inverse := forward
		inverse.X, inverse.Out, inverse.Inverse = g.normal("dout", 6, 8), cast(dx), true
		g.p.Add(&forward)
		g.p.Add(&inverse)
		return out, []pair{{x, dx}}
	}},
	{"attention", func(g *gradients) (*backend.Tensor, []pair) {
		q, k, v := g.normal("q", 2*5, 4*3), g.normal("k", 2*5, 2*3), g.normal("v", 2*5, 2*3)
		dQ, dK, dV := g.normal("dq", 2*5, 4*3), g.normal("dk", 2*5, 2*3), g.normal("dv", 2*5, 2*3)
		out, lse := g.normal("out", 2*5, 4*3), g.normal("lse", 2*4, 5)
		g.p.Add(&backend.Attention{Q: q, K: k, V: v, Out: cast(out), LSE: lse, Batch: 2, HeadDim: 3})
		g.p.Add(&backend.AttentionGrad{
			DOut: g.normal("dout", 2*5, 4*3), Q: q, K: k, V: v, O: out, LSE: lse,
			DQ: cast(dQ), DK: cast(dK), DV: cast(dV), Batch: 2, HeadDim: 3,
		})
		return out, []pair{{q, dQ}, {k, dK}, {v, dV}}
	}},
	{"swiglu", func(g *gradients) (*backend.Tensor, []pair) {
		up, gate, invC, out := g.normal("up", 4, 5), g.normal("gate", 4, 5), g.normal("inv_c", 5), g.normal("out", 4, 5)
		dUp, dGate := g.normal("dup", 4, 5), g.normal("dgate", 4, 5)
		g.p.Add(&backend.SwiGLU{Up: up, Gate: gate, InvC: invC, Out: cast(out)})
		g.p.Add(&backend.SwiGLUGrad{DOut: g.normal("dout", 4, 5), Up: up, Gate: gate, InvC: invC, DUp: cast(dUp), DGate: cast(dGate)})
		return out, []pair{{up, dUp}, {gate, dGate}}
	}},
	{"gelu", func(g *gradients) (*backend.Tensor, []pair) { return g.activation(backend.GELU) }},
	{"relu", func(g *gradients) (*backend.Tensor, []pair) { return g.activation(backend.ReLU) }},
	{"crossentropy", func(g *gradients) (*backend.Tensor, []pair) {
		const invTokens = 0.25
		logits, loss, dLogits := g.normal("logits", 4, 7), g.normal("loss", 4), g.normal("dlogits", 4, 7)
		words := make([]float64, backend.ControlWords)
		words[7] = float64(int32(math.Float32bits(invTokens)))
		g.p.Add(&backend.CrossEntropy{
			Logits: logits, Targets: g.given("targets", fp8.I32, 5, -1, 0, 2), Control: g.given("step.control", fp8.I32, words...),
			Loss: loss, DLogits: dLogits, Valid: 6,
		})
		g.given("dout", fp8.F32, invTokens, invTokens, invTokens, invTokens)
		return loss, []pair{{logits, dLogits}}
	}},
}

func (g *gradients) activation(kind backend.ActivationKind) (*backend.Tensor, []pair) {
	x, out, dx := g.normal("x", 4, 5), g.normal("out", 4, 5), g.normal("dx", 4, 5)
	g.p.Add(&backend.Activation{X: x, Out: cast(out), Kind: kind})
	g.p.Add(&backend.ActivationGrad{DOut: g.normal("dout", 4, 5), X: x, DX: cast(dx), Kind: kind})
	return out, []pair{{x, dx}}
}

// Every backward op is the derivative of its forward op.
func TestGradientsByCentralDifferences(t *testing.T) {
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			vars := backend.NewVars()
			g := &gradients{vars, vars.Program(l.name), rand.New(rand.NewPCG(1, 2)), map[*backend.Tensor][]float64{}}
			out, pairs := l.build(g)
			b := Open(nil, Exact)
			loaded, err := b.Load(g.p)
			require.NoError(t, err)
			for tensor, values := range g.data {
				require.NoError(t, b.SetValues(tensor, values))
			}
			dOut := g.data[vars.Lookup("dout")]
			objective := func() float64 {
				require.NoError(t, loaded[0].Run(t.Context()))
				values, err := b.Values(out)
				require.NoError(t, err)
				return dot(dOut, values)
			}
			objective()
			var grads [][]float64 // at the unperturbed point
			for _, p := range pairs {
				dx, err := b.Values(p.dx)
				require.NoError(t, err)
				grads = append(grads, dx)
			}
			for j, p := range pairs {
				x := g.data[p.x]
				for i := range x {
					const h = 1e-5
					original := x[i]
					x[i] = original + h
					require.NoError(t, b.SetValues(p.x, x))
					above := objective()
					x[i] = original - h
					require.NoError(t, b.SetValues(p.x, x))
					below := objective()
					x[i] = original
					require.NoError(t, b.SetValues(p.x, x))
					require.InDelta(t, (above-below)/(2*h), grads[j][i], 1e-8, "%s[%d]", p.dx.Name, i)
				}
			}
		})
	}
}
