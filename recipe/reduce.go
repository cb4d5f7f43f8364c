package recipe

import (
	"cmp"
	"fmt"

	"octet/fp8"
)

// Reduce says how the gradients of linear layers' weights travel between ranks that share
// the optimizer state. In FP32, the default, the network library adds them. In
// another format each rank casts its gradient, and the rank that updates the weight adds all
// ranks' parts in FP32, in order of rank, so that the bits repeat. Other gradients travel in
// FP32: those of a head and an embedding span many decades, those of norms are small.
type Reduce struct {
	DType       fp8.DType   // F32, BF16, or of eight bits with NaN; Invalid: F32
	Granularity Granularity // of eight bits: PerTensor, PerRow or a block of a row; not given: 1x128
	Scale       ReduceScale // other than RankScale: one scale for a tensor, of all ranks
	Sum         ReduceSum   // other than SumFP32: needs such a scale
}

// ReduceScale says which scales gradients of eight bits have between ranks. Octet's gradients
// are already divided by the tokens of all N ranks: their sum is the mean of the ranks' own.
type ReduceScale uint8

const (
	RankScale ReduceScale = iota // each rank's own
	AutoMu                       // μ · 448/amax of all ranks, μ moved by the sums that saturate: FP8-LM
	RMSMu                        // the same with a constant μ = 1/√N: MS-AMP's code
	PreScale                     // 1: each rank divides by N, then casts
	PostScale                    // N: each rank casts, and the sum is divided by N
)

var reduceScaleNames = []string{"rank", "auto", "rms", "pre", "post"}

func (s ReduceScale) String() string { return reduceScaleNames[s] }

// ReduceScales lists the names of the scales.
func ReduceScales() []string { return reduceScaleNames }

// ParseReduceScale is the inverse of String.
func ParseReduceScale(s string) (ReduceScale, error) {
	return parse[ReduceScale]("scale of gradients between ranks", reduceScaleNames, s)
}

// ReduceSum says when sums of codes are rounded to the codes' format.
type ReduceSum uint8

const (
	SumFP32 ReduceSum = iota // never: the sum is FP32
	SumOnce                  // after the last addition
	SumEach                  // after each addition, as a network that adds FP8 does: FP8-LM
)

var reduceSumNames = []string{"fp32", "once", "each"}

func (s ReduceSum) String() string { return reduceSumNames[s] }

// ReduceSums lists the names of the sums.
func ReduceSums() []string { return reduceSumNames }

// ParseReduceSum is the inverse of String.
func ParseReduceSum(s string) (ReduceSum, error) {
	return parse[ReduceSum]("sum of gradients between ranks", reduceSumNames, s)
}

// FP32 reports whether gradients travel in FP32.
func (r Reduce) FP32() bool { return r.format() == fp8.F32 }

func (r Reduce) format() fp8.DType { return cmp.Or(r.DType, fp8.F32) }

// Cast returns the cast of a rank's gradient. Scales are powers of two, so that only the
// rounding of codes and of sums loses bits.
func (r Reduce) Cast() Cast {
	if !r.DType.IsQuantized() {
		return Cast{DType: r.format()}
	}
	return Cast{DType: r.DType, Scaling: Current, Granularity: cmp.Or(r.Granularity, By(1, 128)), Scale: Pow2}
}

// Validate reports a format or granularity that gradients cannot travel in.
func (r Reduce) Validate() error {
	d := r.format()
	if d != fp8.F32 && d != fp8.BF16 && (!d.IsQuantized() || d.Size() != 1 || !d.HoldsMoments()) {
		return fmt.Errorf("gradients do not travel in %s (use fp32, bf16, or a floating-point format of five to eight bits that has NaN, such as e4m3)", d)
	}
	if g := r.Cast().Granularity; g.Across > 1 {
		return fmt.Errorf("gradients do not travel with scales for %s, which span rows of several ranks (use tensor, row, or a block of a row such as 1x128)", g)
	}
	switch {
	case r.Scale != RankScale && !d.IsQuantized():
		return fmt.Errorf("reduce_scale = %q scales formats of eight bits, but gradients travel in %s (use reduce = \"e4m3\", or reduce_scale = \"rank\" with reduce_sum = \"fp32\")", r.Scale, d)
	case r.Scale != RankScale && r.Cast().Granularity != PerTensor:
		return fmt.Errorf("reduce_scale = %q is one scale for a tensor (use reduce_granularity = \"tensor\" instead of %q, or reduce_scale = \"rank\" with reduce_sum = \"fp32\")", r.Scale, r.Cast().Granularity)
	case r.Sum != SumFP32 && r.Scale == RankScale:
		return fmt.Errorf("reduce_sum = %q rounds sums to codes, for which all ranks need one scale (use reduce_scale = \"auto\", or reduce_sum = \"fp32\")", r.Sum)
	case r.Sum == SumFP32 && r.Scale == AutoMu:
		return fmt.Errorf("reduce_scale = \"auto\" counts the sums that saturate, but with reduce_sum = \"fp32\" none does (use reduce_sum = \"each\" or \"once\")")
	}
	return nil
}

// String returns the cast, and where it is summed.
func (r Reduce) String() string {
	if r.FP32() {
		return fp8.F32.String()
	}
	s := r.Cast().String()
	if r.Scale != RankScale {
		s += fmt.Sprintf(", one scale (%s)", r.Scale)
	}
	if r.Sum == SumFP32 {
		return s + ", summed in fp32"
	}
	return s + fmt.Sprintf(", sums rounded %s", map[ReduceSum]string{SumOnce: "once", SumEach: "at each addition"}[r.Sum])
}
