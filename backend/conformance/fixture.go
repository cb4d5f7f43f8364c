package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
)

// fixture is one rank's program of a case, and the data of its variables.
type fixture struct {
	spec        backend.Spec // of the device under test
	rank, ranks int
	vars        *backend.Vars
	p           *backend.Program
	declared    []*backend.Tensor // the case's variables, without those of lowering
	rng         *rand.Rand
	values      map[*backend.Tensor][]float64 // of the variables, before the run
	tolerance   map[*backend.Tensor]float64   // of variables that are not compared exactly
	step        backend.Control               // value of step.control
	random      bool                          // the program uses the bits of fp8.Random
}

func newFixture(name string, s backend.Spec, rank, ranks int) *fixture {
	vars := backend.NewVars()
	return &fixture{
		spec: s, rank: rank, ranks: ranks,
		vars: vars, p: vars.Program(name),
		rng:       rand.New(rand.NewPCG(fp8.NameKey(name), uint64(rank))),
		values:    map[*backend.Tensor][]float64{},
		tolerance: map[*backend.Tensor]float64{},
		// Every word has bits in its upper half, too.
		step: backend.Control{
			Seed: 0x9876_5432_fedc_ba98, Step: 5<<32 + 7, Token: 3<<32 + 11,
			LR: 1e-3, InvTokens: 1. / 37, Rank: 3 + int32(rank),
		},
	}
}

// given declares a variable with values, rounded to its format. FP8 variables get a
// scale that is not a power of two.
func (b *fixture) given(name string, d fp8.DType, values []float64, shape ...int) *backend.Tensor {
	t := b.vars.Tensor(backend.Stash, name, d, shape...) // any op may write a Stash
	b.values[t] = values
	if d.IsQuantized() {
		t.Scale = b.scalar(name+".scale_inv", 0.07)
	}
	return t
}

// normal declares a variable of normally distributed values. Those of FP8 variables
// have a larger deviation, to fill the range of the format.
func (b *fixture) normal(name string, d fp8.DType, shape ...int) *backend.Tensor {
	sigma := 1.0
	if d.IsQuantized() {
		sigma = 16
	}
	return b.given(name, d, b.draw(elems(shape), sigma), shape...)
}

// positive declares an F32 variable of log-normal values, which have a wide range.
func (b *fixture) positive(name string, shape ...int) *backend.Tensor {
	values := b.draw(elems(shape), 4)
	for i, x := range values {
		values[i] = math.Exp(x)
	}
	return b.given(name, fp8.F32, values, shape...)
}

// result declares a variable that the program writes. It has other values before the
// run, so that a missing write shows.
func (b *fixture) result(name string, d fp8.DType, tolerance float64, shape ...int) *backend.Tensor {
	t := b.normal(name, d, shape...)
	b.tolerance[t] = tolerance
	return t
}

// gapped declares a view of rows × cols elements in the middle of a larger matrix. The
// other elements must not change.
func (b *fixture) gapped(name string, d fp8.DType, rows, cols int) *backend.Tensor {
	return b.normal(name+".base", d, rows+2, cols+5).RowRange(1, rows).Columns(name, 2, cols)
}

func (b *fixture) scalar(name string, value float64) *backend.Tensor {
	return b.given(name, fp8.F32, []float64{value}, 1)
}

func (b *fixture) ints(name string, values ...int) *backend.Tensor {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = float64(v)
	}
	return b.given(name, fp8.I32, list, len(list))
}

// control returns step.control with the value b.step; the first call declares it.
func (b *fixture) control() *backend.Tensor {
	if t := b.vars.Lookup("step.control"); t != nil {
		return t
	}
	t := b.vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	for raw := b.step.AppendTo(nil); len(raw) > 0; raw = raw[4:] {
		b.values[t] = append(b.values[t], float64(int32(binary.LittleEndian.Uint32(raw))))
	}
	return t
}

// draw returns n normal numbers; if n > 8, element 3 is +0 and element 7 is -0.
func (b *fixture) draw(n int, sigma float64) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = b.rng.NormFloat64() * sigma
	}
	if n > 8 {
		values[3], values[7] = 0, negativeZero
	}
	return values
}

// outliers multiplies one element in forty by factor.
func (b *fixture) outliers(t *backend.Tensor, factor float64) *backend.Tensor {
	for i := 5; i < len(b.values[t]); i += 40 {
		b.values[t][i] *= factor
	}
	return t
}

func elems(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// wideFormats are those of activations and gradients.
var wideFormats = []fp8.DType{fp8.F32, fp8.BF16, fp8.F16}

// variant is a shape, an input format and a style of casts for an elementwise op.
type variant struct {
	style      string
	rows, cols int
	in         fp8.DType
}

func (v variant) String() string { return fmt.Sprintf("%s/%dx%d/%s", v.style, v.rows, v.cols, v.in) }

// variants are run for every elementwise op.
var variants = []variant{
	{"f32", 1, 1, fp8.F32},
	{"f32", 3, 5, fp8.BF16},
	{"f32", 16, 64, fp8.F32},
	{"bf16", 17, 33, fp8.BF16},
	{"f16", 17, 33, fp8.F16},
	{"fp8", 17, 33, fp8.F32},
	{"fp8", 32, 48, fp8.BF16},
	{"stochastic", 17, 33, fp8.BF16},
	{"precision", 17, 33, fp8.F32},
	{"precision", 32, 48, fp8.BF16},
	{"view", 7, 19, fp8.BF16},
}

// casts declares the outputs of a result of rows × cols, and returns its casts.
func (b *fixture) casts(style, name string, rows, cols int, tolerance float64) []backend.Cast {
	switch style {
	case "f32", "bf16", "f16":
		d := map[string]fp8.DType{"f32": fp8.F32, "bf16": fp8.BF16, "f16": fp8.F16}[style]
		return []backend.Cast{{Out: b.result(name, d, tolerance, rows, cols)}}
	case "fp8":
		amax := b.scalar(name+".amax", 0.001)
		b.tolerance[amax] = tolerance
		return []backend.Cast{
			{Out: b.result(name, fp8.E4M3, tolerance, rows, cols), Scale: b.scalar(name+".scale", 37.5), Amax: amax},
			{Out: b.result(name+".t", fp8.E5M2, tolerance, cols, rows), Scale: b.scalar(name+".t.scale", 64), Transpose: true},
			{Out: b.result(name+".wide", fp8.BF16, tolerance, rows, cols)},
		}
	case "stochastic":
		b.random = true
		scale := b.scalar(name+".scale", 3)
		return []backend.Cast{
			{Out: b.result(name, fp8.E5M2, tolerance, rows, cols), Scale: scale, Control: b.control(), Rounding: fp8.Stochastic, Tokens: true},
			{
				Out: b.result(name+".t", fp8.E5M2, tolerance, cols, rows), Scale: scale, Control: b.control(), Rounding: fp8.Stochastic, Tokens: true,
				Transpose: true, Stream: name,
			},
			{Out: b.result(name+".wide", fp8.BF16, tolerance, rows, cols), Control: b.control(), Rounding: fp8.Stochastic},
		}
	case "precision":
		reduced, _ := fp8.ParseDType("e8m6") // the grammar of formats has it
		return []backend.Cast{
			{Out: b.result(name, fp8.BF16, tolerance, rows, cols), Precision: reduced},
			{Out: b.result(name+".wide", fp8.BF16, tolerance, rows, cols)},
		}
	case "view":
		out := b.gapped(name, fp8.F32, rows, cols)
		b.tolerance[out.Base] = tolerance
		return []backend.Cast{{Out: out}}
	}
	panic("conformance: no style " + style)
}
