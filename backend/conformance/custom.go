package conformance

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
)

// Of yields the cases of an op of another package, in the order of its shapes: single
// elements, odd sizes, rows of several pieces, non-finite values, views, and casts to
// every format with every rounding. build declares the op's operands with the methods of
// its Bench and returns the op. Case.Run compares a backend with the op's Reference.
//
// tolerance is the relative error ‖error‖/‖result‖ of the op's FP32 result before casts:
// 0 if the result must be exact, 0x1p-20 for a few operations or one of package math, more
// for sums.
//
//	for c := range conformance.Of("squared", 0, func(b *conformance.Bench) backend.Op {
//		return &SquaredReLU{X: b.Input("x", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
//	}) {
//		t.Run(c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), driver, device)) })
//	}
func Of(name string, tolerance float64, build func(b *Bench) backend.Op) iter.Seq[Case] {
	var s suite
	for _, v := range customVariants {
		s.add(func(b *fixture) {
			b.p.Add(build(&Bench{Rows: v.rows, Cols: v.cols, fixture: b, variant: v, tolerance: tolerance}))
		}, "%s/%s", name, v)
	}
	return slices.Values(s.cases)
}

var customVariants = append(slices.Clone(variants),
	variant{"special", 9, 33, fp8.F32},
	variant{"special", 9, 33, fp8.BF16},
	variant{"formats", 33, 70, fp8.F32},
	variant{"formats", 150, 120, fp8.BF16},
	variant{"fp8", 3, 4100, fp8.BF16},
)

// Bench declares the operands of an op in one case. A case decides formats and values.
type Bench struct {
	Rows, Cols int // suggested shape of the op's matrices

	fixture   *fixture
	variant   variant
	tolerance float64
}

// Input declares a matrix in F32 or BF16.
func (b *Bench) Input(name string, rows, cols int) *backend.Tensor {
	x := b.fixture.outliers(b.fixture.normal(name, b.variant.in, rows, cols), 30)
	if b.variant.style == "special" {
		for i, v := range []float64{inf, -inf, nan, 0x1p-140, 0x1p100, -0x1p-70} {
			b.fixture.values[x][11*i%len(b.fixture.values[x])] = v
		}
	}
	return x
}

// Vector declares n elements in F32.
func (b *Bench) Vector(name string, n int) *backend.Tensor {
	return b.fixture.normal(name, fp8.F32, n)
}

// Result declares a matrix that the op writes without a cast.
func (b *Bench) Result(name string, d fp8.DType, rows, cols int) *backend.Tensor {
	return b.fixture.result(name, d, b.tolerance, rows, cols)
}

// Casts declares the tensors that store a result, and returns its casts.
func (b *Bench) Casts(name string, rows, cols int) []backend.Cast {
	switch b.variant.style {
	case "special":
		return b.fixture.casts("fp8", name, rows, cols, b.tolerance)
	case "formats":
		return b.formats(name, rows, cols)
	}
	return b.fixture.casts(b.variant.style, name, rows, cols, b.tolerance)
}

// formats returns a cast to each format in each rounding and orientation.
func (b *Bench) formats(name string, rows, cols int) (casts []backend.Cast) {
	f := b.fixture
	f.random = true
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		for i, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			if d == fp8.F32 && rounding == fp8.Stochastic {
				continue
			}
			for _, transpose := range []bool{false, true} {
				out, height, width := fmt.Sprintf("%s.%s.%d.%t", name, d, rounding, transpose), rows, cols
				if transpose {
					height, width = cols, rows
				}
				c := backend.Cast{Out: b.Result(out, d, height, width), Rounding: rounding, Transpose: transpose}
				if d != fp8.F32 && d != fp8.BF16 {
					c.Scale = f.scalar(out+".scale", math.Ldexp(1.25, 2*i))
					c.Amax = f.scalar(out+".amax", 0.001)
					f.tolerance[c.Amax] = b.tolerance
				}
				if rounding == fp8.Stochastic {
					c.Control, c.Tokens = f.control(), transpose
				}
				casts = append(casts, c)
			}
		}
	}
	return casts
}
