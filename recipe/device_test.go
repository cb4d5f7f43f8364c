package recipe

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

type pairs = [][2]fp8.Encoding

// anyScales returns pairs of formats with any scales.
func anyScales(formats ...[2]fp8.DType) (list pairs) {
	for _, f := range formats {
		list = append(list, [2]fp8.Encoding{{DType: f[0]}, {DType: f[1]}})
	}
	return list
}

// The pairs of devices: all; equal formats only, with another E4M3; cuBLASLt's,
// without E5M2 by E5M2.
var (
	allPairs   = anyScales([][2]fp8.DType{{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}, {fp8.E5M2, fp8.E5M2}}...)
	equalPairs = anyScales([][2]fp8.DType{{fp8.E4M3IEEE, fp8.E4M3IEEE}, {fp8.E5M2, fp8.E5M2}}...)
	mixedPairs = allPairs[:3]
)

// For changes every GEMM of every recipe to a pair that the device supports, and
// changes no other field of a cast.
func TestForGivesPairsOfTheDevice(t *testing.T) {
	for _, name := range Names() {
		if slices.ContainsFunc(lookup(t, name).Rows, func(r Row) bool {
			return r.DType.IsQuantized() && r.DType != fp8.E4M3 && r.DType != fp8.E5M2
		}) {
			continue // formats that these devices lack: TestForRefusesScales
		}
		for _, d := range []device{{fp8.E4M3, allPairs}, {fp8.E4M3IEEE, equalPairs}, {fp8.E4M3, mixedPairs}} {
			r := lookup(t, name)
			if r.Cast(at("layers.1.mlp.up_proj"), Dgrad, Weight).DType.IsQuantized() {
				r.Rows = append([]Row{{Scope: "layers.1.mlp.up_proj", GEMM: Dgrad, Operand: Grad, DType: fp8.E4M3}}, r.Rows...)
			}
			resolved, notes, err := r.For(d.e4m3, d.pairs, decoder(2))
			if slices.ContainsFunc(r.Rows, func(row Row) bool { return row.DType.IsQuantized() && row.DType != fp8.E4M3 && row.DType != fp8.E5M2 }) {
				require.ErrorContains(t, err, "which the device's GEMM library does not support")
				continue
			}
			require.NoError(t, err)
			if d.e4m3 == fp8.E4M3 {
				require.Equal(t, r, resolved, "unchanged")
				require.Empty(t, notes)
			}
			for _, l := range decoder(2) {
				for _, p := range GEMMs {
					a, b := resolved.Cast(l, p.GEMM, p.A), resolved.Cast(l, p.GEMM, p.B)
					if a.DType.IsQuantized() || b.DType.IsQuantized() {
						require.True(t, fp8.Multiplies(d.pairs, a.Encoding(), b.Encoding()), "%s: %s of %s", name, p.GEMM, l.Scope)
					}
					for o, c := range map[Operand]Cast{p.A: a, p.B: b} {
						was := r.Cast(l, p.GEMM, o)
						require.Equal(t, was.DType.IsQuantized(), c.DType.IsQuantized())
						was.DType = c.DType
						require.Equal(t, was, c)
					}
				}
			}
		}
	}
}

