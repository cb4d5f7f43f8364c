package nn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// model is a small decoder under a recipe, with exceptions inserted before its rows.
func model(t *testing.T, name string, exceptions ...recipe.Row) (*nn.Model, error) {
	t.Helper()
	r, err := recipe.Lookup(name)
	require.NoError(t, err)
	r.Rows = append(exceptions, r.Rows...)
	return nn.New(nn.Config{
		Layers: 1, Dim: 32, Heads: 2, KVHeads: 1, FFN: 48, Vocab: 300, Activation: nn.SwiGLU,
		RopeTheta: 1e4, NormEps: 1e-5, InitStd: 0.02,
	}, r, backend.NewVars())
}

// micro records a micro-batch of 2 × 16 tokens, or, in mode Frozen, an evaluation.
func micro(t *testing.T, m *nn.Model, mode nn.Mode) *backend.Program {
	t.Helper()
	input := func(name string, n int) *backend.Tensor { return m.Vars.Tensor(backend.Input, name, fp8.I32, n) }
	p := m.Vars.Program("micro")
	pass := m.Pass(p, mode, nn.Shape{Batch: 2, Seq: 16, Control: input("step.control", backend.ControlWords)})
	tokens, targets := input("tokens", 32), input("targets", 32)
	if mode == nn.Frozen {
		m.Loss(pass, tokens, targets)
	} else {
		m.DeclareGrads()
		m.LossAndGrads(pass, tokens, targets)
	}
	require.NoError(t, p.Err())
	return p
}

// quantized lists the copies that Quantize ops store, by name.
func quantized(p *backend.Program) map[string]*backend.Tensor {
	list := map[string]*backend.Tensor{}
	for _, n := range p.Nodes() {
		if op, ok := n.Op.(*backend.Quantize); ok {
			for _, c := range op.Out {
				list[c.Out.Name] = c.Out
			}
		}
	}
	return list
}

// GEMMs that sum over different dimensions read different copies, unless the
// blocks are square; copies with block scales have no records.
func TestCopiesWithBlockScales(t *testing.T) {
	for name, copies := range map[string][]string{
		"te-block":          {"input.e4m3.1x128", "input.e4m3.128x1"},
		"torchao-row":       {"input.e4m3.1x*", "input.e4m3.*x1"},
		"torchao-row-gw-hp": {"input.e4m3.1x*"},
		"mxfp8":             {"input.e4m3.1x32", "input.e4m3.32x1"},
	} {
		m, err := model(t, name)
		require.NoError(t, err)
		got := []string{}
		for name := range quantized(micro(t, m, nn.Train)) {
			if part, ok := strings.CutPrefix(name, "layers.0.mlp."); ok && strings.HasPrefix(part, "input.") {
				got = append(got, part)
			}
		}
		require.ElementsMatch(t, copies, got, name)
		require.Equal(t, name != "torchao-row-gw-hp", m.Scales.Empty(), "%s: only its weight with a per-tensor scale has a record", name)
	}

	weights := func(name string) (list []string) {
		m, err := model(t, name)
		require.NoError(t, err)
		for v := range m.Vars.All() {
			if part, ok := strings.CutPrefix(v.Name, "model.layers.0.mlp.up_proj.weight."); ok && !strings.HasSuffix(part, ".scale_inv") {
				list = append(list, part)
			}
		}
		return list
	}
	require.Equal(t, []string{"e4m3.128x128"}, weights("deepseek-v3"), "one copy serves fprop and dgrad")
	require.Equal(t, []string{"e4m3.1x32", "e4m3.32x1"}, weights("mxfp8"))
	require.Equal(t, []string{"e4m3.1x*", "e4m3"}, weights("torchao-row-gw-hp"))
}

// In evaluation no block of a scale spans several tokens.
func TestFrozenScalesBelongToOneToken(t *testing.T) {
	for _, name := range []string{"te-block", "torchao-row", "torchao-row-gw-hp", "deepseek-v3", "mxfp8"} {
		m, err := model(t, name)
		require.NoError(t, err)
		p := micro(t, m, nn.Frozen)
		seen := quantized(p)
		require.Len(t, seen, 4, "%s: inputs of attention, o_proj, MLP and down_proj", name)
		for _, x := range seen {
			require.Equal(t, 1, x.Block.Rows, x.Name)
		}
		for _, n := range p.Nodes() {
			_, ok := n.Op.(*backend.Amax)
			require.False(t, ok, "%s: %s", name, n.Path())
		}
	}
}

