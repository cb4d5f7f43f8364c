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
// format, scaling, granularity, scale format, rounding, rotation, and history and margin of
// delayed scales. The first matching row that sets a field decides it, so an exception sets
// only the fields that differ
// and precedes the general row.
//
// Most recipes store activations and weights in E4M3, which has more precision,
// and gradients in E5M2, which has more range. Gradients are rounded
// stochastically, which preserves values below half a step in expectation. Rows may
// also give FP32 under a BF16 recipe, to both operands of a GEMM, and BF16 with fewer
// bits, such as E8M5. Embedding, norms, attention, residual stream and head stay in the recipe's
// compute format, usually BF16. With F16 the loss's gradient has a dynamic loss scale
// ([Recipe.LossScaling]).
//
// [Recipe.For] adapts a recipe to a device that has another E4M3 or no GEMM for
// some pair of formats.
package recipe

import (
	"cmp"
	"fmt"
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
	// Scope is a glob on the layer's path, "layers.0.mlp.*", in which a name may have a
	// slice of its numbers, as in Python: "layers[:2].*", "layers[-8:].mlp.*". Empty
	// matches all.
	Scope   string
	GEMM    GEMM
	Operand Operand

	DType       fp8.DType // Invalid: not set; likewise the zero values below
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    *fp8.Rounding
	Hadamard    Hadamard
	// History and Margin replace the recipe's, for delayed scales: the amax history window
	// in updates, and the binades below the format's maximum that scales keep free.
	History int
	Margin  *int
}

// matches reports whether a row matches an operand of a layer's GEMM.
func (r Recipe) matches(row Row, scope string, g GEMM, o Operand) bool {
	if row.GEMM != AnyGEMM && row.GEMM != g || row.Operand != AnyOperand && row.Operand != o {
		return false
	}
	return row.Scope == "" || inScope(row.Scope, scope, r.depths)
}

// Cast describes how one operand of a GEMM is stored. All fields but DType are
// zero unless DType is quantized.
type Cast struct {
	// DType is the format: of up to eight bits (IsQuantized), BF16, FP32, or BF16 with
	// fewer bits, such as E8M5, to which values are rounded and which GEMMs read as BF16.
	DType       fp8.DType
	Scaling     Scaling
	Granularity Granularity
	Scale       ScaleFormat
	Rounding    fp8.Rounding
	History     int // amax history window of a delayed scale, in updates
	Margin      int // binades kept free below the format's largest value
	Hadamard    Hadamard
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
		if c.History != 0 {
			s += fmt.Sprintf(" history %d", c.History)
		}
		if c.Margin != 0 {
			s += fmt.Sprintf(" margin %d", c.Margin)
		}
		if c.Hadamard.On() {
			s += " " + c.Hadamard.String()
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
	case c.Scaling == Direction && (c.DType.Format().Kind != fp8.Integer || c.Granularity != PerTensor || c.Rounding != fp8.Stochastic):
		return fmt.Errorf("%s: scaling direction is for integer formats, stochastic, with one scale (use format int8, granularity tensor and rounding stochastic, or scaling current)", c)
	case c.Granularity != PerTensor && c.Scaling != Current:
		return fmt.Errorf("%s: scales of granularity %s can only be current (use scaling current)", c, c.Granularity)
	case !c.DType.HasNaN() && c.Scaling != Current && c.Scaling != Direction:
		return fmt.Errorf("%s: %s has no NaN, so that a NaN would vanish in the cast: the scale must carry it (use scaling current)", c, c.DType)
	case c.Scale.DType != fp8.F32 && c.Granularity == PerTensor:
		return fmt.Errorf("%s: %s is a format of block scales (use scale pow2, or granularity 1x32)", c, c.Scale)
	}
	return c.Hadamard.Validate()
}

// The largest values of a history, in updates, and a margin, in binades: E5M2 spans 32, so
// no more can be kept free.
const (
	MaxHistory = 1 << 16
	MaxMargin  = 32
)

// CheckL1Bits returns an error for a number of bits that [Recipe.L1Bits] cannot have. The narrowest
// accumulator lets a row of INT8 weights have an L1 norm of 1; above the widest, scales in FP32 could
// exceed the norm.
func CheckL1Bits(bits int) error {
	if bits != 0 && (bits < 9 || bits > 28) {
		return fmt.Errorf("l1_bits = %d (use 0, or an accumulator of 9 to 28 bits)", bits)
	}
	return nil
}

