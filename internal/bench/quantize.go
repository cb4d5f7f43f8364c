package bench

import (
	"fmt"
	"regexp"

	"octet/backend"
	"octet/fp8"
)

// Matrix is a shape to cast.
type Matrix struct{ Rows, Cols int }

func (m Matrix) String() string { return fmt.Sprintf("%dx%d", m.Rows, m.Cols) }

// Matrices is the default: one matrix that caches may hold, and a larger one.
var Matrices = []Matrix{{1024, 1024}, {8192, 8192}}

var shapeOfMatrix = regexp.MustCompile(`^([0-9]{1,7})x([0-9]{1,7})$`)

// ParseMatrix reads "RxC".
func ParseMatrix(text string) (Matrix, error) {
	d, err := extents(text, shapeOfMatrix, "RxC, such as 4096x4096")
	if err != nil {
		return Matrix{}, err
	}
	return Matrix{d[0], d[1]}, nil
}

// cast is a cast to measure.
type cast struct {
	from, to   fp8.DType
	transposed bool // it also writes a transposed copy
	rounding   fp8.Rounding
}

func (c cast) String() string {
	s := fmt.Sprintf("%s to %s, %s", c.from, c.to, c.rounding)
	if c.transposed {
		s += ", both ways"
	}
	return s
}

// casts returns the casts of a step: of activations, gradients and master weights. "Both
// ways" writes the two orientations in which a step's GEMMs read a tensor.
func casts(e4m3 fp8.DType) (list []cast) {
	for _, from := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16} {
		for _, to := range []fp8.DType{e4m3, fp8.E5M2} {
			for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
				list = append(list, cast{from, to, false, rounding})
			}
		}
		list = append(list, cast{from, e4m3, true, fp8.Nearest})
	}
	return list
}

// Quantize returns the cases of casts for each shape, with a scale and an amax as in delayed
// scaling.
func (b *Bench) Quantize(shapes []Matrix) ([]Case, error) {
	var list []Case
	for _, m := range shapes {
		for _, c := range casts(b.spec.E4M3) {
			list = append(list, c.record(m))
		}
	}
	return b.check(list)
}

func (c cast) record(m Matrix) Case {
	fill, vars := contents{}, backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", c.from, m.Rows, m.Cols)
	if c.from == fp8.F16 { // FP16 master weights are scaled
		x.Scale = fill.one(vars, "x.scale_inv")
	}
	first := backend.Cast{
		Out:   vars.Tensor(backend.Output, "out", c.to, m.Rows, m.Cols),
		Scale: fill.one(vars, "scale"), Amax: fill.one(vars, "amax"), Rounding: c.rounding,
	}
	first.Out.Scale = fill.one(vars, "scale_inv")
	if c.rounding == fp8.Stochastic {
		first.Control = fill.control(vars)
	}
	o := &backend.Quantize{X: x, Out: []backend.Cast{first}}
	if c.transposed {
		second := first
		second.Out, second.Amax, second.Transpose = vars.Tensor(backend.Output, "out.t", c.to, m.Cols, m.Rows), nil, true
		second.Out.Scale = first.Out.Scale
		o.Out = append(o.Out, second)
	}
	p := vars.Program("quantize")
	p.Add(o)
	return Case{bench: "quantize", name: c.String(), shape: m.String(), program: p, fill: fill, limit: byBytes}
}