// The error names the layer, the GEMM and the operand.
func TestInvalidCastsAreRefused(t *testing.T) {
	_, err := model(t, "te-block", recipe.Row{Scope: "layers.0.mlp.up_proj", Operand: recipe.Input, GEMM: recipe.Fprop, Granularity: recipe.By(128, 128)})
	require.EqualError(t, err, "recipe te-block: layers.0.mlp.up_proj: input of fprop: e4m3 current 128x128 shares scales between tokens, so a token would depend on later ones (use granularity 1x128)")
	_, err = model(t, "fp8-delayed", recipe.Row{Scope: "layers.0.self_attn.o_proj", Operand: recipe.Grad, GEMM: recipe.Wgrad, Granularity: recipe.By(1, 32)})
	require.ErrorContains(t, err, "recipe fp8-delayed: layers.0.self_attn.o_proj: grad of wgrad: e5m2 delayed 1x32")
	require.ErrorContains(t, err, "use scaling current")
	_, err = model(t, "fp8-current", recipe.Row{Operand: recipe.Weight, Scale: recipe.E8M0})
	require.ErrorContains(t, err, "layers.0.self_attn.q_proj: weight of fprop: e4m3 current e8m0")

	// Evaluation would lose a NaN of an input, and of no other operand.
	for _, d := range []fp8.DType{fp8.INT8, fp8.E2M1} {
		_, err = model(t, "fp8-current", recipe.Row{Scope: "layers.*", DType: d})
		require.ErrorContains(t, err, "layers.0.self_attn.q_proj: input of fprop: "+d.String()+" current: "+d.String()+" has no NaN")
		_, err = model(t, "fp8-current", recipe.Row{GEMM: recipe.Fprop, Operand: recipe.Input, Granularity: recipe.PerRow}, recipe.Row{Scope: "layers.*", DType: d})
		require.NoError(t, err)
	}
}

// A rotation of one operand alone would change the GEMM's result.
func TestRotationsOfOneOperandAreRefused(t *testing.T) {
	for want, row := range map[string]recipe.Row{
		"layers.0.self_attn.q_proj: input of fprop has hadamard 16 signs te, but both operands of a GEMM must be rotated, and weights are not (use gemm wgrad)": {},
		"weight of fprop has hadamard 16 signs te":                                      {Operand: recipe.Weight},
		"grad of dgrad has hadamard 16 signs te":                                        {GEMM: recipe.Dgrad, Operand: recipe.Grad},
		"grad of wgrad has hadamard 16 signs te and input none: wgrad keeps its result": {GEMM: recipe.Wgrad, Operand: recipe.Grad},
		"grad of wgrad has none and input hadamard 16 signs te":                         {GEMM: recipe.Wgrad, Operand: recipe.Input},
	} {
		row.Hadamard = recipe.Hadamard{Size: 16, Signs: recipe.TESigns}
		_, err := model(t, "nvfp4-plain", row)
		require.ErrorContains(t, err, want)
	}
	_, err := model(t, "mxfp4-rht", recipe.Row{Operand: recipe.Grad, Hadamard: recipe.Hadamard{Size: 16}})
	require.ErrorContains(t, err, "grad of dgrad has hadamard 16")
	_, err = model(t, "mxfp4-rht", recipe.Row{GEMM: recipe.Wgrad, Operand: recipe.Grad, Hadamard: recipe.Hadamard{Size: 16}})
	require.ErrorContains(t, err, "grad of wgrad has hadamard 16 and input hadamard 16 signs seed")
	_, err = model(t, "fp8-smooth", recipe.Row{GEMM: recipe.Wgrad, Hadamard: recipe.Hadamard{Size: 16}})
	require.NoError(t, err, "of plain SwiGLU")
}

