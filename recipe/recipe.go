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
// any of format, scaling and rounding. Each of the three comes from the first
// matching row that gives it, so an exception states only what differs and
// stands before the rule it breaks.
//
// Activations and weights want precision and get E4M3; gradients want range
// and get E5M2, rounded stochastically so that what is too small to survive
// survives on average. Embedding, norms, attention, residual stream and head
// stay in the recipe's compute format, BF16.
package recipe

import (
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

// Scaling is where a cast's scale comes from.
type Scaling uint8

const (
	NotGiven Scaling = iota
	Unit             // scale 1
	Current          // from the tensor's own amax, just before the cast
	Delayed          // from the amaxes of earlier steps
)

var scalingNames = []string{"", "unit", "current", "delayed"}

func (s Scaling) String() string { return scalingNames[s] }

// ParseGEMM, ParseOperand and ParseScaling are the inverses of String; an
// empty string is the zero value.
func ParseGEMM(s string) (GEMM, error)       { return parse[GEMM]("product", gemmNames, s) }
func ParseOperand(s string) (Operand, error) { return parse[Operand]("operand", operandNames, s) }
func ParseScaling(s string) (Scaling, error) { return parse[Scaling]("scaling", scalingNames, s) }

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

	DType    fp8.DType // Invalid: not given
	Scaling  Scaling
	Rounding *fp8.Rounding
}

func (r Row) matches(scope string, g GEMM, o Operand) bool {
	if r.GEMM != AnyGEMM && r.GEMM != g || r.Operand != AnyOperand && r.Operand != o {
		return false
	}
	ok, _ := path.Match(r.Scope, scope) // Validate has seen the pattern
	return ok || r.Scope == ""
}

// Cast is how one operand is stored for a product.
type Cast struct {
	DType    fp8.DType
	Scaling  Scaling // NotGiven unless DType is FP8
	Rounding fp8.Rounding
	Margin   int // binades kept free below the format's largest value
}

// Limit is the magnitude that the largest value is scaled to.
func (c Cast) Limit() float32 {
	limit := c.DType.Max()
	for range c.Margin {
		limit /= 2
	}
	return limit
}

func (c Cast) String() string {
	s := c.DType.String()
	if c.DType.IsFP8() {
		s += " " + c.Scaling.String()
		if c.Margin != 0 {
			s += fmt.Sprintf(" margin %d", c.Margin)
		}
	}
	if c.Rounding == fp8.Stochastic {
		s += " stochastic"
	}
	return s
}

// Optimizer is the format of each part of AdamW's state for the decayed
// matrices of the layers; everything else is kept in F32.
type Optimizer struct {
	Master, M1, M2 fp8.DType
	Rounding       fp8.Rounding
}

// Recipe is a complete choice of formats.
type Recipe struct {
	Name    string
	Summary string // one sentence
	Rows    []Row
	Compute fp8.DType // F32 or BF16: activations between products
	// Smooth asks for Smooth-SwiGLU where w3's input is FP8. Its h and W3′ have
	// current scales whatever the rows say: with delayed ones the method fails on
	// the spike that it exists for.
	Smooth bool

	Optimizer Optimizer

	History    int // window of delayed scaling, in updates
	Margin     int // of activations and weights, in binades
	GradMargin int // of gradients
}

// Cast resolves one operand of one product of the layer at scope.
func (r Recipe) Cast(scope string, g GEMM, o Operand) Cast {
	c := Cast{DType: fp8.Invalid, Margin: r.Margin}
	if o == Grad {
		c.Margin = r.GradMargin
	}
	rounding := false
	for _, row := range r.Rows {
		if !row.matches(scope, g, o) {
			continue
		}
		if c.DType == fp8.Invalid {
			c.DType = row.DType
		}
		if c.Scaling == NotGiven {
			c.Scaling = row.Scaling
		}
		if !rounding && row.Rounding != nil {
			c.Rounding, rounding = *row.Rounding, true
		}
	}
	if c.DType == fp8.Invalid {
		c.DType = r.Compute
	}
	if !c.DType.IsFP8() {
		return Cast{DType: c.DType}
	}
	smooth := r.Smooth && o != Grad && strings.HasSuffix(scope, ".mlp.down_proj")
	if c.Scaling == NotGiven || smooth {
		c.Scaling = Current
	}
	if o == Weight {
		c.Rounding = fp8.Nearest
	}
	if c.Scaling != Delayed {
		c.Margin = 0 // nothing to keep room for: the amax is the tensor's own
	}
	return c
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
	for _, state := range []fp8.DType{r.Optimizer.Master, r.Optimizer.M1, r.Optimizer.M2} {
		if state != fp8.F32 && state != fp8.F16 && !state.IsFP8() {
			return fmt.Errorf("recipe %s: the optimizer cannot keep state in %s (use fp32, fp16, e4m3 or e5m2)", r.Name, state)
		}
	}
	if r.Optimizer.Master.IsFP8() {
		return fmt.Errorf("recipe %s: master weights in %s lose every small update (use fp32 or fp16)", r.Name, r.Optimizer.Master)
	}
	if r.History < 1 {
		return fmt.Errorf("recipe %s: the amax history needs at least one update, got %d", r.Name, r.History)
	}
	return nil
}
