package bench

import (
	"fmt"
	"regexp"
	"strconv"

	"octet/backend"
	"octet/fp8"
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
	m := shapeOfLayer.FindStringSubmatch(text)
	var d [3]int
	for i := range d {
		if m != nil {
			d[i], _ = strconv.Atoi(m[i+1]) // seven digits
		}
		if d[i] < 1 || d[i] > MaxDim {
			return Layer{}, fmt.Errorf("shape %q is not of the form MxNxK, such as 1024x2048x768, each from 1 to %d", text, MaxDim)
		}
	}
	return Layer{d[0], d[1], d[2]}, nil
}

// Passes are the three GEMMs of a layer in a step: the second part of the names of results.
var Passes = []string{"fprop", "dgrad", "wgrad"}

// Formats are the formats of the operands: the first part of the names of results. FP8 is
// E4M3, and E5M2 for gradients.
var Formats = []string{"fp8", "bf16", "fp32"}

// GEMM returns the cases of each layer: for each of Formats, one for each of Passes. Weight
// gradients are FP32; other results are BF16, or FP32 if the operands are.
func (b *Bench) GEMM(layers []Layer) ([]Case, error) {
	var list []Case
	for _, l := range layers {
		for _, format := range Formats {
			for _, pass := range Passes {
				list = append(list, b.gemm(l, format, pass))
			}
		}
	}
	return b.check(list)
}

// gemm records one GEMM of a layer. A program casts FP8 operands beforehand, as the ops of a
// step do, so that a device that needs them transposed gets a transposed copy.
func (b *Bench) gemm(l Layer, format, pass string) Case {
	fill := contents{}
	vars := backend.NewVars()
	values, grads, result := fp8.F32, fp8.F32, fp8.F32
	switch format {
	case "fp8":
		values, grads, result = b.spec.E4M3, fp8.E5M2, fp8.BF16
	case "bf16":
		values, grads, result = fp8.BF16, fp8.BF16, fp8.BF16
	}
	perTensor := func(d fp8.DType) fp8.Encoding { return fp8.Encoding{DType: d, Scale: fp8.F32} }
	if format == "fp8" && !b.spec.Multiplies(perTensor(grads), perTensor(values)) {
		grads = values // the device multiplies only equal formats
	}
	var prepare *backend.Program
	if format == "fp8" {
		prepare = vars.Program("prepare")
	}
	operand := func(name string, d fp8.DType, rows, cols int) *backend.Tensor {
		t := vars.Tensor(backend.Stash, name, d, rows, cols)
		if prepare != nil {
			t.Scale = fill.one(vars, name+".scale_inv")
			prepare.Add(&backend.Quantize{
				X:   vars.Tensor(backend.Stash, name+".bf16", fp8.BF16, rows, cols),
				Out: []backend.Cast{{Out: t}},
			})
		}
		return t
	}
	output := func(d fp8.DType, rows, cols int) *backend.Tensor {
		return vars.Tensor(backend.Output, "out", d, rows, cols)
	}
	var o *backend.MatMul
	switch pass {
	case "fprop":
		o = &backend.MatMul{
			A: operand("x", values, l.Tokens, l.In), B: operand("w", values, l.Out, l.In), TransB: true,
			Out: output(result, l.Tokens, l.Out), Accum: backend.Fast,
		}
	case "dgrad":
		o = &backend.MatMul{
			A: operand("dy", grads, l.Tokens, l.Out), B: operand("w", values, l.Out, l.In),
			Out: output(result, l.Tokens, l.In),
		}
	case "wgrad":
		o = &backend.MatMul{
			A: operand("dy", grads, l.Tokens, l.Out), TransA: true, B: operand("x", values, l.Tokens, l.In),
			Out: output(fp8.F32, l.Out, l.In),
		}
	}
	p := vars.Program("gemm")
	p.Add(o)
	m, n, k := o.Dims()
	return Case{
		bench: "gemm", name: format + " " + pass, shape: fmt.Sprintf("%dx%dx%d", m, n, k),
		program: p, prepare: prepare, fill: fill, limit: byFLOPs,
	}
}
