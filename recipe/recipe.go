// Package recipe defines the number format of every GEMM operand and of the
// optimizer state. A recipe is data, the rows of a table: a new recipe, or an
// exception for one layer, needs no code. [Lookup] returns a recipe by name,
// [Recipe.Describe] prints its table, and [Register] adds one of your own, which
// begins as a copy of another with other [Row] values.
//
// A linear layer has three GEMMs, each with two operands:
//
//	fprop   y  = x · Wᵀ      input, weight
//	dgrad   dx = dy · W      grad, weight
//	wgrad   dW = dyᵀ · x     grad, input
//
// A row matches by the layer's path, the GEMM and the operand. It sets any of
// format, scaling, granularity, scale format and rounding. The first matching row
// that sets a field decides it, so an exception sets only the fields that differ
// and precedes the general row.
//
// Most recipes store activations and weights in E4M3, which has more precision,
// and gradients in E5M2, which has more range. Gradients are rounded
// stochastically, which preserves values below half a step in expectation.
// Embedding, norms, attention, residual stream and head stay in the recipe's
// compute format, usually BF16.
//
// [Recipe.For] adapts a recipe to a device that has another E4M3 or no GEMM for
// some pair of formats.
package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"octet/fp8"
)

// GEMM is one of the three matrix products of a linear layer.
type GEMM uint8

const (
	AnyGEMM GEMM = iota
	Fprop
	Dgrad
	Wgrad
)

var gemmNames = []string{"", "fprop", "dgrad", "wgrad"}

func (g GEMM) String() string { return gemmNames[g] }

// Operand is the role of a tensor in a GEMM.
type Operand uint8

const (
	AnyOperand Operand = iota
	Input
	Weight
	Grad
)

var operandNames = []string{"", "input", "weight", "grad"}

func (o Operand) String() string { return operandNames[o] }

// ParseGEMM is the inverse of String; an empty string is the zero value.
func ParseGEMM(s string) (GEMM, error) { return parse[GEMM]("GEMM", gemmNames, s) }

// ParseOperand is the inverse of String; an empty string is the zero value.
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

	DType       fp8.DType // Invalid: not set; likewise the zero values below
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    *fp8.Rounding
}

func (r Row) matches(scope string, g GEMM, o Operand) bool {
	if r.GEMM != AnyGEMM && r.GEMM != g || r.Operand != AnyOperand && r.Operand != o {
		return false
	}
	ok, _ := path.Match(r.Scope, scope) // Validate has checked the pattern
	return ok || r.Scope == ""
}

// Cast describes how one operand of a GEMM is stored. All fields but DType are
// zero unless DType is FP8.
type Cast struct {
	DType       fp8.DType
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    fp8.Rounding
	Margin      int // binades kept free below the format's largest value
}

// Limit returns the magnitude that the tensor's amax is scaled to: the format's
// maximum / 2^Margin, with an outer scale times the largest block scale.
func (c Cast) Limit() float32 {
	limit := c.DType.Max()
	if c.Scale.Outer {
		limit *= c.Scale.DType.Max()
	}
	for range c.Margin {
		limit /= 2
	}
	return limit
}

// Encoding returns how the cast stores the operand.
func (c Cast) Encoding() fp8.Encoding {
	if !c.DType.IsQuantized() {
		return fp8.Encoding{DType: c.DType}
	}
	across, along := c.Granularity.Block()
	return fp8.Encoding{DType: c.DType, Across: across, Along: along, Scale: c.Scale.DType, Outer: c.Scale.Outer}
}

