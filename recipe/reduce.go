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
	return nil
}

// String returns the cast, and where it is summed.
func (r Reduce) String() string {
	if r.FP32() {
		return fp8.F32.String()
	}
	return r.Cast().String() + ", summed in fp32"
}