// Recipe chooses the formats of all GEMM operands and of the optimizer state.
type Recipe struct {
	Name    string
	Summary string // one sentence
	Kind    Kind
	Origin  string // the paper or code that the recipe follows and what differs from it; may be empty
	Source  string // text of the file that the recipe was read from; empty otherwise
	Rows    []Row
	Compute fp8.DType // F32, BF16 or F16: format of activations between GEMMs

	Smooth      Smooth
	Optimizer   Optimizer
	Reduce      Reduce
	Activations Activations

	History      int // amax history window of delayed scaling, in updates
	Margin       int // binades that delayed scales of inputs keep free,
	WeightMargin int // of weights,
	GradMargin   int // and of gradients
	// L1Bits bounds the L1 norm of each row of integer weights, so that sums of fprop fit an
	// accumulator of so many bits (A2Q, arXiv 2301.13376); 0: no bound.
	L1Bits int
	// ColdStart leaves every delayed scale at 1 in the first step, as the paper's
	// code does. Otherwise a calibration before the first step measures them.
	ColdStart bool

	device *device        // set by For if some GEMM needs other formats than its rows give
	depths map[string]int // set by Over, see there
}

// Cast returns the cast of one operand of one GEMM of a layer. A recipe whose scopes have
// slices must have passed through Over.
func (r Recipe) Cast(l Layer, g GEMM, o Operand) Cast {
	if l.Router {
		return Cast{DType: r.Compute}
	}
	c := Cast{DType: r.format(l.Scope, g, o)}
	if !c.DType.IsQuantized() {
		return c
	}
	rounding, history, margin := false, 0, (*int)(nil)
	for _, row := range r.Rows {
		if !r.matches(row, l.Scope, g, o) {
			continue
		}
		c.Scaling = cmp.Or(c.Scaling, row.Scaling)
		c.Granularity = cmp.Or(c.Granularity, row.Granularity)
		c.Scale = cmp.Or(c.Scale, row.Scale)
		c.Hadamard = cmp.Or(c.Hadamard, row.Hadamard)
		history, margin = cmp.Or(history, row.History), cmp.Or(margin, row.Margin)
		if !rounding && row.Rounding != nil {
			c.Rounding, rounding = *row.Rounding, true
		}
	}
	if s := r.smoothScaling(l, o); s != NotGiven {
		c.Scaling = s
	}
	c.Scaling = cmp.Or(c.Scaling, Current)
	if c.Scaling == Direction && c.DType.Format().Kind != fp8.Integer {
		c.Scaling = Current // as on a device with FP8 in place of INT8
	}
	c.Granularity = cmp.Or(c.Granularity, PerTensor)
	c.Scale = cmp.Or(c.Scale, Pow2)
	if !c.Hadamard.On() {
		c.Hadamard = Hadamard{}
	}
	if o == Weight {
		c.Rounding = fp8.Nearest
	}
	if c.Scaling == Delayed { // the amax of any other scaling is the tensor's own and may fill the range
		c.History, c.Margin = cmp.Or(history, r.History), r.margin(o)
		if margin != nil {
			c.Margin = *margin
		}
	}
	return c
}

// margin returns the recipe's margin for an operand, without rows.
func (r Recipe) margin(o Operand) int {
	return [...]int{Input: r.Margin, Weight: r.WeightMargin, Grad: r.GradMargin}[o]
}

// RowHasEffect reports whether row i decides any field of any operand's cast in a model
// with these linear layers. A row decides a field that no earlier row sets; fields
// other than the format count in FP8 only, history and margin with delayed scales only,
// and the scaling does not count where Smooth-SwiGLU chooses it.
func (r Recipe) RowHasEffect(i int, layers []Layer) bool {
	r = r.Over(layers)
	row := r.Rows[i]
	for _, l := range layers {
		for _, p := range GEMMs {
			for _, o := range []Operand{p.A, p.B} {
				if r.matches(row, l.Scope, p.GEMM, o) && r.decides(row, r.Rows[:i], l, p.GEMM, o) {
					return true
				}
			}
		}
	}
	return false
}

