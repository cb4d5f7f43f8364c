package train

import (
	"fmt"
	"slices"
	"strings"

	"octet/fp8"
	"octet/recipe"
)

// This file checks the section precision of a configuration.

func (v *validator) precision(p Precision) {
	v.format("precision.master", p.Master, fp8.F32, fp8.F16, fp8.BF16)
	m1, m2 := v.moment("precision.m1", p.M1), v.moment("precision.m2", p.M2)
	if m1 == fp8.E4M3 && m2 == fp8.E4M3IEEE || m1 == fp8.E4M3IEEE && m2 == fp8.E4M3 {
		v.fail("precision.m2 = %q is another E4M3 variant than precision.m1 = %q, but a checkpoint's optimizer file can hold only one variant; use precision.m2 = %q", p.M2, p.M1, p.M1)
	}
	v.rounding("precision.rounding", p.Rounding)
	if p.StateScope != "" {
		_, err := recipe.ParseStateScope(p.StateScope)
		v.parsed("precision.state_scope", err)
	}
	if p.GradAccum != "" {
		d, err := fp8.ParseDType(p.GradAccum)
		if err == nil {
			err = recipe.CheckGrad(d)
		}
		v.parsed("precision.grad_accum", err)
	}
	v.reduce(p)
	v.activations(p)
	for _, f := range []struct {
		key       string
		value     *int
		low, high int
	}{
		{"precision.history", p.History, 1, recipe.MaxHistory},
		{"precision.margin", p.Margin, 0, recipe.MaxMargin},
		{"precision.weight_margin", p.WeightMargin, 0, recipe.MaxMargin},
		{"precision.grad_margin", p.GradMargin, 0, recipe.MaxMargin},
		{"precision.smooth_margin", p.SmoothMargin, 0, recipe.MaxMargin},
	} {
		if f.value != nil {
			inRange(v, f.key, *f.value, f.low, f.high)
		}
	}
	if b := p.StateBlock; b != nil && *b != 0 && !slices.Contains(recipe.MomentBlocks, *b) {
		v.fail("precision.state_block = %d is not supported; use 128, 256 or 2048, or 0 for one scale per tensor", *b)
	}
	if p.L1Bits != nil {
		if err := recipe.CheckL1Bits(*p.L1Bits); err != nil {
			v.fail("precision.%v", err)
		}
	}
	if p.Smooth != "" {
		v.oneOf("precision.smooth", p.Smooth, recipe.SmoothForms())
	}
	if p.SmoothScaling != "" {
		v.oneOf("precision.smooth_scaling", p.SmoothScaling, []string{"current", "delayed"})
	}
	for i, row := range p.Rows {
		v.row(fmt.Sprintf("precision.rows[%d]", i), row)
	}
}

func (v *validator) reduce(p Precision) {
	if p.Reduce != "" {
		d, err := fp8.ParseDType(p.Reduce)
		if err == nil {
			err = recipe.Reduce{DType: d}.Validate()
		}
		v.parsed("precision.reduce", err)
	}
	g, err := recipe.ParseGranularity(p.ReduceGranularity)
	if err == nil {
		err = recipe.Reduce{DType: fp8.E4M3, Granularity: g}.Validate()
	}
	v.parsed("precision.reduce_granularity", err)
	if p.ReduceScale != "" {
		v.oneOf("precision.reduce_scale", p.ReduceScale, recipe.ReduceScales())
	}
	if p.ReduceSum != "" {
		v.oneOf("precision.reduce_sum", p.ReduceSum, recipe.ReduceSums())
	}
}

// activations checks each key with valid values of the others.
func (v *validator) activations(p Precision) {
	for _, k := range []struct {
		name string
		p    Precision
	}{
		{"activations", Precision{Activations: p.Activations}},
		{"activations_granularity", Precision{Activations: "e4m3", ActivationsGranularity: p.ActivationsGranularity}},
		{"activations_scale", Precision{Activations: "e4m3", ActivationsScale: p.ActivationsScale}},
	} {
		var a recipe.Activations
		err := k.p.overrideActivations(&a)
		if err == nil {
			err = a.Validate()
		}
		v.parsed("precision."+k.name, err)
	}
}

