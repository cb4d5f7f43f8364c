package recipe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

func lookup(t *testing.T, name string) Recipe {
	t.Helper()
	r, err := Lookup(name)
	require.NoError(t, err)
	return r
}

// at is the layer of a decoder at a path.
func at(scope string) Layer {
	return Layer{Scope: scope, Hidden: strings.HasSuffix(scope, ".mlp.down_proj"), Head: scope == "lm_head"}
}

// decoder lists the linear layers of a decoder with n layers.
func decoder(n int) (list []Layer) {
	for i := range n {
		for _, module := range []string{
			"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
			"mlp.up_proj", "mlp.gate_proj", "mlp.down_proj",
		} {
			list = append(list, at(fmt.Sprintf("layers.%d.%s", i, module)))
		}
	}
	return append(list, at("lm_head"))
}

func TestNamedRecipesAreValid(t *testing.T) {
	for _, name := range Names() {
		r := lookup(t, name)
		require.NoError(t, r.Validate())
		require.NotEmpty(t, r.Summary)
		head := r.Cast(at("lm_head"), Fprop, Input).DType
		require.Equal(t, name == "fp8-head", head != r.Compute, "%s: the head reads %s", name, head)
	}
	_, err := Lookup("fp4")
	require.ErrorContains(t, err, `unknown recipe "fp4"`)
	require.ErrorContains(t, err, "octet recipes")
}

// Casts of the recipes that a mistake in the rows would change silently.
func TestFormatsOfTheRecipes(t *testing.T) {
	const q, w3 = "layers.1.self_attn.q_proj", "layers.1.mlp.down_proj"
	cast := func(d fp8.DType, s Scaling) Cast {
		c := Cast{DType: d, Scaling: s, Granularity: PerTensor, Scale: Pow2}
		if s == Delayed {
			c.History = 16
		}
		return c
	}
	lastStep := cast(fp8.E4M3, Delayed)
	lastStep.History = 1
	e4m3 := func(s Scaling) Cast { return cast(fp8.E4M3, s) }
	fine := func(g Granularity, f ScaleFormat) Cast {
		return Cast{DType: fp8.E4M3, Scaling: Current, Granularity: g, Scale: f}
	}
	e5m2Delayed := cast(fp8.E5M2, Delayed)
	e5m2Delayed.Rounding, e5m2Delayed.Margin = fp8.Stochastic, 4
	bf16 := Cast{DType: fp8.BF16}
	for _, c := range []struct {
		recipe, scope string
		gemm          GEMM
		operand       Operand
		want          Cast
	}{
		{"fp32", q, Fprop, Input, Cast{DType: fp8.F32}},
		{"bf16", w3, Wgrad, Grad, bf16},
		{"fp8-current", q, Fprop, Weight, e4m3(Current)},
		{"fp8-current", q, Dgrad, Grad, cast(fp8.E5M2, Current)},
		{"fp8-delayed", q, Wgrad, Input, e4m3(Delayed)},
		{"fp8-delayed", w3, Dgrad, Grad, e5m2Delayed},
		{"fp8-w3-bf16", w3, Wgrad, Grad, bf16},
		{"fp8-w3-bf16", q, Wgrad, Grad, e5m2Delayed},
		{"fp8-smooth", w3, Fprop, Input, e4m3(Current)},
		{"fp8-smooth", w3, Dgrad, Weight, e4m3(Current)},
		{"fp8-smooth", w3, Dgrad, Grad, e5m2Delayed},
		{"fp8-smooth", "layers.1.mlp.up_proj", Fprop, Input, e4m3(Delayed)},
		{"fp8-smooth-token", w3, Fprop, Input, e4m3(Current)},
		{"fp8-smooth-token", w3, Dgrad, Weight, e4m3(Delayed)},
		{"fp8-paper", w3, Fprop, Input, lastStep},
		{"fp8-paper", w3, Fprop, Weight, lastStep},
		{"smooth-late-hidden", w3, Fprop, Input, e4m3(Delayed)},
		{"smooth-late-hidden", w3, Fprop, Weight, e4m3(Current)},
		{"smooth-late-weight", w3, Wgrad, Input, e4m3(Current)},
		{"smooth-late-weight", w3, Dgrad, Weight, e4m3(Delayed)},
		{"fp8-unit", q, Dgrad, Grad, cast(fp8.E5M2, Unit)},
		{"te-delayed", q, Dgrad, Grad, Cast{DType: fp8.E5M2, Scaling: Delayed, Granularity: PerTensor, Scale: Exact, History: 1024}},
		{"te-current", q, Fprop, Weight, Cast{DType: fp8.E4M3, Scaling: Current, Granularity: PerTensor, Scale: Exact}},
		{"te-block", q, Wgrad, Input, fine(By(1, 128), Pow2)},
		{"torchao-row", w3, Wgrad, Grad, fine(PerRow, Pow2)},
		{"torchao-row-gw-hp", w3, Wgrad, Grad, bf16},
		{"torchao-row-gw-hp", w3, Fprop, Weight, fine(PerRow, Pow2)},
		{"torchao-row-gw-hp", w3, Dgrad, Grad, fine(PerRow, Pow2)},
		{"torchao-row-gw-hp", w3, Dgrad, Weight, fine(PerTensor, Pow2)},
		{"deepseek-v3", q, Dgrad, Grad, fine(By(1, 128), Exact)},
		{"deepseek-v3", q, Dgrad, Weight, fine(By(128, 128), Exact)},
		{"mxfp8", q, Dgrad, Weight, fine(By(1, 32), E8M0)},
	} {
		require.Equal(t, c.want, lookup(t, c.recipe).Cast(at(c.scope), c.gemm, c.operand), "%s %s %s %s", c.recipe, c.scope, c.gemm, c.operand)
	}
}

