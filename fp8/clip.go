package fp8

// ClipLimit is half a step above the largest value of an FP8 format: what is
// larger is not rounded to that value but clipped to it. 464 for E4M3, 248 for
// E4M3IEEE, 61440 for E5M2.
func (d DType) ClipLimit() float32 {
	d.fp8Row("ClipLimit")
	largest := d.Max()
	below := d.Float32(d.Nearest(largest, Saturate) - 1)
	return largest + (largest-below)/2
}
