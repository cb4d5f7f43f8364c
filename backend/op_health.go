package backend

import "octet/fp8"

// The fields of CastHealth.Out. scale_inv multiplies a code to give its value.
const (
	HealthSaturated        = iota // share of elements with |x| above fp8.DType.ClipLimit · scale_inv, where that is not 0
	HealthFlushed                 // share of elements with a value of 0 where x is not 0
	HealthNoise                   // Σ(x - value)² / Σx²; 0 where both sums are 0
	HealthAmax                    // max |x|; NaN is larger than infinity
	HealthScaleInvMin             // over all scales but 0
	HealthScaleInvMax             // over all scales
	HealthScaleInvLog2Mean        // mean of log2(scale_inv) over all scales but 0
	HealthScaleInvLog2Std         // standard deviation of log2(scale_inv) over all scales but 0, 0 for one scale
	HealthZeroBlocks              // share of blocks whose x are all 0
	HealthLowestScales            // share of scales at or below the lowest of fp8.DType.ScaleRange
	HealthHighestScales           // share of scales at the highest
	HealthOuter                   // Codes.Outer, 1 without one
	HealthRMS                     // root of the mean of x²
	HealthKurtosis                // mean of x⁴ / (mean of x²)²: 3 for normal numbers, 1 if all |x| are equal, 0 if all x are 0
	HealthFields                  // the number of fields
)

// CastHealth measures what a cast of X to Codes, in a format of up to eight bits, lost.
// Codes may have any granularity and format of scales. A value is code · scale_inv ·
// Outer, as a GEMM reads it; of saturation, scale_inv includes Outer. The statistics of the
// scales do not include Outer. All scales count, those of zero blocks too; the minimum and
// the logarithms leave out scales of 0, which HealthLowestScales counts. If all are 0,
// these four statistics are 0.
//
// An X that is not finite makes HealthNoise and HealthKurtosis NaN; a NaN in X counts neither as
// saturated nor as flushed. A scale that is NaN makes all four statistics of the
// scales NaN.
//
// emu, ref and cuda sum in float64, in an order that depends only on the shapes. cuda takes
// scales in F32, E8M0 and E4M3 only. gaudi sums in FP32 and takes per-tensor scales only.
type CastHealth struct {
	X     *Tensor `op:"in"`  // the cast's input, F32, BF16 or F16, with or without a scale
	Codes *Tensor `op:"in"`  // of X's shape
	Out   *Tensor `op:"out"` // F32 [HealthFields]
}

func (o *CastHealth) check() error {
	var c checker
	c.wide("X", o.X)
	c.that(o.X.Block == PerTensor, "X is %s with blocks of %s, expected one scale or none", o.X, o.X.Block)
	c.that(o.Codes.DType.IsQuantized(), "Codes is %s, expected a format of up to eight bits", o.Codes)
	c.matrix("Codes", o.Codes, o.X.Rows(), o.X.Cols())
	c.vector("Out", o.Out, HealthFields)
	return c.err
}

// RowCosine computes the cosine of the angle between the rows of two matrices, and
// the rows' lengths. For up_proj and gate_proj, whose rows are SwiGLU's channels, it
// measures the alignment that causes outliers (method.md):
//
//	Out[0, i] = a_i·b_i / (|a_i| |b_i|), 0 where a row is 0
//	Out[1, i] = |a_i|
//	Out[2, i] = |b_i|
type RowCosine struct {
	A   *Tensor `op:"in"` // F32, BF16 or F16, with or without a scale
	B   *Tensor `op:"in"`
	Out *Tensor `op:"out"` // F32 [3, rows]
}

func (o *RowCosine) check() error {
	var c checker
	for _, f := range []field{{"A", o.A}, {"B", o.B}} {
		c.wide(f.name, f.t)
	}
	c.matrix("B", o.B, o.A.Rows(), o.A.Cols())
	c.that(o.Out.DType == fp8.F32 && o.Out.Rows() == 3 && o.Out.Cols() == o.A.Rows(), "Out is %s, expected fp32[3, %d]", o.Out, o.A.Rows())
	c.unscaled("Out", o.Out)
	return c.err
}
