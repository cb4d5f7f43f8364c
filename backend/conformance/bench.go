package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
)

// bench is one rank's program under construction, with the data of its
// variables.
type bench struct {
	spec        backend.Spec // of the device under test
	rank, ranks int
	vars        *backend.Vars
	p           *backend.Program
	declared    []*backend.Tensor // the variables of the case
	rng         *rand.Rand
	values      map[*backend.Tensor][]float64 // what a variable holds before the run
	tolerance   map[*backend.Tensor]float64   // of variables that are not compared exactly
	step        backend.Control               // what control declares
	random      bool                          // the program draws the bits of fp8.Random
}

func newBench(name string, s backend.Spec, rank, ranks int) *bench {
	vars := backend.NewVars()
	return &bench{
		spec: s, rank: rank, ranks: ranks,
		vars: vars, p: vars.Program(name),
		rng:       rand.New(rand.NewPCG(fp8.NameKey(name), uint64(rank))),
		values:    map[*backend.Tensor][]float64{},
		tolerance: map[*backend.Tensor]float64{},
		// Every word is used, its upper half too.
		step: backend.Control{
			Seed: 0x9876_5432_fedc_ba98, Step: 5<<32 + 7, Token: 3<<32 + 11,
			LR: 1e-3, InvTokens: 1. / 37, Rank: 3 + int32(rank),
		},
	}
}

// given declares a variable that holds values, rounded to its format. An FP8
// one gets a scale that is not a power of two.
func (b *bench) given(name string, d fp8.DType, values []float64, shape ...int) *backend.Tensor {
	t := b.vars.Tensor(backend.Stash, name, d, shape...) // any op may write a Stash
	b.values[t] = values
	if d.IsFP8() {
		t.Scale = b.scalar(name+".scale_inv", 0.07)
	}
	return t
}

// normal declares a variable of normally distributed values; those of FP8 fill
// the range of the format.
func (b *bench) normal(name string, d fp8.DType, shape ...int) *backend.Tensor {
	sigma := 1.0
	if d.IsFP8() {
		sigma = 16
	}
	return b.given(name, d, b.draw(elems(shape), sigma), shape...)
}

// positive is normal without signs and with a wide range.
func (b *bench) positive(name string, shape ...int) *backend.Tensor {
	values := b.draw(elems(shape), 4)
	for i, x := range values {
		values[i] = math.Exp(x)
	}
	return b.given(name, fp8.F32, values, shape...)
}

// result declares a variable that the program writes and that holds something
// else before, which shows if it does not.
func (b *bench) result(name string, d fp8.DType, tolerance float64, shape ...int) *backend.Tensor {
	t := b.normal(name, d, shape...)
	b.tolerance[t] = tolerance
	return t
}

// gapped declares rows × cols elements in the middle of a larger matrix, whose
// other elements must not change.
func (b *bench) gapped(name string, d fp8.DType, rows, cols int) *backend.Tensor {
	return b.normal(name+".base", d, rows+2, cols+5).RowRange(1, rows).Columns(name, 2, cols)
}

func (b *bench) scalar(name string, value float64) *backend.Tensor {
	return b.given(name, fp8.F32, []float64{value}, 1)
}

func (b *bench) ints(name string, values ...int) *backend.Tensor {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = float64(v)
	}
	return b.given(name, fp8.I32, list, len(list))
}

// control is step.control with b.step, declared when first asked for.
func (b *bench) control() *backend.Tensor {
	if t := b.vars.Lookup("step.control"); t != nil {
		return t
	}
	t := b.vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	for raw := b.step.AppendTo(nil); len(raw) > 0; raw = raw[4:] {
		b.values[t] = append(b.values[t], float64(int32(binary.LittleEndian.Uint32(raw))))
	}
	return t
}

// draw returns n normal numbers, a zero of either sign among the first.
func (b *bench) draw(n int, sigma float64) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = b.rng.NormFloat64() * sigma
	}
	if n > 8 {
		values[3], values[7] = 0, negativeZero
	}
	return values
}

// outliers multiplies one element in forty by a factor.
func (b *bench) outliers(t *backend.Tensor, factor float64) *backend.Tensor {
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

// variant is a way to feed and store an op whose result goes through casts.
type variant struct {
	style      string
	rows, cols int
	in         fp8.DType
}

func (v variant) String() string { return fmt.Sprintf("%s/%dx%d/%s", v.style, v.rows, v.cols, v.in) }

// variants are the shapes, operand formats and styles of storing that every
// elementwise op is run with.
var variants = []variant{
	{"f32", 1, 1, fp8.F32},
	{"f32", 3, 5, fp8.BF16},
	{"f32", 16, 64, fp8.F32},
	{"bf16", 17, 33, fp8.BF16},
	{"fp8", 17, 33, fp8.F32},
	{"fp8", 32, 48, fp8.BF16},
	{"stochastic", 17, 33, fp8.BF16},
	{"view", 7, 19, fp8.BF16},
}

// casts declares where a result of rows × cols is stored.
func (b *bench) casts(style, name string, rows, cols int, tolerance float64) []backend.Cast {
	switch style {
	case "f32", "bf16":
		d := fp8.F32
		if style == "bf16" {
			d = fp8.BF16
		}
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
	case "view":
		out := b.gapped(name, fp8.F32, rows, cols)
		b.tolerance[out.Base] = tolerance
		return []backend.Cast{{Out: out}}
	}
	panic("conformance: no style " + style)
}
