// Package recipe says which number format every operand of every matrix
// product has, and which formats the optimizer keeps its state in. A recipe is
// data: rows of a table. A new recipe, or an exception for one layer, needs no
// code.
//
// A linear layer has three products, and each reads two operands:
//
//	fprop   y  = x · Wᵀ      input, weight
//	dgrad   dx = dy · W      grad, weight
//	wgrad   dW = dyᵀ · x     grad, input
//
// A row matches by the layer's path, the product and the operand, and gives
// any of format, scaling, granularity, format of the scale and rounding. Each
// comes from the first matching row that gives it, so an exception states only what differs and
// stands before the rule it breaks.
//
// Activations and weights want precision and get E4M3; gradients want range
// and get E5M2, rounded stochastically, which preserves values below half a step
// in expectation. Embedding, norms, attention, residual stream and head
// stay in the recipe's compute format, BF16.
//
// Not every device has a GEMM for every pair of these formats, nor the same E4M3:
// [Recipe.For] is what becomes of a recipe there.
package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"octet/fp8"
)

// GEMM is one of the three products of a linear layer.
type GEMM uint8

const (
	AnyGEMM GEMM = iota
	Fprop
	Dgrad
	Wgrad
)

var gemmNames = []string{"", "fprop", "dgrad", "wgrad"}

func (g GEMM) String() string { return gemmNames[g] }

// Operand is the role of a tensor in a product.
type Operand uint8

const (
	AnyOperand Operand = iota
	Input
	Weight
	Grad
)

var operandNames = []string{"", "input", "weight", "grad"}

func (o Operand) String() string { return operandNames[o] }

// ParseGEMM and ParseOperand are the inverses of String; an empty string is
// the zero value.
func ParseGEMM(s string) (GEMM, error)       { return parse[GEMM]("product", gemmNames, s) }
func ParseOperand(s string) (Operand, error) { return parse[Operand]("operand", operandNames, s) }

func parse[T ~uint8](what string, names []string, s string) (T, error) {
	if i := slices.Index(names, s); i >= 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("unknown %s %q (known: %s)", what, s, strings.Join(names[1:], ", "))
}

// Row is one line of a recipe's table.
type Row struct {
	Scope   string // glob on the layer's path, "layers.0.mlp.*"; empty matches all
	GEMM    GEMM
	Operand Operand

	DType       fp8.DType // Invalid: not given, and so the zero values below
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    *fp8.Rounding
}

func (r Row) matches(scope string, g GEMM, o Operand) bool {
	if r.GEMM != AnyGEMM && r.GEMM != g || r.Operand != AnyOperand && r.Operand != o {
		return false
	}
	ok, _ := path.Match(r.Scope, scope) // Validate has seen the pattern
	return ok || r.Scope == ""
}

// Cast is how one operand is stored for a product. All but DType is zero
// unless that is FP8.
type Cast struct {
	DType       fp8.DType
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    fp8.Rounding
	Margin      int // binades kept free below the format's largest value
}

// Limit is the magnitude that the largest value is scaled to.
func (c Cast) Limit() float32 {
	limit := c.DType.Max()
	for range c.Margin {
		limit /= 2
	}
	return limit
}

// String leaves out what is usual: one scale for the tensor, a power of two.
func (c Cast) String() string {
	s := c.DType.String()
	if c.DType.IsFP8() {
		s += " " + c.Scaling.String()
		if c.Granularity != ByTensor {
			s += " " + c.Granularity.String()
		}
		if c.Scale != Pow2 && c.Scaling != Unit {
			s += " " + c.Scale.String()
		}
		if c.Margin != 0 {
			s += fmt.Sprintf(" margin %d", c.Margin)
		}
	}
	if c.Rounding == fp8.Stochastic {
		s += " stochastic"
	}
	return s
}

// Validate reports a combination that has no meaning.
func (c Cast) Validate() error {
	switch {
	case !c.DType.IsFP8():
		return nil
	case c.Granularity != ByTensor && c.Scaling != Current:
		return fmt.Errorf("%s: scales by %s come from the elements themselves (use scaling current)", c, c.Granularity)
	case c.Scale == E8M0 && c.Granularity == ByTensor:
		return fmt.Errorf("%s: e8m0 is the format of scales by blocks (use scale pow2, or granularity 1x32)", c)
	}
	return nil
}

// Recipe is a complete choice of formats.
type Recipe struct {
	Name    string
	Summary string // one sentence
	Kind    Kind
	Rows    []Row
	Compute fp8.DType // F32 or BF16: activations between products

	Smooth    Smooth
	Optimizer Optimizer

	History      int // window of delayed scaling, in updates; 1: the most recent
	Margin       int // binades that delayed scales keep free: of inputs,
	WeightMargin int // of weights,
	GradMargin   int // of gradients
	// ColdStart leaves every delayed scale at 1 until a step has been seen,
	// as the paper's code does; else a calibration before the first step
	// measures them.
	ColdStart bool

	device *device // that does not multiply all that the rows ask for; else nil
}