// Both operands of each wgrad are cast from rotations of x and dy in the compute format,
// with the rotations' own amaxes; nothing else is rotated.
func TestRotatedCopies(t *testing.T) {
	for _, name := range []string{"nvfp4-plain", "mxfp4-rht", "fp8-current", "fp8-delayed"} {
		var rows []recipe.Row
		if name != "mxfp4-rht" {
			rows = append(rows, recipe.Row{GEMM: recipe.Wgrad, Hadamard: recipe.Hadamard{Size: 16, Signs: recipe.TESigns}})
		}
		m, err := model(t, name, rows...)
		require.NoError(t, err)
		p := micro(t, m, nn.Train)
		castFrom, rotation, amaxOf := map[*backend.Tensor]*backend.Tensor{}, map[*backend.Tensor]*backend.Hadamard{}, map[*backend.Tensor]*backend.Tensor{}
		amaxes := map[*backend.Tensor]*backend.Tensor{} // of the scales
		for _, n := range p.Nodes() {
			switch op := n.Op.(type) {
			case *backend.Hadamard:
				rotation[op.Out[0].Out] = op
				require.Equal(t, fp8.BF16, op.Out[0].Out.DType)
				require.True(t, op.Columns)
				require.Equal(t, name == "mxfp4-rht", op.Control != nil)
			case *backend.Amax:
				amaxOf[op.Out] = op.X
			case *backend.UpdateScale:
				amaxes[op.Scale] = op.History
			case *backend.Quantize:
				for _, c := range op.Out {
					castFrom[c.Out] = op.X
					if a := amaxes[c.Scale]; a != nil {
						require.Same(t, op.X, amaxOf[a], "%s: the scale of another tensor", c.Out)
					}
				}
			}
		}
		require.NotEmpty(t, rotation)
		wgrads := 0
		for _, n := range p.Nodes() {
			op, ok := n.Op.(*backend.MatMul)
			if !ok || !op.A.DType.IsQuantized() {
				continue
			}
			a, b := rotation[castFrom[op.A]], rotation[castFrom[op.B]]
			if !op.TransA {
				require.True(t, a == nil && b == nil, n.Path())
				continue
			}
			wgrads++
			require.True(t, a != nil && b != nil, n.Path())
			require.Equal(t, []any{a.Size, a.Signs, a.Control}, []any{b.Size, b.Signs, b.Control})
		}
		require.Equal(t, 7, wgrads, name)
		for _, n := range micro(t, mustModel(t, name, rows...), nn.Frozen).Nodes() {
			_, ok := n.Op.(*backend.Hadamard)
			require.False(t, ok, "%s: a rotation mixes tokens", name)
		}
	}
}

func mustModel(t *testing.T, name string, exceptions ...recipe.Row) *nn.Model {
	t.Helper()
	m, err := model(t, name, exceptions...)
	require.NoError(t, err)
	return m
}

// Each record's scale follows from its own window and limit.
func TestHistoriesOfRows(t *testing.T) {
	two := 2
	m, err := model(t, "fp8-delayed",
		recipe.Row{Scope: "*.mlp.up_proj", Operand: recipe.Weight, History: 40, Margin: &two},
		recipe.Row{Scope: "*.q_proj", GEMM: recipe.Wgrad, Operand: recipe.Input, History: 3},
		recipe.Row{Scope: "*.v_proj", GEMM: recipe.Wgrad, Operand: recipe.Input, History: 5},
		recipe.Row{Scope: "*.k_proj", GEMM: recipe.Wgrad, Operand: recipe.Input, History: 3, Margin: &two},
		recipe.Row{Scope: "*.k_proj", Operand: recipe.Grad, Scaling: recipe.Current},
	)
	require.NoError(t, err)
	n := m.Scales.Scale.Cols()
	require.Equal(t, []int{40, n}, m.Scales.History.Shape)
	columns, index := map[int]string{}, make([]float32, n)
	for i := range index {
		index[i] = float32(i)
	}
	m.Unpack(m.Scales.Scale, index, func(name string, _ []int, part []float32) {
		columns[int(part[0])] = strings.TrimPrefix(strings.TrimSuffix(name, ".scale"), "layers.0.")
	})
	p := m.Vars.Program("update")
	m.UpdateScales(p, nil)
	require.NoError(t, p.Err())
	windows, limits := map[string]int{}, map[string]float32{}
	for _, node := range p.Nodes() {
		if op, ok := node.Op.(*backend.UpdateScale); ok {
			require.Equal(t, op.Scale.Offset, op.History.Offset)
			for i := range op.Scale.Elems() {
				name := columns[op.Scale.Offset+i]
				require.Zero(t, windows[name], name)
				windows[name], limits[name] = op.History.Rows(), op.Limit
			}
		}
	}
	require.Len(t, windows, n)
	for name, window := range windows {
		want, limit := 16, float32(448)
		switch {
		case name == "mlp.up_proj.weight.e4m3":
			want, limit = 40, 448./4
		case name == "self_attn.input.e4m3": // q_proj's wgrad is declared after its fprop
		case name == "self_attn.input.e4m3.delayed.nearest":
			want = 3
		case name == "self_attn.input.e4m3.delayed.nearest.pow2":
			want, limit = 3, 448./4
		case name == "self_attn.input.e4m3.delayed.nearest.pow2.history5.margin0":
			want = 5
		case name == "self_attn.k_proj.grad.e5m2":
			limit = 57344
		case strings.Contains(name, ".grad."):
			limit = 57344. / 16
		}
		require.Equal(t, want, window, name)
		require.Equal(t, limit, limits[name], name)
	}
	require.Contains(t, windows, "self_attn.input.e4m3.delayed.nearest.pow2.history5.margin0")
}