// fp8-smooth on Gaudi 2: the backward runs in E5M2, per-layer exceptions are kept.
func TestForEqualFormats(t *testing.T) {
	r := lookup(t, "fp8-smooth")
	r.Rows = append([]Row{
		{Scope: "layers.0.mlp.*", DType: fp8.BF16},
		{Scope: "layers.1.mlp.up_proj", Operand: Grad, DType: fp8.E4M3},
	}, r.Rows...)
	before := lookup(t, "fp8-smooth")
	got, notes, err := r.For(fp8.E4M3IEEE, equalPairs, decoder(2))
	require.NoError(t, err)
	require.Equal(t, []string{
		"e4m3 is e4m3ieee on this device, with maximum 240",
		"dgrad reads weight in e5m2: this device has no GEMM of e5m2 by e4m3ieee",
		"wgrad reads input in e5m2: this device has no GEMM of e5m2 by e4m3ieee",
	}, notes)
	require.Equal(t, before, lookup(t, "fp8-smooth"), "For does not change its receiver")
	format := func(scope string, g GEMM, o Operand) fp8.DType { return got.Cast(at(scope), g, o).DType }
	const q, exception, up = "layers.1.self_attn.q_proj", "layers.0.mlp.up_proj", "layers.1.mlp.up_proj"
	require.Equal(t, fp8.E4M3IEEE, format(q, Fprop, Input))
	require.Equal(t, fp8.E4M3IEEE, format(q, Fprop, Weight))
	require.Equal(t, fp8.E5M2, format(q, Dgrad, Weight))
	require.Equal(t, fp8.E5M2, format(q, Wgrad, Input))
	require.Equal(t, fp8.BF16, format(exception, Dgrad, Weight))
	require.Equal(t, fp8.E4M3IEEE, format(up, Dgrad, Weight), "the exception makes its gradient E4M3")
	require.Equal(t, fp8.E4M3IEEE, format(up, Wgrad, Input))
	require.Equal(t, float32(240), got.Cast(at(q), Fprop, Input).Limit())
	require.Equal(t, fp8.E4M3IEEE, got.Optimizer.M1)
	require.Equal(t, fp8.E5M2, got.Optimizer.M2)
	require.Contains(t, describe(t, got), "  dgrad, wgrad         e5m2 delayed stochastic      e5m2 smooth\n")

	again, _, err := got.For(fp8.E4M3IEEE, equalPairs, decoder(2))
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func describe(t *testing.T, r Recipe) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.Describe(&b, decoder(2)))
	return b.String()
}

// The error for an unsupported GEMM names it and a row that fixes it.
func TestForContradictions(t *testing.T) {
	for _, c := range []struct {
		e4m3  fp8.DType
		pairs pairs
		row   Row
		want  string
		mends Row
	}{
		{
			fp8.E4M3, mixedPairs,
			Row{Scope: "layers.1.mlp.*", Operand: Input, DType: fp8.E5M2},
			`recipe fp8-delayed: layers.1.mlp.up_proj: wgrad multiplies grad in e5m2 by input in e5m2, which the device's GEMM library does not support; to change the format of input, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.*", gemm = "wgrad", operand = "input", format = "e4m3"`,
			Row{Scope: "layers.*", GEMM: Wgrad, Operand: Input, DType: fp8.E4M3},
		},
		{
			fp8.E4M3, mixedPairs,
			Row{Scope: "layers.0.self_attn.o_proj", GEMM: Fprop, DType: fp8.E4M3IEEE},
			`layers.0.self_attn.o_proj: fprop multiplies input in e4m3ieee by weight in e4m3ieee, which the device's GEMM library does not support; to change the format of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.0.self_attn.o_proj", gemm = "fprop", format = "e4m3"`,
			Row{Scope: "layers.*", GEMM: Fprop, DType: fp8.E4M3},
		},
		{
			fp8.E4M3IEEE, equalPairs[:1],
			Row{},
			`layers.0.self_attn.q_proj: dgrad multiplies grad in e5m2 by weight in e4m3ieee, which the device's GEMM library does not support; to change the format of grad, add this row before all others in [[precision.rows]]: scope = "layers.0.self_attn.q_proj", gemm = "dgrad", operand = "grad", format = "e4m3"`,
			Row{Scope: "layers.*", Operand: Grad, DType: fp8.E4M3},
		},
		{
			fp8.Invalid,
			pairs{},
			Row{},
			`layers.0.self_attn.q_proj: fprop multiplies input in e4m3 by weight in e4m3, which the device's GEMM library does not support; to change the format of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", format = "bf16"`,
			Row{DType: fp8.BF16},
		},
		{
			fp8.E4M3, allPairs,
			Row{Scope: "layers.0.mlp.up_proj", GEMM: Wgrad, Operand: Input, DType: fp8.BF16},
			`layers.0.mlp.up_proj: wgrad multiplies grad in e5m2 by input in bf16, which the device's GEMM library does not support; to change the format of grad, add this row before all others in [[precision.rows]]: scope = "layers.0.mlp.up_proj", gemm = "wgrad", operand = "grad", format = "bf16"`,
			Row{GEMM: Wgrad, DType: fp8.BF16},
		},
	} {
		r := lookup(t, "fp8-delayed")
		r.Rows = append([]Row{c.row}, r.Rows...)
		_, _, err := r.For(c.e4m3, c.pairs, decoder(2))
		require.ErrorContains(t, err, c.want)
		r.Rows = append([]Row{c.mends}, r.Rows...)
		_, _, err = r.For(c.e4m3, c.pairs, decoder(2))
		require.NoError(t, err)
	}
}

