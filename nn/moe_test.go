package nn

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
	"octet/recipe"
)

// The layer is its definition in float64, written without the ops: softmax over the token's
// experts, SwiGLU experts, tokens in order until an expert is full, and the residual. Tokens 4 and
// 5 are equal and have equal logits for all experts. Evaluation drops none.
func TestMoEIsItsDefinition(t *testing.T) {
	const tokens, dim, ffn = 40, 6, 5
	for _, c := range []struct {
		shape MoEShape
		mode  Mode
		drops bool
	}{
		{MoEShape{Experts: 3, PerToken: 2, Capacity: 3}, Train, false},
		{MoEShape{Experts: 4, PerToken: 2, Capacity: 0.8}, Train, true},
		{MoEShape{Experts: 3, PerToken: 1, Capacity: 1}, Train, true},
		{MoEShape{Experts: 4, PerToken: 2, Capacity: 0.8}, Frozen, false},
	} {
		r, err := recipe.Lookup("fp32")
		require.NoError(t, err)
		vars := backend.NewVars()
		b, err := NewBase(r, vars)
		require.NoError(t, err)
		l := b.MoE("layers.0", c.shape, MLPShape{Dim: dim, FFN: ffn, Activation: SwiGLU, InitStd: 1, OutStd: 1})
		require.NoError(t, b.Build())
		x, residual := vars.Tensor(backend.Input, "x", fp8.F32, tokens, dim), vars.Tensor(backend.Input, "residual", fp8.F32, tokens, dim)
		out := vars.Tensor(backend.Output, "out", fp8.F32, tokens, dim)
		p := vars.Program("forward")
		pass := b.Pass(p, c.mode, Shape{Batch: 2, Seq: tokens / 2})
		b.CastWeights(pass)
		y, _ := l.Forward(pass, pass.castStored(l.input, x), residual)
		p.Add(&backend.Quantize{X: y, Out: []backend.Cast{{Out: out}}})
		require.NoError(t, p.Err())
		dev := ref.Open(nil, ref.Exact)
		runs, err := dev.Load(p)
		require.NoError(t, err)

		rng, values := rand.New(rand.NewPCG(1, 2)), map[*backend.Tensor][]float64{}
		fill := func(to *backend.Tensor) []float64 {
			list := make([]float64, to.Elems())
			for i := range list {
				list[i] = rng.NormFloat64()
			}
			if to == x {
				clear(list[4*dim : 6*dim])
			}
			values[to] = list
			require.NoError(t, dev.SetValues(to, list))
			return list
		}
		fill(x)
		want := slices.Clone(fill(residual))
		for _, w := range b.Params {
			fill(w.Master)
		}
		require.NoError(t, runs[0].Run(t.Context()))

		rows, dropped := c.shape.Rows(tokens), 0
		if c.mode == Frozen {
			rows = tokens
		}
		times := func(w *Linear, v []float64) (y []float64) {
			for row := range slices.Chunk(values[w.weight.Master], len(v)) {
				sum := 0.0
				for i := range v {
					sum += row[i] * v[i]
				}
				y = append(y, sum)
			}
			return y
		}
		taken := make([]int, c.shape.Experts)
		for token := range tokens {
			v := values[x][token*dim : (token+1)*dim]
			logits := times(l.gate, v)
			order := []int{0, 1, 2, 3}[:c.shape.Experts]
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
			total := 0.0
			for i, e := range order {
				if i < c.shape.PerToken || c.shape.PerToken == 1 {
					total += math.Exp(logits[e])
				}
			}
			for _, e := range order[:c.shape.PerToken] {
				if taken[e]++; taken[e] > rows {
					dropped++
					continue
				}
				h, gate := times(l.experts[e].up, v), times(l.experts[e].gate, v)
				for i, g := range gate {
					h[i] *= g / (1 + math.Exp(-g))
				}
				for i, y := range times(l.experts[e].down, h) {
					want[token*dim+i] += math.Exp(logits[e]) / total * y
				}
			}
		}
		require.Equal(t, c.drops, dropped > 0, "%d dropped", dropped)
		got, err := dev.Values(out)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 1e-6, "%+v", c)
	}
}

// An expert has rows for the capacity factor times its even share, in sixteens, and never more
// than there are tokens.
func TestExpertRows(t *testing.T) {
	for want, s := range map[int]MoEShape{
		640: {Experts: 4, PerToken: 2, Capacity: 1.25}, 1024: {Experts: 4, PerToken: 2, Capacity: 2},
		144: {Experts: 8, PerToken: 1, Capacity: 1.01}, 16: {Experts: 1024, PerToken: 1, Capacity: 0.5},
	} {
		require.Equal(t, want, s.Rows(1024))
	}
	require.Equal(t, 7, MoEShape{Experts: 4, PerToken: 2, Capacity: 1}.Rows(7))
}

// The GEMMs of experts leave out rows without tokens, except for a wgrad of rotated operands, whose
// rows of zeros have values. The router's are in BF16 under every recipe. Those of all experts follow
// each other, so that a backend can group them: of up and gate, of down, of down's gradients, of those
// of up and gate.
func TestGEMMsOfExperts(t *testing.T) {
	for name, rotated := range map[string]bool{"fp8-smooth": false, "mxfp4-rht": true} {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		c := Config{
			Layers: 1, Dim: 32, Heads: 2, KVHeads: 2, FFN: 48, Vocab: 32, Activation: SwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
			MoE: MoEShape{Experts: 2, PerToken: 1, Capacity: 1},
		}
		vars := backend.NewVars()
		m, err := New(c, r, vars)
		require.NoError(t, err)
		m.DeclareGrads()
		p := vars.Program("micro")
		ids := vars.Tensor(backend.Input, "ids", fp8.I32, 64)
		m.LossAndGrads(m.Pass(p, Train, Shape{Batch: 2, Seq: 32, Control: vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)}), ids, ids)
		require.NoError(t, p.Err())
		experts, routers := 0, 0
		var runs []int // of consecutive GEMMs of experts
		last := -2
		for i, n := range p.Nodes() {
			o, ok := n.Op.(*backend.MatMul)
			if ok && strings.Contains(n.Scope, ".experts.") {
				if i > last+1 {
					runs = append(runs, 0)
				}
				last = i
				runs[len(runs)-1]++
			}
			switch {
			case !ok:
			case strings.Contains(n.Scope, ".experts."):
				experts++
				require.Equal(t, !(rotated && o.TransA), o.Used != nil, "%s %s", name, n.Path())
			case strings.HasSuffix(n.Scope, "mlp.gate"):
				routers++
				require.Equal(t, fp8.BF16, o.A.DType)
				require.Nil(t, o.Used)
			default:
				require.Nil(t, o.Used)
			}
		}
		require.Equal(t, 2*9, experts, name)
		require.Equal(t, 3, routers, name)
		require.Equal(t, []int{4, 2, 4, 8}, runs, name)
	}
}