// String omits the defaults: per-tensor granularity and power-of-two scales.
func (c Cast) String() string {
	s := c.DType.String()
	if c.DType.IsQuantized() {
		s += " " + c.Scaling.String()
		if c.Granularity != PerTensor {
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

// Validate reports an invalid combination of fields.
func (c Cast) Validate() error {
	switch {
	case !c.DType.IsQuantized():
		return nil
	case c.Granularity != PerTensor && c.Scaling != Current:
		return fmt.Errorf("%s: scales of granularity %s can only be current (use scaling current)", c, c.Granularity)
	case !c.DType.HasNaN() && c.Scaling != Current:
		return fmt.Errorf("%s: %s has no NaN, so that a NaN would vanish in the cast: the scale must carry it (use scaling current)", c, c.DType)
	case c.Scale.DType != fp8.F32 && c.Granularity == PerTensor:
		return fmt.Errorf("%s: %s is a format of block scales (use scale pow2, or granularity 1x32)", c, c.Scale)
	}
	return nil
}

// Recipe chooses the formats of all GEMM operands and of the optimizer state.
type Recipe struct {
	Name    string
	Summary string // one sentence
	Kind    Kind
	Source  string // text of the file that the recipe was read from; empty otherwise
	Rows    []Row
	Compute fp8.DType // F32 or BF16: format of activations between GEMMs

	Smooth    Smooth
	Optimizer Optimizer

	History      int // amax history window of delayed scaling, in updates
	Margin       int // binades that delayed scales of inputs keep free,
	WeightMargin int // of weights,
	GradMargin   int // and of gradients
	// ColdStart leaves every delayed scale at 1 in the first step, as the paper's
	// code does. Otherwise a calibration before the first step measures them.
	ColdStart bool

	device *device // set by For if some GEMM needs other formats than its rows give
}

// Cast returns the cast of one operand of one GEMM of a layer.
func (r Recipe) Cast(l Layer, g GEMM, o Operand) Cast {
	c := Cast{DType: r.format(l.Scope, g, o)}
	if !c.DType.IsQuantized() {
		return c
	}
	rounding := false
	for _, row := range r.Rows {
		if !row.matches(l.Scope, g, o) {
			continue
		}
		c.Scaling = cmp.Or(c.Scaling, row.Scaling)
		c.Granularity = cmp.Or(c.Granularity, row.Granularity)
		c.Scale = cmp.Or(c.Scale, row.Scale)
		if !rounding && row.Rounding != nil {
			c.Rounding, rounding = *row.Rounding, true
		}
	}
	if s := r.smoothScaling(l, o); s != NotGiven {
		c.Scaling = s
	}
	c.Scaling = cmp.Or(c.Scaling, Current)
	c.Granularity = cmp.Or(c.Granularity, PerTensor)
	c.Scale = cmp.Or(c.Scale, Pow2)
	if o == Weight {
		c.Rounding = fp8.Nearest
	}
	if c.Scaling == Delayed { // the amax of any other scaling is the tensor's own and may fill the range
		c.Margin = [...]int{Input: r.Margin, Weight: r.WeightMargin, Grad: r.GradMargin}[o]
	}
	return c
}

// RowHasEffect reports whether row i decides any field of any operand's cast in a model
// with these linear layers. A row decides a field that no earlier row sets; fields
// other than the format count in FP8 only, and the scaling does not count where
// Smooth-SwiGLU chooses it.
func (r Recipe) RowHasEffect(i int, layers []Layer) bool {
	row := r.Rows[i]
	for _, l := range layers {
		for _, p := range GEMMs {
			for _, o := range []Operand{p.A, p.B} {
				if row.matches(l.Scope, p.GEMM, o) && r.decides(row, r.Rows[:i], l, p.GEMM, o) {
					return true
				}
			}
		}
	}
	return false
}

// Unmatched returns the scopes of the rows that name layers by number and match none of these
// layers: a recipe also serves models with fewer layers than its rows name.
func (r Recipe) Unmatched(layers []Layer) (scopes []string) {
	for _, row := range r.Rows {
		matched := slices.ContainsFunc(layers, func(l Layer) bool { return row.matches(l.Scope, row.GEMM, row.Operand) })
		if !matched && strings.ContainsAny(row.Scope, "0123456789") && !slices.Contains(scopes, row.Scope) {
			scopes = append(scopes, row.Scope)
		}
	}
	return scopes
}

// decides reports whether row decides any field of an operand's cast, given the earlier rows.
func (r Recipe) decides(row Row, earlier []Row, l Layer, g GEMM, o Operand) bool {
	for _, e := range earlier {
		if !e.matches(l.Scope, g, o) {
			continue
		}
		if e.DType != fp8.Invalid {
			row.DType = fp8.Invalid
		}
		if e.Scaling != NotGiven {
			row.Scaling = NotGiven
		}
		if e.Granularity != (Granularity{}) {
			row.Granularity = Granularity{}
		}
		if e.Scale != (ScaleFormat{}) {
			row.Scale = ScaleFormat{}
		}
		if e.Rounding != nil {
			row.Rounding = nil
		}
	}
	if row.DType != fp8.Invalid {
		return true
	}
	scaling := row.Scaling != NotGiven && r.smoothScaling(l, o) == NotGiven
	return r.Cast(l, g, o).DType.IsQuantized() && (scaling || row.Granularity != (Granularity{}) || row.Scale != (ScaleFormat{}) || row.Rounding != nil)
}

// format returns the format of an operand. In a recipe that For has resolved for a
// device it may depend on the GEMM's other operand.
func (r Recipe) format(scope string, g GEMM, o Operand) fp8.DType {
	requested := func(o Operand) fp8.DType {
		for _, row := range r.Rows {
			if row.DType != fp8.Invalid && row.matches(scope, g, o) {
				return row.DType
			}
		}
		return r.Compute
	}
	if r.device != nil {
		for _, p := range GEMMs {
			switch {
			case p.GEMM != g:
			case p.A == o:
				return r.device.formats([2]fp8.DType{requested(o), requested(p.B)})[0]
			case p.B == o:
				return r.device.formats([2]fp8.DType{requested(p.A), requested(o)})[1]
			}
		}
	}
	return requested(o)
}

// Validate reports a recipe that no backend supports.
func (r Recipe) Validate() error {
	for i, row := range r.Rows {
		where := fmt.Sprintf("recipe %s, row %d", r.Name, i+1)
		if _, err := path.Match(row.Scope, ""); err != nil {
			return fmt.Errorf("%s: scope %q is not a valid glob pattern (see path.Match)", where, row.Scope)
		}
		if row.Operand == Weight && row.Rounding != nil && *row.Rounding != fp8.Nearest {
			return fmt.Errorf("%s: rounding of weights must be nearest, since every load casts them again (use nearest)", where)
		}
		switch {
		case row.DType == fp8.Invalid || row.DType.IsQuantized() || row.DType == r.Compute:
		default:
			return fmt.Errorf("%s: format %s is not supported for GEMM operands (use e4m3, e5m2 or %s)", where, row.DType, r.Compute)
		}
	}
	if err := r.Optimizer.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := r.Smooth.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if r.History < 1 {
		return fmt.Errorf("recipe %s: history = %d: the amax history needs at least one update (use 1 or more)", r.Name, r.History)
	}
	return nil
}
