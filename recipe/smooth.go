package recipe

import (
	"fmt"
	"strings"
)

// SmoothForm is how Smooth-SwiGLU chooses the factors c by which it divides the
// channels of the hidden activation a = u ⊙ silu(g), and multiplies w3's
// columns. Any c leaves the function as it is; what differs is how much of an
// outlier moves into w3.
type SmoothForm uint8

const (
	NoSmooth    SmoothForm = iota // plain SwiGLU
	Balanced                      // √(max|a| / max|w3|): half of it moves, by construction
	Linear                        // max|u|, the paper's text: half of an aligned outlier moves
	Product                       // max|a|: all of it moves
	Token                         // max|a| of each token, undone behind the product: nothing moves into w3
	TokenLinear                   // max|u| of each token: the authors' code
)

var smoothFormNames = []string{"none", "balanced", "linear", "product", "token", "token-linear"}

func (f SmoothForm) String() string { return smoothFormNames[f] }

// SmoothForms lists the forms by name, none first.
func SmoothForms() []string { return smoothFormNames }

// ParseSmoothForm is the inverse of String.
func ParseSmoothForm(s string) (SmoothForm, error) {
	return parse[SmoothForm]("form of smooth-swiglu", smoothFormNames, s)
}

// Smooth is Smooth-SwiGLU in the layers whose w3 reads FP8. Its zero value is
// plain SwiGLU.
//
// Factors, Hidden and Weight say where c, the scale of h = a/c and that of
// W3′ = W3·c come from: Current (or not given) is from the micro-batch's own
// channel maxima, Delayed from earlier updates. The method needs all three
// current: each delayed one is ruined by the very spike that the method exists
// for. They are here to show it, and because the paper's scales were delayed.
type Smooth struct {
	Form   SmoothForm
	Exact  bool // c as computed, else rounded up to a power of two
	Margin int  // binades by which delayed factors are larger

	Factors, Hidden, Weight Scaling
}

// ByToken reports whether the factors belong to tokens, else to channels.
func (f SmoothForm) ByToken() bool { return f == Token || f == TokenLinear }

// On reports whether there is anything to smooth.
func (s Smooth) On() bool { return s.Form != NoSmooth }

// Validate reports a combination that has no meaning.
func (s Smooth) Validate() error {
	switch {
	case !s.On() && s != Smooth{}:
		return fmt.Errorf("smooth-swiglu is off, and has settings")
	case s.Form.ByToken() && s.Factors == Delayed:
		return fmt.Errorf("the factors of tokens cannot be delayed: no token comes twice")
	case s.Margin != 0 && s.Factors != Delayed:
		return fmt.Errorf("a margin of smooth-swiglu belongs to delayed factors")
	}
	return nil
}

// smoothScaling is the scaling of h and of W3′, which the rows do not decide.
func (r Recipe) smoothScaling(scope string, o Operand) Scaling {
	if !r.Smooth.On() || !strings.HasSuffix(scope, ".mlp.down_proj") {
		return NotGiven
	}
	var s Scaling
	switch {
	case o == Input:
		s = r.Smooth.Hidden
	case o == Weight && !r.Smooth.Form.ByToken():
		s = r.Smooth.Weight
	default:
		return NotGiven // gradients, and a W3 that stays what it is
	}
	if s == Delayed {
		return Delayed
	}
	return Current
}