// The first matching row that sets a field decides it; later rows decide the other fields.
func TestFirstRowThatSetsAFieldWins(t *testing.T) {
	r := lookup(t, "fp8-delayed")
	r.Rows = append([]Row{
		{Scope: "layers.0.*", GEMM: Wgrad, DType: fp8.BF16},
		{Scope: "layers.0.*", Operand: Grad, Rounding: nearest},
		{Scope: "*.o_proj", Scaling: Current},
	}, r.Rows...)
	require.Equal(t, fp8.BF16, r.Cast(at("layers.0.self_attn.q_proj"), Wgrad, Input).DType)
	require.Equal(t, Cast{DType: fp8.E5M2, Scaling: Delayed, Granularity: PerTensor, Scale: Pow2, History: 16, Margin: 4}, r.Cast(at("layers.0.self_attn.q_proj"), Dgrad, Grad))
	require.Equal(t, fp8.E4M3, r.Cast(at("layers.1.self_attn.q_proj"), Wgrad, Input).DType)
	require.Equal(t, Cast{DType: fp8.E4M3, Scaling: Current, Granularity: PerTensor, Scale: Pow2}, r.Cast(at("layers.7.self_attn.o_proj"), Fprop, Weight))
	require.Zero(t, r.Cast(at("layers.7.self_attn.o_proj"), Dgrad, Grad).Margin, "a current scale needs no margin")
}

