package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// widen removes every cast to FP8 from recorded programs: the tensors become FP32
// without scales. Backend ref in Exact mode then rounds nothing.
func widen(vars *backend.Vars, programs ...*backend.Program) {
	wide := func(t *backend.Tensor) {
		if t.DType.IsQuantized() {
			t.DType, t.Scale = fp8.F32, nil
		}
	}
	for t := range vars.All() {
		wide(t)
	}
	for _, p := range programs {
		for _, t := range p.Temps() {
			wide(t)
		}
		for _, n := range p.Nodes() {
			v := reflect.ValueOf(n.Op).Elem()
			for i := range v.NumField() {
				if casts, ok := v.Field(i).Interface().([]backend.Cast); ok {
					for j := range casts {
						casts[j].Scale, casts[j].Rounding = nil, fp8.Nearest
					}
				}
			}
		}
	}
}

// unrounded runs a micro-batch and an evaluation of a small model under a
// recipe without its casts. It returns losses and gradients by name.
func unrounded(t *testing.T, smooth recipe.Smooth) map[string][]float64 {
	t.Helper()
	const batch, seq = 2, 6
	r, err := recipe.Lookup("fp8-delayed")
	require.NoError(t, err)
	r.Smooth, r.History = smooth, 3
	vars := backend.NewVars()
	m, err := nn.New(nn.Config{
		Layers: 2, Dim: 16, Heads: 2, KVHeads: 1, FFN: 32, Vocab: 19,
		Activation: nn.SmoothSwiGLU, RopeTheta: 100, NormEps: 1e-5, InitStd: 0.02,
	}, r, vars)
	require.NoError(t, err)
	m.DeclareGrads()
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	tokens := vars.Tensor(backend.Input, "tokens", fp8.I32, batch*seq)
	targets := vars.Tensor(backend.Input, "targets", fp8.I32, batch*seq)
	losses := vars.Tensor(backend.Output, "losses", fp8.F32, 1)
	frozen := vars.Tensor(backend.Output, "frozen", fp8.F32, 1)
	shape := nn.Shape{Batch: batch, Seq: seq, Control: control}
	record := func(name string, mode nn.Mode, f func(p *nn.Pass)) *backend.Program {
		p := vars.Program(name)
		f(m.Pass(p, mode, shape))
		require.NoError(t, p.Err())
		return p
	}
	programs := []*backend.Program{
		record("prepare", nn.Train, m.CastWeights),
		record("micro", nn.Train, func(p *nn.Pass) {
			p.Add(&backend.Sum{X: m.LossAndGrads(p, tokens, targets), Out: losses})
		}),
		record("eval", nn.Frozen, func(p *nn.Pass) {
			p.Add(&backend.Sum{X: m.Loss(p, tokens, targets), Out: frozen})
		}),
	}
	widen(vars, programs...)
	dev := ref.Open(nil, ref.Exact)
	loaded, err := dev.Load(programs...)
	require.NoError(t, err)

	rng := rand.New(rand.NewPCG(7, 7))
	ids := func() []float64 {
		list := make([]float64, batch*seq)
		for i := range list {
			list[i] = float64(rng.IntN(m.Config.Vocab))
		}
		return list
	}
	require.NoError(t, dev.SetValues(tokens, ids()))
	require.NoError(t, dev.SetValues(targets, ids()))
	require.NoError(t, dev.Write(control, backend.Control{InvTokens: 1}.AppendTo(nil)))
	for _, p := range m.Params {
		x := make([]float64, p.Master.Elems())
		for i := range x {
			x[i] = rng.NormFloat64() * 0.4
		}
		require.NoError(t, dev.SetValues(p.Master, x))
		if p.Master.Scale != nil {
			require.NoError(t, dev.SetValues(p.Master.Scale, []float64{1}))
		}
	}
	if m.ChannelHistory != nil { // delayed smoothing scales come from there
		x := make([]float64, m.ChannelHistory.Elems())
		for i := range x {
			x[i] = math.Exp(3 * rng.NormFloat64())
		}
		require.NoError(t, dev.SetValues(m.ChannelHistory, x))
	}
	for _, x := range loaded {
		require.NoError(t, x.Run(t.Context()))
	}
	results := map[string][]float64{}
	for _, x := range append([]*backend.Tensor{losses, frozen}, gradsOf(m)...) {
		if results[x.Name], err = dev.Values(x); err != nil {
			t.Fatal(err)
		}
	}
	return results
}

func gradsOf(m *nn.Model) (list []*backend.Tensor) {
	for _, p := range m.Params {
		list = append(list, p.Grad)
	}
	return list
}

// allForms returns every form of smoothing with the settings that it allows.
func allForms() (list []recipe.Smooth) {
	for _, form := range []recipe.SmoothForm{recipe.Balanced, recipe.Linear, recipe.Product, recipe.Token, recipe.TokenLinear} {
		for _, exact := range []bool{false, true} {
			list = append(list, recipe.Smooth{Form: form, Exact: exact})
			if !form.PerToken() {
				list = append(list, recipe.Smooth{Form: form, Exact: exact, Smoothing: recipe.Delayed, Margin: 2})
			}
		}
	}
	return list
}

