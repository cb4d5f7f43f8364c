package simd

// AddTruncated adds the floats of x, truncated to integers, which must be below 2^31 in
// magnitude. Sums wrap.
func AddTruncated(sums []int32, x []float32) {
	x = x[:len(sums)]
	n := wholeVectors(len(sums))
	if haveVectors && n > 0 {
		addTruncatedVectors(&sums[0], &x[0], n)
	}
	addTruncatedGo(sums[n:], x[n:])
}

//go:noescape
func addTruncatedVectors(sums *int32, x *float32, n int)

func addTruncatedGo(sums []int32, x []float32) {
	for i, v := range x {
		sums[i] += int32(v)
	}
}

// FromInt32 converts integers to FP32, rounded to nearest even; dst may have the memory of x.
func FromInt32(dst []float32, x []int32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		fromInt32Vectors(&dst[0], &x[0], n)
	}
	fromInt32Go(dst[n:], x[n:])
}

//go:noescape
func fromInt32Vectors(dst *float32, x *int32, n int)

func fromInt32Go(dst []float32, x []int32) {
	for i, v := range x {
		dst[i] = float32(v)
	}
}
