package recipe

import (
	"fmt"
	"slices"
)

// SmoothForm selects the smoothing scales of Smooth-SwiGLU: c per channel, or r
// per token. Both divide the hidden activation a = u ⊙ silu(g); c multiplies w3's
// columns, r the rows of the output. The result does not depend on them, apart
// from rounding. The forms differ in how much of an outlier moves into w3.
type SmoothForm uint8

const (
	NoSmooth    SmoothForm = iota // plain SwiGLU
	Balanced                      // c = √(max|a| / max|w3|): half of its binades move into w3, by construction
	Linear                        // c = max|u|, as in the paper: half of an aligned outlier's binades move
	Product                       // c = max|a|: all of it moves
	Token                         // r = max|a| of the token: nothing moves into w3
	TokenLinear                   // r = max|u| of the token, as in the authors' code
)

var smoothFormNames = []string{"none", "balanced", "linear", "product", "token", "token-linear"}

func (f SmoothForm) String() string { return smoothFormNames[f] }

// SmoothForms lists the names of the forms, "none" first.
func SmoothForms() []string { return smoothFormNames }

// ParseSmoothForm is the inverse of String.
func ParseSmoothForm(s string) (SmoothForm, error) {
	return parse[SmoothForm]("form of smooth-swiglu", smoothFormNames, s)
}

// Smooth holds the settings of Smooth-SwiGLU, which applies to layers whose w3 reads
// FP8. Its zero value is plain SwiGLU.
//
// Smoothing, Hidden and Weight say where c, the scale of h = a/c and that of
// W3′ = W3·c come from: Current (or not given) means the micro-batch's own channel
// maxima, Delayed those of earlier updates. The method needs all three current: with
// any of them delayed it fails on the first spike. Delayed exists to show that, and
// because the paper delays the scales.
type Smooth struct {
	Form   SmoothForm
	Exact  bool // smoothing scales are not rounded; else rounded up to a power of two
	Margin int  // binades by which delayed smoothing scales are larger

	Smoothing, Hidden, Weight Scaling
}

// PerToken reports whether the form has one smoothing scale per token, not per channel.
func (f SmoothForm) PerToken() bool { return f == Token || f == TokenLinear }

// On reports whether s enables smoothing.
func (s Smooth) On() bool { return s.Form != NoSmooth }

// Validate reports an invalid combination of settings.
func (s Smooth) Validate() error {
	switch {
	case !s.On() && s != Smooth{}:
		return fmt.Errorf("smooth-swiglu has settings but no form: choose a form, or drop the settings")
	case s.Form.PerToken() && s.Smoothing == Delayed:
		return fmt.Errorf("per-token smoothing scales cannot be delayed: they depend on one token alone (use current)")
	case slices.ContainsFunc([]Scaling{s.Smoothing, s.Hidden, s.Weight}, func(s Scaling) bool { return s == Direction || s == Constant }):
		return fmt.Errorf("smoothing scales and operands of smooth-swiglu have no scaling direction or constant (use current or delayed)")
	case s.Margin != 0 && s.Smoothing != Delayed:
		return fmt.Errorf("a margin of smooth-swiglu needs delayed smoothing scales (set the margin to 0)")
	}
	return nil
}

// smoothScaling returns the scaling of h or W3′, which rows cannot set; NotGiven for other operands.
func (r Recipe) smoothScaling(l Layer, o Operand) Scaling {
	if !r.Smooth.On() || !l.Hidden {
		return NotGiven
	}
	var s Scaling
	switch {
	case o == Input:
		s = r.Smooth.Hidden
	case o == Weight && !r.Smooth.Form.PerToken():
		s = r.Smooth.Weight
	default:
		return NotGiven // gradients, and the unchanged W3 of per-token forms
	}
	if s == Delayed {
		return Delayed
	}
	return Current
}
