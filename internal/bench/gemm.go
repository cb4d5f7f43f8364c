package bench

import (
	"fmt"
	"regexp"
	"strconv"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Layer is a linear layer: Tokens rows of In features become Out features.
type Layer struct{ Tokens, Out, In int }

func (l Layer) String() string { return fmt.Sprintf("%dx%dx%d", l.Tokens, l.Out, l.In) }

// Layers is the default: the layers of the presets small and 124m on 1024 tokens, each with
// the head last, and two squares to compare with other libraries.
var Layers = []Layer{
	{1024, 384, 384},
	{1024, 1024, 384},
	{1024, 384, 1024},
	{1024, 8192, 384},
	{1024, 768, 768},
	{1024, 2048, 768},
	{1024, 768, 2048},
	{1024, 50304, 768},
	{1024, 1024, 1024},
	{2048, 2048, 2048},
}

// MaxDim is the largest extent of a shape.
const MaxDim = 1 << 20

var shapeOfLayer = regexp.MustCompile(`^([0-9]{1,7})x([0-9]{1,7})x([0-9]{1,7})$`)

// ParseLayer reads "MxNxK": tokens, out, in.
func ParseLayer(text string) (Layer, error) {
	d, err := extents(text, shapeOfLayer, "MxNxK, such as 1024x2048x768")
	if err != nil {
		return Layer{}, err
	}
	return Layer{d[0], d[1], d[2]}, nil
}

// extents returns the numbers that the groups of a pattern match, of up to seven digits. A group that
// matches nothing has the number of the one before it.
func extents(text string, pattern *regexp.Regexp, form string) ([]int, error) {
	d := make([]int, pattern.NumSubexp())
	m := pattern.FindStringSubmatch(text)
	for i := range d {
		switch {
		case m == nil:
		case m[i+1] == "":
			d[i] = d[i-1]
		default:
			d[i], _ = strconv.Atoi(m[i+1])
		}
		if d[i] < 1 || d[i] > MaxDim {
			return nil, fmt.Errorf("shape %q is not of the form %s, each from 1 to %d", text, form, MaxDim)
		}
	}
	return d, nil
}

// Passes are the three GEMMs of a layer in a step: the second part of the names of results.
var Passes = []string{"fprop", "dgrad", "wgrad"}

// Operands names the formats and scales of a layer's operands: the first part of the names of
// results.
type Operands struct {
	Name   string
	Recipe recipe.Recipe
}

// Formats are the default: FP8 is E4M3, and E5M2 for gradients.
func Formats() ([]Operands, error) {
	var list []Operands
	for _, o := range []struct{ name, recipe string }{{"fp8", "fp8-current"}, {"bf16", "bf16"}, {"fp32", "fp32"}} {
		r, err := recipe.Lookup(o.recipe)
		if err != nil {
			return nil, err
		}
		list = append(list, Operands{o.name, r})
	}
	return list, nil
}

// middle is the layer whose casts the GEMMs have: no slice of a recipe's scopes selects it.
var middle = []recipe.Layer{{Scope: "layers.mlp.up_proj"}}

// GEMM returns the cases of each layer: for each of formats, one for each of Passes. Weight
// gradients are FP32; other results have the compute format.
func (b *Bench) GEMM(layers []Layer, formats []Operands) ([]Case, error) {
	var list []Case
	for _, l := range layers {
		for _, f := range formats {
			r, _, err := f.Recipe.Over(nil).For(b.spec.E4M3, b.spec.Pairs, middle)
			if err != nil {
				return nil, fmt.Errorf("%w by backend %s: %w", backend.ErrUnsupported, b.spec.DeviceName(), err)
			}
			for _, pass := range Passes {
				list = append(list, b.gemm(l, Operands{f.Name, r}, pass))
			}
		}
	}
	return b.check(list)
}

// gemm records one GEMM of a layer. A program casts operands of up to eight bits beforehand, as
// the ops of a step do, so that a device that needs them transposed gets a transposed copy.
// Scales per tensor are 1, which takes the same time.
func (b *Bench) gemm(l Layer, f Operands, pass string) Case {
	c := Case{bench: "gemm", name: f.Name + " " + pass, fill: contents{}, limit: byFLOPs}
	vars := backend.NewVars()
	p := vars.Program("gemm")
	operand := func(name string, g recipe.GEMM, o recipe.Operand, rows, cols int, down bool) *backend.Tensor {
		t, cast := stored(vars, c.fill, name, f.Recipe.Cast(middle[0], g, o), rows, cols, down)
		if !t.DType.IsQuantized() {
			return t
		}
		if c.prepare == nil {
			c.prepare = vars.Program("prepare")
		}
		c.prepare.Add(&backend.Quantize{X: vars.Tensor(backend.Stash, name+".bf16", fp8.BF16, rows, cols), Out: []backend.Cast{cast}})
		return t
	}
	output := func(d fp8.DType, rows, cols int) *backend.Tensor {
		return vars.Tensor(backend.Output, "out", d, rows, cols)
	}
	var o *backend.MatMul
	switch pass {
	case "fprop":
		o = &backend.MatMul{
			A: operand("x", recipe.Fprop, recipe.Input, l.Tokens, l.In, false),
			B: operand("w", recipe.Fprop, recipe.Weight, l.Out, l.In, false), TransB: true,
			Out: output(f.Recipe.Compute, l.Tokens, l.Out), Accum: backend.Fast,
		}
	case "dgrad":
		o = &backend.MatMul{
			A:   operand("dy", recipe.Dgrad, recipe.Grad, l.Tokens, l.Out, false),
			B:   operand("w", recipe.Dgrad, recipe.Weight, l.Out, l.In, true),
			Out: output(f.Recipe.Compute, l.Tokens, l.In),
		}
	case "wgrad":
		o = &backend.MatMul{
			A: operand("dy", recipe.Wgrad, recipe.Grad, l.Tokens, l.Out, true), TransA: true,
			B:   operand("x", recipe.Wgrad, recipe.Input, l.Tokens, l.In, true),
			Out: output(fp8.F32, l.Out, l.In),
		}
	}
	p.Add(o)
	m, n, k := o.Dims()
	c.program, c.shape = p, fmt.Sprintf("%dx%dx%d", m, n, k)
	return c
}

// stored declares an operand as a recipe stores it, and the cast that writes it. K is its
// first dimension if down, else its second.
func stored(vars *backend.Vars, fill contents, name string, c recipe.Cast, rows, cols int, down bool) (*backend.Tensor, backend.Cast) {
	t := vars.Tensor(backend.Stash, name, c.DType.Format().Container, rows, cols)
	cast := backend.Cast{Out: t}
	if !c.DType.IsQuantized() {
		return t, cast
	}
	t.Block.Rows, t.Block.Cols = c.Granularity.Block()
	if down {
		t.Block.Rows, t.Block.Cols = t.Block.Cols, t.Block.Rows
	}
	if t.Block == backend.PerTensor {
		t.Scale = fill.one(vars, name+".scale_inv")
		return t, cast
	}
	scaleRows, scaleCols := t.Block.ScaleShape(rows, cols)
	t.Scale = vars.Tensor(backend.Stash, name+".scale_inv", c.Scale.DType, scaleRows, scaleCols)
	cast.ScaleInv, cast.Rule = t.Scale, c.Scale.Rule
	if c.Scale.DType == fp8.F32 {
		cast.Limit = c.Limit()
	}
	if c.Scale.Outer {
		cast.Scale, t.Outer = fill.one(vars, name+".scale"), fill.one(vars, name+".outer")
	}
	return t, cast
}