// A row decides a rotation as a whole, size 1 turns it off, and operands that are not
// quantized have none. Its table names it beside the GEMM.
func TestHadamard(t *testing.T) {
	r := lookup(t, "nvfp4")
	r.Rows = append([]Row{
		{Scope: "layers.1.*", GEMM: Wgrad, Hadamard: Hadamard{Size: 32}},
		{Scope: "layers.2.*", GEMM: Wgrad, Hadamard: Hadamard{Size: 1}},
		{Scope: "layers.3.*", DType: fp8.BF16},
	}, r.Rows...)
	model := decoder(6)
	r = r.Over(model)
	for i, want := range []Hadamard{{}, {Size: 32}, {}, {}, {16, TESigns}, {}} {
		layer := Layer{Scope: fmt.Sprintf("layers.%d.mlp.up_proj", i)}
		for _, o := range []Operand{Grad, Input} {
			require.Equal(t, want, r.Cast(layer, Wgrad, o).Hadamard, i)
		}
		require.Zero(t, r.Cast(layer, Fprop, Input).Hadamard)
	}
	require.Equal(t, []Hadamard{{Size: 32}, {16, TESigns}}, r.Hadamards(model))
	require.Equal(t, uint16(0xd7e8), Hadamard{16, TESigns}.Mask())

	var b strings.Builder
	require.NoError(t, r.Describe(&b, model))
	require.Contains(t, b.String(), `
  fprop                e2m1 1x16 e4m3+fp32             e2m1 16x16 e4m3+fp32
  dgrad                e2m1 1x16 e4m3+fp32 stochastic  e2m1 16x16 e4m3+fp32
  wgrad hadamard 32    e2m1 1x16 e4m3+fp32 stochastic  e2m1 1x16 e4m3+fp32
`)
	require.Contains(t, b.String(), "\nhadamard 16        rotates both operands along K before the cast, signs te\n")
	for _, name := range Names() { // mxfp4-rht has equal casts in dgrad and wgrad
		b.Reset()
		require.NoError(t, lookup(t, name).Describe(&b, decoder(2)))
		for line := range strings.Lines(b.String()) {
			require.Less(t, len(line), 82, line)
		}
	}
}

// History and margin of a row replace the recipe's where the scale is delayed.
func TestHistoryAndMarginOfARow(t *testing.T) {
	none, two := 0, 2
	r := lookup(t, "fp8-delayed")
	r.Rows = append([]Row{
		{Scope: "*.mlp.*", GEMM: Wgrad, Operand: Input, Margin: &two},
		{Scope: "*.mlp.*", Operand: Input, History: 64},
		{Scope: "*.down_proj", Operand: Grad, Margin: &none},
		{Scope: "*.o_proj", Scaling: Current, History: 8, Margin: &two},
	}, r.Rows...)
	require.NoError(t, r.Validate())
	for _, c := range []struct {
		scope   string
		gemm    GEMM
		operand Operand
		want    [2]int // history, margin
	}{
		{"layers.0.mlp.up_proj", Fprop, Input, [2]int{64, 0}},
		{"layers.0.mlp.up_proj", Wgrad, Input, [2]int{64, 2}},
		{"layers.0.mlp.up_proj", Wgrad, Grad, [2]int{16, 4}},
		{"layers.0.mlp.down_proj", Dgrad, Grad, [2]int{16, 0}},
		{"layers.0.self_attn.q_proj", Fprop, Input, [2]int{16, 0}},
		{"layers.0.self_attn.o_proj", Fprop, Input, [2]int{0, 0}},
	} {
		got := r.Cast(at(c.scope), c.gemm, c.operand)
		require.Equal(t, c.want, [2]int{got.History, got.Margin}, "%s %s %s", c.scope, c.gemm, c.operand)
	}
	var b strings.Builder
	require.NoError(t, r.Describe(&b, decoder(2)))
	require.Contains(t, b.String(), `
layers.*.mlp.up,gate
  fprop                e4m3 delayed             e4m3 delayed
  dgrad, wgrad         e5m2 delayed stochastic  e4m3 delayed
  input of fprop: amax of the last 64 updates
  input of wgrad: amax of the last 64 updates, headroom 2^2
layers.*.mlp.down
  fprop                e4m3 delayed             e4m3 delayed
  dgrad, wgrad         e5m2 delayed stochastic  e4m3 delayed
  input of fprop: amax of the last 64 updates
  input of wgrad: amax of the last 64 updates, headroom 2^2
  grad: headroom 2^0
lm_head
`)
	require.Contains(t, b.String(), "delayed scaling    amax of the last 16 updates, headroom 2^4 for gradients\n")
}

func TestLimitLeavesTheMargin(t *testing.T) {
	require.Equal(t, float32(448), Cast{DType: fp8.E4M3}.Limit())
	require.Equal(t, float32(57344.0/16), Cast{DType: fp8.E5M2, Margin: 4}.Limit())
}

