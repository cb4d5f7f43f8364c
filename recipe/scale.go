package recipe

import (
	"fmt"
	"strconv"
	"strings"

	"octet/fp8"
	"octet/internal/spelling"
)

// Scaling selects where the scale of a cast comes from.
type Scaling uint8

const (
	NotGiven Scaling = iota
	Unit             // scale 1
	Current          // from the operand's own amax, computed before the cast
	Delayed          // from the amax history of earlier steps
	// Direction is current for gradients in an integer format: from the value at which clipping
	// changes the direction of the tensor least (Unified INT8, arXiv 1912.12607). In other
	// formats it is Current.
	Direction
	// Constant never changes, as in µnit Scaling (arXiv 2502.05967): √fan_in for weights, 1 for
	// inputs, and for gradients the number of tokens of a step, by which the loss is divided.
	// Weights that start with a standard deviation of 1/√fan_in, inputs and gradients then have
	// one of about 1. With the scale format pow2 it is rounded down to a power of two.
	Constant
)

var scalingNames = []string{"", "unit", "current", "delayed", "direction", "constant"}

func (s Scaling) String() string { return scalingNames[s] }

// Granularity says which elements of an operand share a scale: a block of Across × Along
// elements, Along the dimension K that the GEMM sums over, so that GEMMs that sum over
// different dimensions of a tensor need different scales. All means the whole extent; the
// zero value is "not given". Scales finer than per-tensor are current.
type Granularity struct{ Across, Along int }

// All is the whole extent of an operand in one dimension.
const All = -1

var (
	PerTensor = Granularity{All, All}
	PerRow    = Granularity{1, All} // one scale for each row along K: a token, an output channel
)

// By returns the granularity of one scale for each block of across × along elements.
// DeepSeek-V3 has 1x128 for activations and 128x128 for weights; MX formats have 1x32,
// NVFP4 has 1x16.
func By(across, along int) Granularity { return Granularity{across, along} }

// String returns "tensor", "row" or, for blocks, "1x128"; "" if g is not given.
func (g Granularity) String() string {
	switch g {
	case Granularity{}:
		return ""
	case PerTensor:
		return "tensor"
	case PerRow:
		return "row"
	}
	return fmt.Sprintf("%dx%d", g.Across, g.Along)
}

// ParseGranularity is the inverse of String.
func ParseGranularity(s string) (g Granularity, err error) {
	for _, g := range []Granularity{{}, PerTensor, PerRow} {
		if s == g.String() {
			return g, nil
		}
	}
	across, along, _ := strings.Cut(s, "x")
	for _, side := range []struct {
		to   *int
		text string
	}{{&g.Across, across}, {&g.Along, along}} {
		if *side.to, err = strconv.Atoi(side.text); err != nil || *side.to < 1 || *side.to > 1<<20 {
			return Granularity{}, fmt.Errorf("unknown granularity %q (known: tensor, row, and a block's size across and along K, such as 1x32 and 128x128)", s)
		}
	}
	return g, nil
}

// Block returns the size of the block that shares a scale, across K and along K;
// 0 is the whole extent.
func (g Granularity) Block() (across, along int) { return max(0, g.Across), max(0, g.Along) }

// ScaleFormat says how a scale is rounded and stored. The zero value is "not given".
type ScaleFormat struct {
	DType fp8.DType // of the stored scale_inv
	Rule  fp8.ScaleRule
	// Outer adds an outer scale, in FP32, of the whole tensor, which maps the tensor's
	// largest scale to the maximum of DType.
	Outer bool
}

var (
	Pow2  = ScaleFormat{DType: fp8.F32, Rule: fp8.Pow2Down}               // limit/amax, rounded down to a power of two, so that scaling is exact
	Exact = ScaleFormat{DType: fp8.F32, Rule: fp8.Exact}                  // limit/amax, in FP32
	E8M0  = ScaleFormat{DType: fp8.E8M0, Rule: fp8.RoundUp}               // a power of two in eight bits; nothing saturates (MX)
	NVFP4 = ScaleFormat{DType: fp8.E4M3, Rule: fp8.Quotient, Outer: true} // E4M3 for a block, and FP32 for the tensor
)

// String returns "pow2", "fp32", "e8m0", "e8m0:floor", or a format that the scale is
// rounded to, as "e4m3" and "e4m3+fp32"; "" if f is not given.
func (f ScaleFormat) String() string {
	text := f.DType.String()
	switch {
	case f == ScaleFormat{}:
		return ""
	case f == Pow2:
		return "pow2"
	case f.Rule == fp8.RoundDown:
		text += ":floor"
	}
	if f.Outer {
		text += "+" + fp8.F32.String()
	}
	return text
}

// ParseScaleFormat is the inverse of String.
func ParseScaleFormat(s string) (ScaleFormat, error) {
	var names []string
	for _, f := range []ScaleFormat{{}, Pow2, Exact, E8M0, {DType: fp8.E8M0, Rule: fp8.RoundDown}, NVFP4} {
		if s == f.String() {
			return f, nil
		}
		names = append(names, f.String())
	}
	name, outer := strings.CutSuffix(s, "+"+fp8.F32.String())
	if d, err := fp8.ParseDType(name); err == nil && fp8.Quotient.Gives(d) {
		return ScaleFormat{DType: d, Rule: fp8.Quotient, Outer: outer}, nil
	}
	reason := spelling.DidYouMean(s, names[1:])
	if strings.HasPrefix(name, "ue") {
		reason = "; formats without a sign are not supported, except e8m0"
	}
	return ScaleFormat{}, fmt.Errorf("unknown scale format %q%s (known: pow2, fp32, e8m0, e8m0:floor, and a floating-point format of up to eight bits, the sign included, that has NaN, such as e4m3, with +fp32 for an outer scale per tensor)", s, reason)
}

// ParseScaling is the inverse of String; an empty string is the zero value.
func ParseScaling(s string) (Scaling, error) { return parse[Scaling]("scaling", scalingNames, s) }
