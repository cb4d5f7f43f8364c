package recipe

import (
	"cmp"
	"fmt"

	"octet/fp8"
)

// Activations says how the inputs of norms and of the MLP's activation are stored between forward
// and backward, as in COAT (arXiv 2410.19313, section 5). Linear layers keep what their GEMMs
// read, attention keeps the compute format.
type Activations struct {
	DType       fp8.DType   // E4M3 or another format of eight bits with NaN; Invalid: the compute format
	Granularity Granularity // PerTensor, PerRow or a block of a row; not given: 1x16
	Scale       ScaleFormat // not given: Exact
}

// On reports whether these activations are stored in a format with scales.
func (a Activations) On() bool { return a.DType != fp8.Invalid }

// Cast returns the cast of an activation, for a compute format.
func (a Activations) Cast(compute fp8.DType) Cast {
	if !a.On() {
		return Cast{DType: compute}
	}
	a = a.Given()
	return Cast{DType: a.DType, Scaling: Current, Granularity: a.Granularity, Scale: a.Scale}
}

// Given returns a with every field given but DType.
func (a Activations) Given() Activations {
	return Activations{a.DType, cmp.Or(a.Granularity, By(1, 16)), cmp.Or(a.Scale, Exact)}
}

// Validate reports a format that activations are not stored in.
func (a Activations) Validate() error {
	if !a.On() {
		return nil
	}
	c := a.Cast(fp8.BF16)
	switch {
	case !c.DType.IsQuantized() || c.DType.Size() != 1 || !c.DType.HoldsMoments():
		return fmt.Errorf("activations are not stored in %s (use a floating-point format of five to eight bits that has NaN, such as e4m3, or none)", c.DType)
	case c.Granularity.Across > 1:
		return fmt.Errorf("activations are not stored with scales for %s, which tokens share (use 1x16, row or tensor)", c.Granularity)
	case c.Scale.Outer:
		return fmt.Errorf("activations are not stored with an outer scale (use scale fp32, pow2 or e8m0)")
	}
	return c.Validate()
}

// Format returns the name of the format, "none" for the compute format.
func (a Activations) Format() string {
	if !a.On() {
		return "none"
	}
	return a.DType.String()
}