// Cast resolves one operand of one product of the layer at scope.
func (r Recipe) Cast(scope string, g GEMM, o Operand) Cast {
	c := Cast{DType: r.format(scope, g, o)}
	if !c.DType.IsFP8() {
		return c
	}
	rounding := false
	for _, row := range r.Rows {
		if !row.matches(scope, g, o) {
			continue
		}
		c.Scaling = cmp.Or(c.Scaling, row.Scaling)
		c.Granularity = cmp.Or(c.Granularity, row.Granularity)
		c.Scale = cmp.Or(c.Scale, row.Scale)
		if !rounding && row.Rounding != nil {
			c.Rounding, rounding = *row.Rounding, true
		}
	}
	if s := r.smoothScaling(scope, o); s != NotGiven {
		c.Scaling = s
	}
	c.Scaling = cmp.Or(c.Scaling, Current)
	c.Granularity = cmp.Or(c.Granularity, ByTensor)
	c.Scale = cmp.Or(c.Scale, Pow2)
	if o == Weight {
		c.Rounding = fp8.Nearest
	}
	if c.Scaling == Delayed { // else the amax is the tensor's own, and fills the range
		c.Margin = [...]int{Input: r.Margin, Weight: r.WeightMargin, Grad: r.GradMargin}[o]
	}
	return c
}

// Heeds reports whether any operand of a model of the given depth follows row i in
// anything: gets a format from it, or, in FP8, a scaling that Smooth-SwiGLU does not
// choose, a granularity, a scale's format or a rounding, which no earlier row gives.
func (r Recipe) Heeds(i, layers int) bool {
	row := r.Rows[i]
	for layer := range layers {
		for _, module := range Modules {
			scope := Scope(module, layer)
			for _, p := range Products {
				for _, o := range []Operand{p.A, p.B} {
					if row.matches(scope, p.GEMM, o) && r.follows(row, r.Rows[:i], scope, p.GEMM, o) {
						return true
					}
				}
			}
		}
	}
	return false
}

// follows reports whether an operand takes anything from a row behind others.
func (r Recipe) follows(row Row, earlier []Row, scope string, g GEMM, o Operand) bool {
	for _, e := range earlier {
		if !e.matches(scope, g, o) {
			continue
		}
		if e.DType != fp8.Invalid {
			row.DType = fp8.Invalid
		}
		if e.Scaling != NotGiven {
			row.Scaling = NotGiven
		}
		if e.Granularity != 0 {
			row.Granularity = 0
		}
		if e.Scale != 0 {
			row.Scale = 0
		}
		if e.Rounding != nil {
			row.Rounding = nil
		}
	}
	if row.DType != fp8.Invalid {
		return true
	}
	scaling := row.Scaling != NotGiven && r.smoothScaling(scope, o) == NotGiven
	return r.Cast(scope, g, o).DType.IsFP8() && (scaling || row.Granularity != 0 || row.Scale != 0 || row.Rounding != nil)
}

// format is the format of an operand. Where the recipe was resolved for a device, it
// depends on what the product multiplies it by.
func (r Recipe) format(scope string, g GEMM, o Operand) fp8.DType {
	asked := func(o Operand) fp8.DType {
		for _, row := range r.Rows {
			if row.DType != fp8.Invalid && row.matches(scope, g, o) {
				return row.DType
			}
		}
		return r.Compute
	}
	if r.device != nil {
		for _, p := range Products {
			switch {
			case p.GEMM != g:
			case p.A == o:
				return r.device.formats([2]fp8.DType{asked(o), asked(p.B)})[0]
			case p.B == o:
				return r.device.formats([2]fp8.DType{asked(p.A), asked(o)})[1]
			}
		}
	}
	return asked(o)
}

// Validate reports a table that no backend could follow.
func (r Recipe) Validate() error {
	for i, row := range r.Rows {
		where := fmt.Sprintf("recipe %s, row %d", r.Name, i+1)
		if _, err := path.Match(row.Scope, ""); err != nil {
			return fmt.Errorf("%s: scope %q is not a pattern", where, row.Scope)
		}
		if row.Operand == Weight && row.Rounding != nil && *row.Rounding != fp8.Nearest {
			return fmt.Errorf("%s: weights are rounded to nearest, since they are cast again after every load (use nearest)", where)
		}
		switch {
		case row.DType == fp8.Invalid || row.DType.IsFP8() || row.DType == r.Compute:
		default:
			return fmt.Errorf("%s: format %s cannot be an operand of a product here (use e4m3, e5m2 or %s)", where, row.DType, r.Compute)
		}
	}
	if err := r.Optimizer.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := r.Smooth.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if r.History < 1 {
		return fmt.Errorf("recipe %s: the amax history needs at least one update, got %d", r.Name, r.History)
	}
	return nil
}