// Records whose scales are rounded down to powers of two are updated by another op
// than records whose scales are not.
func TestScalesHaveTheirFormat(t *testing.T) {
	pow2 := func(name string, exceptions ...recipe.Row) map[bool]int {
		m, err := model(t, name, exceptions...)
		require.NoError(t, err)
		p := m.Vars.Program("update")
		m.UpdateScales(p, nil)
		require.NoError(t, p.Err())
		records := map[bool]int{}
		for _, n := range p.Nodes() {
			if op, ok := n.Op.(*backend.UpdateScale); ok {
				records[op.Pow2] += op.Scale.Elems()
			}
		}
		return records
	}
	all := pow2("fp8-delayed")[true]
	require.Equal(t, map[bool]int{false: all}, pow2("te-delayed"))
	require.Equal(t, map[bool]int{false: 1, true: all - 1}, pow2("fp8-delayed", recipe.Row{
		Scope: "layers.0.mlp.down_proj", Operand: recipe.Grad, Scale: recipe.Exact,
	}))
	// The same holds for current scales in the micro-batch.
	for name, want := range map[string]bool{"fp8-current": true, "te-current": false, "torchao-tensor": false} {
		m, err := model(t, name)
		require.NoError(t, err)
		for _, n := range micro(t, m, nn.Train).Nodes() {
			if op, ok := n.Op.(*backend.UpdateScale); ok {
				require.Equal(t, want, op.Pow2, name)
			}
		}
	}
}

// A constant value that lowering assumes of a variable is the one that the trainer writes.
func TestAssumedConstantsAreWritten(t *testing.T) {
	for _, name := range []string{"fp8-unit", "mu-s"} {
		m := mustModel(t, name)
		written := map[*backend.Tensor]float32{}
		for x, value := range m.Constants() {
			written[x] = value
		}
		known := 0
		for x := range m.Vars.All() {
			if x.Value != 0 {
				known++
				require.Equal(t, x.Value, written[x], x.Name)
			}
		}
		require.Positive(t, known)
	}
}

// The program that measures a step's maxima also clears them before: those of activations
// and gradients in the first micro-batch, those of weights in CastWeights. Cleared
// elsewhere, a maximum would be lost or cover two steps.
func TestMaximaAreClearedWhereTheyAreMeasured(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-current", "fp8-delayed", "fp8-unit", "fp8-smooth", "fp8-smooth-token", "smooth-late-weight", "te-block", "torchao-row-gw-hp"} {
		m := smallModel(t, name, 4)
		cast := m.Vars.Program("cast")
		m.CastWeights(m.Pass(cast, nn.Train, nn.Shape{}))
		require.NoError(t, cast.Err())
		all := 0
		for _, p := range []*backend.Program{micro(t, m, nn.Train), cast} {
			cleared, measured := map[int]bool{}, map[int]bool{}
			for _, n := range p.Nodes() {
				for _, o := range n.Operands() {
					if o.Tensor.Root() != m.Scales.Amax {
						continue
					}
					of := measured
					if _, ok := n.Op.(*backend.Fill); ok {
						of = cleared
					} else {
						require.True(t, covers(cleared, o.Tensor), "%s, %s: %s is measured before it is cleared", name, n.Path(), o.Tensor)
					}
					for i := range o.Tensor.Elems() {
						of[o.Tensor.Offset+i] = true
					}
				}
			}
			require.Equal(t, measured, cleared, "%s, program %s", name, p.Name())
			all += len(cleared)
		}
		if m.Scales.Empty() {
			require.Zero(t, all)
		} else {
			require.Equal(t, m.Scales.Amax.Elems(), all, name)
		}
	}
}

// covers reports whether set contains all elements of a vector, by their index in its root.
func covers(set map[int]bool, x *backend.Tensor) bool {
	for i := range x.Elems() {
		if !set[x.Offset+i] {
			return false
		}
	}
	return true
}

// The recipe's optimizer formats apply to the matrices of the decoder layers alone.
func TestOptimizerFormatsApplyToLayerMatrices(t *testing.T) {
	m := smallModel(t, "fp8-smooth", 4)
	quantized := 0
	for _, p := range m.Params {
		want := strings.HasSuffix(p.Name, "_proj.weight") // of attention and MLP
		require.Equal(t, want, p.Quantized, p.Name)
		require.Equal(t, want, p.Master.DType == fp8.F16, p.Name)
		require.Equal(t, want, p.Master.Scale != nil, p.Name)
		require.Equal(t, !strings.HasSuffix(p.Name, "norm.weight"), p.Matrix, p.Name)
		if want {
			quantized++
		}
	}
	require.Equal(t, 2*7, quantized, "q, k, v, o, up, gate and down of 2 layers")
	require.Len(t, m.Params, 2*(7+2)+3, "2 norms in each layer, the embedding, the last norm and the head")
}
