package recipe

import (
	"fmt"
	"slices"

	"octet/fp8"
)

// Optimizer is the format of each part of AdamW's state for the decayed
// matrices of the layers; everything else is kept in F32. F16 and FP8 are
// scaled, BF16 is not.
type Optimizer struct {
	Master, M1, M2 fp8.DType
	Rounding       fp8.Rounding
	Pow2           bool // scales are powers of two, else limit/amax
	Block          int  // elements of a row that share a moment's scale: MomentBlock, or 0 for the tensor's all
	// FloorV keeps a positive second moment from rounding to 0, at the format's
	// smallest number, where m/(√v+ε) would explode.
	FloorV bool
}

// MomentBlock is the one size of Optimizer.Block that there is.
const MomentBlock = 256

// Scaled reports whether the optimizer's state has a scale in a format.
func Scaled(d fp8.DType) bool { return d != fp8.F32 && d != fp8.BF16 }

// Validate reports formats that the state cannot be kept in.
func (o Optimizer) Validate() error {
	if !slices.Contains([]fp8.DType{fp8.F32, fp8.F16, fp8.BF16}, o.Master) {
		return fmt.Errorf("master weights in %s lose every small update (use fp32, fp16 or bf16)", o.Master)
	}
	for _, m := range []fp8.DType{o.M1, o.M2} {
		if !slices.Contains([]fp8.DType{fp8.F32, fp8.F16, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}, m) {
			return fmt.Errorf("the optimizer cannot keep moments in %s (use fp32, fp16, bf16, e4m3 or e5m2)", m)
		}
	}
	if o.Block != 0 && o.Block != MomentBlock {
		return fmt.Errorf("moments with a scale for every %d elements (use %d, or 0 for one scale per tensor)", o.Block, MomentBlock)
	}
	return nil
}

// String is one line: the formats, and what else differs from FP32.
func (o Optimizer) String() string {
	s := fmt.Sprintf("master %s, m1 %s, m2 %s", o.Master, o.M1, o.M2)
	if o.Master == fp8.F32 && o.M1 == fp8.F32 && o.M2 == fp8.F32 {
		return s
	}
	if Scaled(o.Master) || Scaled(o.M1) || Scaled(o.M2) {
		s += "; scaled"
		if o.Pow2 {
			s += " by powers of two"
		}
		if o.Block != 0 {
			s += fmt.Sprintf(", moments by blocks of %d", o.Block)
		}
	}
	s += ", " + o.Rounding.String()
	if o.FloorV {
		s += ", v > 0"
	}
	return s
}
