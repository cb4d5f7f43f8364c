package fp8

// ClipLimit returns the magnitude above which a cast to the FP8 format d
// saturates instead of rounding to d.Max(). It lies half a spacing above the
// maximum: 464 for E4M3, 248 for E4M3IEEE, 61440 for E5M2.
func (d DType) ClipLimit() float32 {
	d.quantizedRow("ClipLimit")
	largest := d.Max()
	below := d.Float32(d.Nearest(largest, Saturate) - 1)
	return largest + (largest-below)/2
}