// Without rounding, loss and gradients do not depend on the smoothing scales: every
// form computes those of plain SwiGLU.
func TestSmoothingKeepsTheFunction(t *testing.T) {
	plain := unrounded(t, recipe.Smooth{})
	require.InEpsilon(t, plain["losses"][0], plain["frozen"][0], 1e-12)
	for _, smooth := range allForms() {
		got := unrounded(t, smooth)
		require.Len(t, got, len(plain))
		for name, want := range plain {
			var diff, norm float64
			for i := range want {
				diff += (got[name][i] - want[i]) * (got[name][i] - want[i])
				norm += want[i] * want[i]
			}
			require.Positive(t, norm, name)
			require.Less(t, math.Sqrt(diff/norm), 1e-9, "%s: %s", smooth, name)
		}
	}
}

func smoothModel(r recipe.Recipe) (*nn.Model, error) {
	return nn.New(nn.Config{
		Layers: 2, Dim: 32, Heads: 2, KVHeads: 1, FFN: 48, Vocab: 300, Activation: nn.SmoothSwiGLU,
		RopeTheta: 1e4, NormEps: 1e-5, InitStd: 0.02,
	}, r, backend.NewVars())
}

// Passes read current maxima, delayed ones or frozen ones according to form and mode.
func TestSmoothMaximaByMode(t *testing.T) {
	for _, smooth := range allForms() {
		for _, late := range []recipe.Scaling{recipe.Current, recipe.Delayed} {
			r, err := recipe.Lookup("fp8-smooth")
			require.NoError(t, err)
			r.Smooth = smooth
			r.Smooth.Hidden, r.Smooth.Weight, r.History = late, late, 24
			m, err := smoothModel(r)
			require.NoError(t, err)
			m.DeclareGrads()
			shape := nn.Shape{Batch: 1, Seq: 16, Control: m.Vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)}
			ids := m.Vars.Tensor(backend.Input, "ids", fp8.I32, 16)
			for _, mode := range []nn.Mode{nn.Train, nn.Calibrate, nn.Frozen} {
				where := fmt.Sprintf("%s, h and w3 %s, mode %d", smooth, late, mode)
				p := m.Vars.Program("p")
				if mode == nn.Frozen {
					m.Loss(m.Pass(p, mode, shape), ids, ids)
				} else {
					m.LossAndGrads(m.Pass(p, mode, shape), ids, ids)
				}
				require.NoError(t, p.Err(), where)
				scales, measures, byRow := 0, 0, 0
				for _, n := range p.Nodes() {
					switch op := n.Op.(type) {
					case *backend.SmoothScale:
						scales++
						frozen, current := mode == nn.Frozen, late == recipe.Current || mode == nn.Calibrate
						require.Equal(t, current, op.HScale != nil, where)
						require.Equal(t, current, op.WScale != nil, where)
						require.Equal(t, !frozen, op.HAmax != nil, where)
						require.Equal(t, !frozen && late == recipe.Delayed, op.WAmax != nil, where)
						rows := 1
						switch {
						case smooth.Smoothing == recipe.Delayed && mode != nn.Calibrate:
							rows = 24
						case frozen:
							rows = 16
						}
						require.Equal(t, rows, op.SmoothMax.Elems()/m.Config.FFN, where)
						require.Equal(t, rows > 1, op.SmoothMax.Class == backend.State, where)
						require.Equal(t, frozen, op.ChannelMax.Class == backend.State, where)
					case *backend.SwiGLUAmax:
						measures++
						require.Equal(t, smooth.Form == recipe.Linear, op.UpSeen != nil, where)
					case *backend.SwiGLU:
						if op.TokenScale != nil {
							byRow++
						}
					}
				}
				want := [3]int{2, 2, 0}
				if mode == nn.Frozen {
					want[1] = 0
				}
				if smooth.Form.PerToken() {
					want = [3]int{0, 0, 2}
				}
				require.Equal(t, want, [3]int{scales, measures, byRow}, where)
			}
		}
	}
}