// Both operands of a GEMM have FP32, BF16 (or fewer bits of it) or up to eight bits; the
// error names a row that gives them one format.
func TestForWideFormats(t *testing.T) {
	for _, c := range []struct {
		recipe string
		row    Row
		want   string // "" for a recipe that works
	}{
		{"bf16", Row{Scope: "layers.1.mlp.*", DType: fp8.F32}, ""},
		{"bf16", Row{Scope: "layers.1.mlp.*", GEMM: Wgrad, DType: fp8.F32}, ""},
		{"bf16", Row{Scope: "layers.1.mlp.*", Operand: Input, DType: e8m5}, ""},
		{"fp32", Row{Scope: "layers.1.mlp.*", DType: fp8.BF16}, ""},
		{"fp32", Row{Scope: "layers.1.mlp.*", DType: e8m5}, ""},
		{"fp8-current", Row{Scope: "layers.1.mlp.*", GEMM: Dgrad, DType: fp8.F32}, ""},
		{
			"bf16",
			Row{Scope: "layers[1:].mlp.*", Operand: Weight, DType: fp8.F32},
			`recipe bf16: layers.1.mlp.up_proj: fprop multiplies input in bf16 by weight in fp32, which the device's GEMM library does not support; to change the format of input, add this row before all others in [[precision.rows]]: scope = "layers[1:].mlp.*", gemm = "fprop", operand = "input", format = "fp32"`,
		},
		{
			"bf16-e8m5",
			Row{Scope: "layers.1.mlp.*", GEMM: Wgrad, Operand: Grad, DType: fp8.F32},
			`recipe bf16-e8m5: layers.1.mlp.up_proj: wgrad multiplies grad in fp32 by input in e8m5, which the device's GEMM library does not support; to change the format of input, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.*", gemm = "wgrad", operand = "input", format = "fp32"`,
		},
		{
			"fp32",
			Row{Scope: "layers.1.mlp.*", Operand: Grad, DType: e8m5},
			`dgrad multiplies grad in e8m5 by weight in fp32, which the device's GEMM library does not support; to change the format of weight, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.*", gemm = "dgrad", operand = "weight", format = "e8m5"`,
		},
		{
			"fp8-current",
			Row{Scope: "layers.1.mlp.*", GEMM: Dgrad, Operand: Grad, DType: e8m5},
			`dgrad multiplies grad in e8m5 by weight in e4m3, which the device's GEMM library does not support; to change the format of`,
		},
	} {
		r := lookup(t, c.recipe)
		r.Rows = append([]Row{c.row}, r.Rows...)
		require.NoError(t, r.Validate())
		_, notes, err := r.For(fp8.E4M3, mixedPairs, decoder(2))
		if c.want == "" {
			require.NoError(t, err)
			require.Empty(t, notes)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
}

// lists are what devices multiply: the names are those of backends.
var lists = map[string][][2]fp8.Encoding{
	"gaudi2": fp8.PerTensor([2]fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE}, [2]fp8.DType{fp8.E5M2, fp8.E5M2}),
	"ada":    fp8.PerTensor([2]fp8.DType{fp8.E4M3, fp8.E4M3}, [2]fp8.DType{fp8.E4M3, fp8.E5M2}, [2]fp8.DType{fp8.E5M2, fp8.E4M3}),
	"hopper": append(fp8.PerTensor([2]fp8.DType{fp8.E4M3, fp8.E4M3}, [2]fp8.DType{fp8.E5M2, fp8.E4M3}),
		both(fp8.Encoding{DType: fp8.E4M3, Across: 1, Along: 128, Scale: fp8.F32}),
		both(fp8.Encoding{DType: fp8.E4M3, Across: 1, Scale: fp8.F32})),
	"blackwell": append(fp8.PerTensor([2]fp8.DType{fp8.E4M3, fp8.E4M3}, [2]fp8.DType{fp8.E5M2, fp8.E4M3}),
		both(fp8.Encoding{DType: fp8.E4M3, Across: 1, Along: 32, Scale: fp8.E8M0}),
		both(fp8.Encoding{DType: fp8.E2M1, Across: 1, Along: 16, Scale: fp8.E4M3, Outer: true})),
	"none": {},
	"any":  nil,
}

func both(e fp8.Encoding) [2]fp8.Encoding { return [2]fp8.Encoding{e, e} }

// The error for a GEMM whose scales or formats the device does not multiply names the GEMM,
// its operands and their scales, the fields to change, and the row that changes them.
func TestForRefusesScales(t *testing.T) {
	eight := Row{Operand: Input, DType: fp8.INT8}
	for _, c := range []struct {
		recipe, device string
		row            Row
		want           string
	}{
		{
			"mxfp8", "gaudi2",
			Row{},
			"layers.0.self_attn.q_proj: fprop multiplies input in e4m3ieee 1x32 e8m0 by weight in e4m3ieee 1x32 e8m0, which the device's GEMM library does not support; " +
				`to change the granularity and scale of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", granularity = "tensor", scale = "pow2"`,
		},
		{
			"mxfp8", "hopper",
			Row{},
			`to change the granularity and scale of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", granularity = "tensor", scale = "pow2"`,
		},
		{
			"te-block", "blackwell",
			Row{},
			"fprop multiplies input in e4m3 1x128 fp32 by weight in e4m3 128x128 fp32, which the device's GEMM library does not support; " +
				`to change the granularity of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", granularity = "tensor"`,
		},
		{
			"nvfp4-plain", "gaudi2",
			Row{},
			"fprop multiplies input in e2m1 1x16 e4m3+fp32 by weight in e2m1 16x16 e4m3+fp32, which the device's GEMM library does not support; " +
				`to change the format, granularity and scale of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", format = "e4m3", granularity = "tensor", scale = "pow2"`,
		},
		{
			"mxfp4", "blackwell",
			Row{},
			`to change the format of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", format = "e4m3"`,
		},
		{
			"fp8-current", "ada",
			Row{Scope: "layers.1.mlp.up_proj", GEMM: Wgrad, Operand: Grad, Granularity: PerRow},
			"layers.1.mlp.up_proj: wgrad multiplies grad in e5m2 row fp32 by input in e4m3 tensor fp32, which the device's GEMM library does not support; " +
				`to change the granularity of grad, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.up_proj", gemm = "wgrad", operand = "grad", granularity = "tensor"`,
		},
		{
			"fp8-current", "hopper",
			Row{Scope: "layers.1.mlp.*", Operand: Input, Granularity: By(1, 128)},
			"layers.1.mlp.up_proj: fprop multiplies input in e4m3 1x128 fp32 by weight in e4m3 tensor fp32, which the device's GEMM library does not support; " +
				`to change the granularity of weight, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.*", operand = "weight", granularity = "1x128"`,
		},
		{
			"mxfp8", "any", eight,
			"fprop multiplies input in int8 by weight in e4m3, which the device's GEMM library does not support; to change the format of input",
		},
		{
			"fp8-current", "none",
			Row{},
			`to change the format of input and weight, add this row before all others in [[precision.rows]]: scope = "layers.*", format = "bf16"`,
		},
	} {
		r := lookup(t, c.recipe)
		r.Rows = append([]Row{c.row}, r.Rows...)
		e4m3 := fp8.E4M3
		if c.device == "gaudi2" {
			e4m3 = fp8.E4M3IEEE
		}
		_, _, err := r.For(e4m3, lists[c.device], decoder(2))
		require.ErrorContains(t, err, c.want)
	}
	r := lookup(t, "fp8-current")
	r.Rows = append([]Row{{Scope: "layers.1.mlp.up_proj", GEMM: Wgrad, Operand: Grad, Granularity: PerRow}}, r.Rows...)
	_, _, err := r.For(fp8.E4M3, lists["ada"], decoder(1))
	require.NoError(t, err, "with one layer the row matches nothing")
}

// The rows that errors name make every recipe fit every device, and give no scales to
// operands without, such as those of nvfp4's first and last layer.
func TestRemediesWork(t *testing.T) {
	remedy := regexp.MustCompile(`(\w+) = "([^"]*)"`)
	for _, name := range Names() {
		for device, list := range lists {
			e4m3 := fp8.E4M3
			if device == "gaudi2" {
				e4m3 = fp8.E4M3IEEE
			}
			r := lookup(t, name)
			was, resolved := r.Over(decoder(4)), Recipe{}
			var err error
			for range 60 { // a row for each GEMM of each layer at most
				if resolved, _, err = r.For(e4m3, list, decoder(4)); err == nil {
					break
				}
				_, rows, ok := strings.Cut(err.Error(), "[[precision.rows]]: ")
				require.True(t, ok, err)
				var added []Row
				for text := range strings.SplitSeq(rows, "; ") {
					var row Row
					for _, m := range remedy.FindAllStringSubmatch(text, -1) {
						require.NoError(t, row.set(m[1], m[2]))
					}
					added = append(added, row)
				}
				r.Rows = append(added, r.Rows...)
			}
			require.NoError(t, err, "%s on %s", name, device)
			for _, l := range decoder(4) {
				for _, p := range GEMMs {
					for _, o := range []Operand{p.A, p.B} {
						c := resolved.Cast(l, p.GEMM, o)
						require.NoError(t, c.Validate())
						require.True(t, was.Cast(l, p.GEMM, o).DType.IsQuantized() || !c.DType.IsQuantized(), "%s on %s: %s of %s in %s is %s", name, device, o, p.GEMM, l.Scope, c)
					}
				}
			}
		}
	}
}

// A row for all layers would end the BF16 exceptions: the error's row leaves their layers or
// GEMMs out. If none does, the error names a recipe.
func TestRemediesKeepExceptions(t *testing.T) {
	anyScale := anyScales([2]fp8.DType{fp8.E4M3, fp8.E4M3}, [2]fp8.DType{fp8.E5M2, fp8.E4M3})
	for _, c := range []struct{ recipe, want string }{
		{"nvfp4", `add this row before all others in [[precision.rows]]: scope = "layers[1:-1].*", format = "e4m3", granularity = "tensor", scale = "pow2"`},
		{"nvfp4-wgrad-bf16", `[[precision.rows]]: scope = "layers.*", gemm = "fprop", format = "e4m3", granularity = "tensor", scale = "pow2"`},
		{"nvfp4-plain", `[[precision.rows]]: scope = "layers.*", format = "e4m3", granularity = "tensor", scale = "pow2"`},
		{"mxfp4", `[[precision.rows]]: scope = "layers.*", format = "e4m3"`},
	} {
		_, _, err := lookup(t, c.recipe).For(fp8.E4M3, anyScale, decoder(5))
		require.ErrorContains(t, err, c.want)
	}
	r := lookup(t, "nvfp4")
	r.Rows = append([]Row{{Scope: "layers.2.mlp.*", DType: fp8.BF16}}, r.Rows...)
	_, _, err := r.For(fp8.E4M3, anyScale, decoder(5))
	require.ErrorContains(t, err, `[[precision.rows]]: scope = "layers[1:-3].*", format = "e4m3"`)
	r.Rows = append([]Row{{Scope: "*.mlp.down_proj", DType: fp8.BF16}}, r.Rows...)
	_, _, err = r.For(fp8.E4M3, anyScale, decoder(5))
	require.ErrorContains(t, err, "which the device's GEMM library does not support; use recipe fp8-current")
	_, _, err = r.For(fp8.E4M3, pairs{}, decoder(5))
	require.ErrorContains(t, err, `[[precision.rows]]: scope = "layers.*", format = "bf16"`, "all in BF16 keeps the exceptions")
}

// set sets a field by its name in a configuration.
func (r *Row) set(key, value string) (err error) {
	switch key {
	case "scope":
		r.Scope = value
	case "gemm":
		r.GEMM, err = ParseGEMM(value)
	case "operand":
		r.Operand, err = ParseOperand(value)
	case "format":
		r.DType, err = fp8.ParseDType(value)
	case "granularity":
		r.Granularity, err = ParseGranularity(value)
	case "scale":
		r.Scale, err = ParseScaleFormat(value)
	default:
		err = errors.New("unknown key " + key)
	}
	return err
}