func TestInvalidCasts(t *testing.T) {
	for want, c := range map[string]Cast{
		"can only be current":    {DType: fp8.E4M3, Scaling: Delayed, Granularity: PerRow, Scale: Pow2},
		"format of block scales": {DType: fp8.E4M3, Scaling: Current, Granularity: PerTensor, Scale: E8M0},
	} {
		require.ErrorContains(t, c.Validate(), want)
	}
	for _, name := range Names() {
		for _, g := range lookup(t, name).groups(decoder(1)) {
			for _, pair := range g.casts {
				require.NoError(t, pair[0].Validate(), name)
				require.NoError(t, pair[1].Validate(), name)
			}
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for want, change := range map[string]func(*Recipe){
		`scope "layers.["`:         func(r *Recipe) { r.Rows = []Row{{Scope: "layers.["}} },
		"format e8m0":              func(r *Recipe) { r.Rows = []Row{{DType: fp8.E8M0}} },
		"format fp16":              func(r *Recipe) { r.Rows = []Row{{DType: fp8.F16}} },
		"moments in e8m0":          func(r *Recipe) { r.Optimizer.M1 = fp8.E8M0 },
		"per 64 elements":          func(r *Recipe) { r.Optimizer.Block = 64 },
		"settings but no form":     func(r *Recipe) { r.Smooth = Smooth{Exact: true} },
		"one token alone":          func(r *Recipe) { r.Smooth = Smooth{Form: Token, Smoothing: Delayed} },
		"delayed smoothing scales": func(r *Recipe) { r.Smooth.Margin = 1 },
		"master weights":           func(r *Recipe) { r.Optimizer.Master = fp8.E5M2 },
		"history = -1":             func(r *Recipe) { r.Rows = []Row{{History: -1}} },
		"history = 65537":          func(r *Recipe) { r.Rows = []Row{{History: 65537}} },
		"margin = 33":              func(r *Recipe) { r.Rows = []Row{{Margin: new(33)}} },
		"at least one update":      func(r *Recipe) { r.History = 0 },
	} {
		r := lookup(t, "fp8-smooth")
		change(&r)
		require.ErrorContains(t, r.Validate(), want)
	}
}

func TestParseIsTheInverseOfString(t *testing.T) {
	for g := AnyGEMM; g <= Wgrad; g++ {
		got, err := ParseGEMM(g.String())
		require.NoError(t, err)
		require.Equal(t, g, got)
	}
	for o := AnyOperand; o <= Grad; o++ {
		got, err := ParseOperand(o.String())
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	for s := NotGiven; s <= Delayed; s++ {
		got, err := ParseScaling(s.String())
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	for _, x := range []Granularity{{}, PerTensor, PerRow, By(1, 128), By(128, 128), By(1, 32), By(16, 16)} {
		got, err := ParseGranularity(x.String())
		require.NoError(t, err)
		require.Equal(t, x, got)
	}
	for _, x := range []ScaleFormat{{}, Pow2, Exact, E8M0, {DType: fp8.E8M0, Rule: fp8.RoundDown}, NVFP4, {DType: fp8.E5M2, Rule: fp8.Quotient}} {
		got, err := ParseScaleFormat(x.String())
		require.NoError(t, err)
		require.Equal(t, x, got)
	}
	for x := NoSmooth; x <= TokenLinear; x++ {
		got, err := ParseSmoothForm(x.String())
		require.NoError(t, err)
		require.Equal(t, x, got)
	}
	for x := RankScale; x <= PostScale; x++ {
		got, err := ParseReduceScale(x.String())
		require.NoError(t, err)
		require.Equal(t, x, got)
	}
	for x := SumFP32; x <= SumEach; x++ {
		got, err := ParseReduceSum(x.String())
		require.NoError(t, err)
		require.Equal(t, x, got)
	}
	_, err := ParseScaling("sometimes")
	require.ErrorContains(t, err, "unit, current, delayed")
	for _, bad := range []string{"column", "1x", "0x32", "1x0", "x", "1x32x2", "-1x1"} {
		_, err := ParseGranularity(bad)
		require.ErrorContains(t, err, "unknown granularity")
	}
	for _, bad := range []string{"bf16", "int8", "e8m0+fp32", "e4m3:floor", "+fp32", "fp32+fp32"} {
		_, err := ParseScaleFormat(bad)
		require.ErrorContains(t, err, "unknown scale format")
	}
	for bad, want := range map[string]string{"e8m0:flor": "; did you mean e8m0:floor?", "pow": "; did you mean pow2?", "ue5m3": "; formats without a sign are not supported, except e8m0", "e5m3": "of up to eight bits, the sign included"} {
		_, err := ParseScaleFormat(bad)
		require.ErrorContains(t, err, want)
	}
	for _, name := range []string{"mxfp8", "mxfp6", "mxfp4", "nvfp4"} {
		_, err := fp8.ParseDType(name)
		require.ErrorContains(t, err, ", or recipe "+lookup(t, name).Name+" (known")
	}
}

// The names of a group precede its GEMMs; GEMMs of equal casts share a line. A layer with an
// exception is a group of its own.
func TestDescribe(t *testing.T) {
	r := lookup(t, "fp8-smooth")
	r.Rows = append([]Row{{Scope: "layers.1.mlp.*", DType: fp8.BF16}}, r.Rows...)
	var b strings.Builder
	require.NoError(t, r.Describe(&b, decoder(3)))
	text := b.String()
	for _, want := range []string{
		"layers.*.self_attn.q,k,v,o", "layers.0,2.mlp.up,gate", "layers.0,2.mlp.down", "e4m3 smooth", "lm_head", "layers.1.mlp.up,gate,down",
		"e5m2 delayed stochastic", "master fp16, m1 e4m3, m2 e5m2; scaled, stochastic\n", "m2 > 0 is never stored as 0", ", headroom 2^4 for gradients",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "lm_head"))
	require.Contains(t, text, `
linear layers, GEMM    x or dy                  W or x
layers.*.self_attn.q,k,v,o
layers.0,2.mlp.up,gate
  fprop                e4m3 delayed             e4m3 delayed
  dgrad, wgrad         e5m2 delayed stochastic  e4m3 delayed
layers.0,2.mlp.down
  fprop                e4m3 smooth              e4m3 smooth
  dgrad, wgrad         e5m2 delayed stochastic  e4m3 smooth
layers.1.mlp.up,gate,down
lm_head
  fprop, dgrad, wgrad  bf16                     bf16
`)
	b.Reset()
	require.NoError(t, r.Describe(&b, decoder(1000)))
	require.Contains(t, b.String(), "\nlayers.0,2-999.mlp.down\n")

	r.Margin, r.WeightMargin, r.ColdStart = 1, 2, true
	require.NoError(t, r.Describe(&b, decoder(3)))
	text = b.String()
	require.Contains(t, text, "headroom 2^1 for inputs\n")
	for line := range strings.Lines(text) {
		require.Less(t, len(line), 81, line)
	}
}

// A row has an effect if it decides a field of some operand's cast: a field that the row
// sets, that no earlier row sets, and that the operand's format has.
func TestRowHasEffect(t *testing.T) {
	const up, down = "layers.0.mlp.up_proj", "layers.0.mlp.down_proj"
	stochastic := fp8.Stochastic
	for _, test := range []struct {
		name, recipe string
		rows         []Row // before the recipe's; the test is about the last one
		want         bool
	}{
		{"a format", "fp8-current", []Row{{Scope: up, DType: fp8.BF16}}, true},
		{"a scaling", "fp8-current", []Row{{Scope: up, Scaling: Delayed}}, true},
		{"a granularity", "fp8-current", []Row{{Scope: up, Granularity: PerRow}}, true},
		{"a scale format", "fp8-current", []Row{{Scope: up, Scale: Exact}}, true},
		{"a rounding", "fp8-current", []Row{{Scope: up, Operand: Grad, Rounding: &stochastic}}, true},
		{"a rotation", "nvfp4-plain", []Row{{GEMM: Wgrad, Hadamard: Hadamard{Size: 16}}}, true},
		{"a history", "fp8-delayed", []Row{{Scope: up, History: 64}}, true},
		{"a margin", "fp8-delayed", []Row{{Scope: up, Margin: new(0)}}, true},
		{"a history where no scale is delayed", "fp8-current", []Row{{Scope: up, History: 64}}, false},
		{"a margin where no scale is delayed", "fp8-current", []Row{{Scope: up, Margin: new(1)}}, false},
		{"a history, set earlier", "fp8-delayed", []Row{{History: 16}, {Scope: up, History: 64}}, false},
		{"a margin, set earlier", "fp8-delayed", []Row{{Margin: new(0)}, {Scope: up, Margin: new(1)}}, false},
		{"nothing", "fp8-current", []Row{{Scope: up}}, false},
		{"a layer beyond the model's", "fp8-current", []Row{{Scope: "layers.2.mlp.up_proj", Granularity: PerRow}}, false},
		{"an operand that the GEMM does not have", "fp8-current", []Row{{GEMM: Fprop, Operand: Grad, Granularity: PerRow}}, false},

		{"a format, set earlier", "fp8-current", []Row{{DType: fp8.BF16}, {Scope: up, DType: fp8.E4M3}}, false},
		{"a scaling, set earlier", "fp8-current", []Row{{Scaling: Unit}, {Scope: up, Scaling: Delayed}}, false},
		{"a granularity, set earlier", "fp8-current", []Row{{Granularity: By(1, 128)}, {Scope: up, Granularity: PerRow}}, false},
		{"a scale format, set earlier", "fp8-current", []Row{{Scale: Pow2}, {Scope: up, Scale: Exact}}, false},
		{"a rounding, set earlier", "fp8-current", []Row{{Rounding: nearest}, {Scope: up, Operand: Grad, Rounding: &stochastic}}, false},
		{"a rotation, set earlier", "nvfp4", []Row{{Hadamard: Hadamard{Size: 1}}, {GEMM: Wgrad, Hadamard: Hadamard{Size: 32}}}, false},
		{"other fields of a row whose format is set earlier", "fp8-current", []Row{{DType: fp8.E5M2}, {Scope: up, DType: fp8.E4M3, Granularity: PerRow}}, true},
		{"an earlier row of another layer", "fp8-current", []Row{{Scope: down, Granularity: By(1, 128)}, {Scope: up, Granularity: PerRow}}, true},

		{"a format where nothing is FP8", "bf16", []Row{{Scope: up, DType: fp8.E4M3}}, true},
		{"a scaling where nothing is FP8", "bf16", []Row{{Scope: up, Scaling: Delayed}}, false},
		{"a granularity where nothing is FP8", "bf16", []Row{{Scope: up, Granularity: PerRow}}, false},
		{"a scale format where nothing is FP8", "bf16", []Row{{Scope: up, Scale: Exact}}, false},
		{"a rotation where nothing is FP8", "bf16", []Row{{GEMM: Wgrad, Hadamard: Hadamard{Size: 32}}}, false},
		{"a rounding where nothing is FP8", "bf16", []Row{{Scope: up, Rounding: nearest}}, false},
		{"a scaling that Smooth-SwiGLU chooses", "fp8-smooth", []Row{{Scope: down, Operand: Input, Scaling: Unit}}, false},
		{"a scaling that Smooth-SwiGLU leaves to the rows", "fp8-smooth", []Row{{Scope: down, Operand: Grad, Scaling: Unit}}, true},
	} {
		r := lookup(t, test.recipe)
		r.Rows = append(test.rows, r.Rows...)
		require.Equal(t, test.want, r.RowHasEffect(len(test.rows)-1, decoder(2)), test.name)
	}
}

func TestUnmatched(t *testing.T) {
	r := lookup(t, "fp8-smooth")
	for _, scope := range []string{"layers.1.mlp.*", "layers.2.mlp.*", "layers.2.mlp.*", "other", "layers.[3-9].*"} {
		r.Rows = append(r.Rows, Row{Scope: scope, GEMM: Fprop, Operand: Input})
	}
	require.Equal(t, []string{"layers.2.mlp.*", "layers.[3-9].*"}, r.Unmatched(decoder(2)))
	require.Empty(t, r.Unmatched(decoder(4)))
}