// If the backward reads h and W3′ in another format than fprop, each copy has its
// own scale and record. A frozen pass makes only fprop's copies.
func TestSmoothInTwoFormats(t *testing.T) {
	pairs := fp8.PerTensor([2]fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE}, [2]fp8.DType{fp8.E5M2, fp8.E5M2})
	for _, late := range []recipe.Scaling{recipe.Current, recipe.Delayed} {
		r, err := recipe.Lookup("fp8-smooth")
		require.NoError(t, err)
		r.Smooth.Hidden, r.Smooth.Weight = late, late
		m, err := smoothModel(r)
		require.NoError(t, err)
		r, _, err = r.For(fp8.E4M3IEEE, pairs, m.Linears())
		require.NoError(t, err)
		for _, mode := range []nn.Mode{nn.Train, nn.Calibrate, nn.Frozen} {
			m, err := smoothModel(r)
			require.NoError(t, err)
			formats := map[*backend.Tensor]fp8.DType{} // by the tensor's scale
			var scales []*backend.SmoothScale
			for _, n := range micro(t, m, mode).Nodes() {
				if op, ok := n.Op.(*backend.SmoothScale); ok {
					scales = append(scales, op)
				}
				for _, o := range n.Operands() {
					if o.Tensor.DType.IsQuantized() {
						formats[o.Tensor.Scale] = o.Tensor.DType
					}
				}
			}
			want := []fp8.DType{fp8.E4M3IEEE, fp8.E5M2, fp8.E4M3IEEE, fp8.E5M2}
			if mode == nn.Frozen {
				want = []fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE}
			}
			require.Len(t, scales, len(want))
			for i, op := range scales {
				if late == recipe.Current || mode == nn.Calibrate {
					require.Equal(t, want[i], formats[op.HScaleInv])
					require.Equal(t, want[i], formats[op.WScaleInv])
					require.Equal(t, want[i].Max(), op.HLimit)
					require.Equal(t, want[i].Max(), op.WLimit)
				}
				if mode != nn.Frozen {
					layer := fmt.Sprintf("layers.%d.mlp.", i/2)
					require.Equal(t, layer+"hidden."+want[i].String()+".amax", op.HAmax.Name)
					if late == recipe.Delayed {
						require.Equal(t, layer+"down_proj.weight."+want[i].String()+".amax", op.WAmax.Name)
					}
				}
			}
		}
	}
}

func TestSmoothRefuses(t *testing.T) {
	bf16, blocks := recipe.Row{Scope: "*.down_proj", DType: fp8.BF16}, recipe.Row{Scope: "*.down_proj", Granularity: recipe.PerRow}
	for want, c := range map[string]struct {
		form recipe.SmoothForm
		gemm recipe.GEMM
		row  recipe.Row
		of   recipe.Operand
	}{
		"layers.0.mlp.down_proj: wgrad reads bf16 where fprop reads e4m3 current":        {recipe.Balanced, recipe.Wgrad, bf16, recipe.AnyOperand},
		"layers.0.mlp.down_proj: wgrad reads bf16":                                       {recipe.Token, recipe.Wgrad, bf16, recipe.AnyOperand},
		"wgrad reads e4m3 current where fprop reads bf16":                                {recipe.Linear, recipe.Fprop, bf16, recipe.AnyOperand},
		"dgrad reads bf16 where fprop reads e4m3":                                        {recipe.Product, recipe.Dgrad, bf16, recipe.AnyOperand},
		"down_proj: input in e4m3 current row: smooth-swiglu needs one scale per tensor": {recipe.Token, recipe.AnyGEMM, blocks, recipe.Input},
		"down_proj: weight in e4m3 current row":                                          {recipe.Balanced, recipe.AnyGEMM, blocks, recipe.Weight},
	} {
		r, err := recipe.Lookup("fp8-smooth")
		require.NoError(t, err)
		c.row.GEMM, c.row.Operand = c.gemm, c.of
		r.Smooth.Form, r.Rows = c.form, append([]recipe.Row{c.row}, r.Rows...)
		_, err = smoothModel(r)
		require.ErrorContains(t, err, want)
	}
	// Per-token smoothing does not change w3, so dgrad may read another copy of it.
	r, err := recipe.Lookup("fp8-smooth-token")
	require.NoError(t, err)
	r.Rows = append([]recipe.Row{{Scope: "*.down_proj", GEMM: recipe.Dgrad, DType: fp8.BF16}}, r.Rows...)
	_, err = smoothModel(r)
	require.NoError(t, err)
}

func TestChannelMaximaHaveNames(t *testing.T) {
	for form, want := range map[recipe.SmoothForm][]string{
		recipe.NoSmooth: nil,
		recipe.Token:    nil,
		recipe.Balanced: {"layers.0.mlp.hidden.channel_max_history", "layers.1.mlp.hidden.channel_max_history"},
		recipe.Linear: {
			"layers.0.mlp.hidden.channel_max_history", "layers.0.mlp.hidden.up_max_history",
			"layers.1.mlp.hidden.channel_max_history", "layers.1.mlp.hidden.up_max_history",
		},
	} {
		r, err := recipe.Lookup("fp8-smooth")
		require.NoError(t, err)
		r.Smooth.Form = form
		m, err := smoothModel(r)
		require.NoError(t, err)
		var names []string
		if h := m.ChannelHistory; h != nil {
			m.Unpack(h, make([]float32, h.Elems()), func(name string, shape []int, _ []float32) {
				require.Equal(t, []int{16, 48}, shape)
				names = append(names, name)
			})
		}
		require.Equal(t, want, names, form)
	}
}