func (v *validator) row(at string, r PrecisionRow) {
	v.parsed(at, recipe.CheckScope(r.Scope))
	if r.Scope == "" {
		v.fail(`%s: scope is missing; use scope = "layers.*" for all layers`, at)
	}
	v.text(at+".scope", r.Scope)
	v.oneOf(at+".gemm", r.GEMM, []string{"", "fprop", "dgrad", "wgrad"})
	v.oneOf(at+".operand", r.Operand, []string{"", "input", "weight", "grad"})
	v.oneOf(at+".scaling", r.Scaling, []string{"", "unit", "current", "delayed", "direction", "constant"})
	if r.Format != "" {
		d, err := fp8.ParseDType(r.Format)
		v.parsed(at+".format", err)
		if err == nil && !d.IsQuantized() && !d.IsWide() && d.Format().Container != fp8.BF16 {
			v.fail("%s.format = %q is not a format of GEMM operands; use a format of up to eight bits such as e4m3, bf16, fp32, or bf16 with fewer bits such as e8m5", at, r.Format)
		}
	}
	_, err := recipe.ParseGranularity(r.Granularity)
	v.parsed(at+".granularity", err)
	_, err = recipe.ParseScaleFormat(r.Scale)
	v.parsed(at+".scale", err)
	v.rounding(at+".rounding", r.Rounding)
	signs, err := recipe.ParseSigns(r.Signs)
	v.parsed(at+".signs", err)
	if err := (recipe.Hadamard{Size: r.Hadamard, Signs: signs}).Validate(); err != nil {
		v.fail("%s: %v", at, err)
	}
	if (r == PrecisionRow{Scope: r.Scope, GEMM: r.GEMM, Operand: r.Operand}) {
		v.fail("%s sets nothing; give it a format, a scaling, a granularity, a scale, a rounding, a hadamard, a history or a margin", at)
	}
	v.window(at, r)
	if d, err := fp8.ParseDType(r.Format); err == nil && !d.IsQuantized() {
		for _, f := range []struct{ name, value string }{{"scaling", r.Scaling}, {"granularity", r.Granularity}, {"scale", r.Scale}} {
			if f.value != "" {
				v.fail("%s: %s = %q does not apply to format = %q, which has no scale; drop one of them", at, f.name, f.value, r.Format)
			}
		}
		if r.Hadamard != 0 {
			v.fail("%s: hadamard = %d does not apply to format = %q, which is cast without a rotation; drop one of them", at, r.Hadamard, r.Format)
		}
	}
	if r.Operand == "grad" && r.GEMM == "fprop" || r.Operand == "weight" && r.GEMM == "wgrad" || r.Operand == "input" && r.GEMM == "dgrad" {
		v.fail("%s matches nothing: %s has no operand %s; change gemm or operand", at, r.GEMM, r.Operand)
	}
}

// window checks the history and the margin of a row, which belong to delayed scales.
func (v *validator) window(at string, r PrecisionRow) {
	for _, f := range []struct {
		name      string
		value     *int
		low, high int
	}{{"history", r.History, 1, recipe.MaxHistory}, {"margin", r.Margin, 0, recipe.MaxMargin}} {
		if f.value == nil {
			continue
		}
		inRange(v, at+"."+f.name, *f.value, f.low, f.high)
		if r.Scaling != "" && r.Scaling != recipe.Delayed.String() {
			v.fail("%s: %s = %d does not apply to scaling = %q, which keeps no history; drop one of them", at, f.name, *f.value, r.Scaling)
		}
		if d, err := fp8.ParseDType(r.Format); err == nil && !d.IsQuantized() {
			v.fail("%s: %s = %d does not apply to format = %q, which has no scale; drop one of them", at, f.name, *f.value, r.Format)
		}
	}
}

// format requires one of the known formats, or an empty name.
func (v *validator) format(key, name string, known ...fp8.DType) {
	d, err := fp8.ParseDType(name)
	if name == "" || err == nil && slices.Contains(known, d) {
		return
	}
	v.fail("%s = %q is not supported here; use one of %s", key, name, strings.Trim(fmt.Sprint(known), "[]"))
}

// moment checks the format of one of Adam's moments, and returns it.
func (v *validator) moment(key, name string) fp8.DType {
	d, _ := fp8.ParseDType(name)
	if name != "" && !d.HoldsMoments() && (key != "precision.m1" || !d.HoldsMomentum()) {
		v.fail("%s = %q is not supported here; use fp32, fp16, bf16, or a floating-point format of five to eight bits that has NaN, such as e4m3, e5m2 and e3m4", key, name)
	}
	return d
}

func (v *validator) rounding(key, name string) {
	if name != "" {
		v.oneOf(key, name, []string{"nearest", "stochastic"})
	}
}