// Unmatched returns the scopes of the rows that name layers by number, slices included, and match
// none of these layers: a recipe also serves models with fewer layers than its rows name.
func (r Recipe) Unmatched(layers []Layer) (scopes []string) {
	r = r.Over(layers)
	for _, row := range r.Rows {
		matched := slices.ContainsFunc(layers, func(l Layer) bool { return r.matches(row, l.Scope, row.GEMM, row.Operand) })
		if !matched && strings.ContainsAny(row.Scope, "0123456789") && !slices.Contains(scopes, row.Scope) {
			scopes = append(scopes, row.Scope)
		}
	}
	return scopes
}

// decides reports whether row decides any field of an operand's cast, given the earlier rows.
func (r Recipe) decides(row Row, earlier []Row, l Layer, g GEMM, o Operand) bool {
	for _, e := range earlier {
		if !r.matches(e, l.Scope, g, o) {
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
		if e.Hadamard != (Hadamard{}) {
			row.Hadamard = Hadamard{}
		}
		if e.History != 0 {
			row.History = 0
		}
		if e.Margin != nil {
			row.Margin = nil
		}
	}
	if row.DType != fp8.Invalid {
		return true
	}
	scaling := row.Scaling != NotGiven && r.smoothScaling(l, o) == NotGiven
	switch c := r.Cast(l, g, o); {
	case !c.DType.IsQuantized():
		return false
	case c.Scaling == Delayed && (row.History != 0 || row.Margin != nil):
		return true
	}
	return scaling || row.Granularity != (Granularity{}) || row.Scale != (ScaleFormat{}) || row.Rounding != nil || row.Hadamard != (Hadamard{})
}

// format returns the format of an operand. In a recipe that For has resolved for a
// device it may depend on the GEMM's other operand.
func (r Recipe) format(scope string, g GEMM, o Operand) fp8.DType {
	requested := func(o Operand) fp8.DType {
		for _, row := range r.Rows {
			if row.DType != fp8.Invalid && r.matches(row, scope, g, o) {
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

// LossScaling reports whether training multiplies the loss's gradient by a dynamic loss
// scale, since small gradients would underflow in the compute format: whether that has a
// smaller exponent range than FP32, as F16.
func (r Recipe) LossScaling() bool { return r.Compute.Format().Exponent < fp8.F32.Format().Exponent }

// Validate reports a recipe that no backend supports.
func (r Recipe) Validate() error {
	if !r.Compute.IsWide() {
		return fmt.Errorf("recipe %s: compute format %s is not supported (use fp32, bf16 or fp16)", r.Name, r.Compute)
	}
	for i, row := range r.Rows {
		where := fmt.Sprintf("recipe %s, row %d", r.Name, i+1)
		if err := CheckScope(row.Scope); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if row.Operand == Weight && row.Rounding != nil && *row.Rounding != fp8.Nearest {
			return fmt.Errorf("%s: rounding of weights must be nearest, since every load casts them again (use nearest)", where)
		}
		if err := row.Hadamard.Validate(); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if row.History < 0 || row.History > MaxHistory {
			return fmt.Errorf("%s: history = %d (use a number of updates from 1 to %d)", where, row.History, MaxHistory)
		}
		if row.Margin != nil && (*row.Margin < 0 || *row.Margin > MaxMargin) {
			return fmt.Errorf("%s: margin = %d (use a number of binades from 0 to %d)", where, *row.Margin, MaxMargin)
		}
		if row.Scaling == Constant && r.LossScaling() {
			return fmt.Errorf("%s: scaling constant needs gradients whose size is known, and compute %s multiplies them by a loss scale that moves (use scaling current, or compute bf16)", where, r.Compute)
		}
		switch {
		case row.DType == fp8.Invalid || row.DType.IsQuantized() || row.DType == r.Compute:
		case row.DType == fp8.F32 || row.DType.Format().Container == fp8.BF16:
		default:
			return fmt.Errorf("%s: format %s is not supported for GEMM operands (use a format of up to eight bits such as e4m3, bf16, fp32, or bf16 with fewer bits such as e8m5)", where, row.DType)
		}
	}
	if err := r.Optimizer.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := r.Reduce.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := r.Activations.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := r.Smooth.Validate(); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if err := CheckL1Bits(r.L1Bits); err != nil {
		return fmt.Errorf("recipe %s: %w", r.Name, err)
	}
	if r.History < 1 {
		return fmt.Errorf("recipe %s: history = %d: the amax history needs at least one update (use 1 or more)", r.Name, r.History)
	}
	return nil
}
