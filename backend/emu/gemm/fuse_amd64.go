//go:build !noasm

package gemm

// fuseKernels returns the kernels that this machine can run, the fastest first, in the
// order of Kernels.
func fuseKernels() (list []*fuseKernel) {
	for _, k := range Kernels() {
		switch k {
		case &AVX512:
			list = append(list, &avx512Fuse)
		case &AVX2:
			list = append(list, &avx2Fuse)
		}
	}
	return append(list, &goFuse)
}

var avx512Fuse = fuseKernel{
	width: 16, add: fuse16AVX512,
	powers: func(dst, src []float32, n int, minPower float32) (largest float32) {
		return powersAVX512(&dst[0], &src[0], n, minPower)
	},
}

var avx2Fuse = fuseKernel{
	width: 8, add: fuse8AVX2,
	powers: func(dst, src []float32, n int, minPower float32) (largest float32) {
		return powersAVX2(&dst[0], &src[0], n, minPower)
	},
}

//go:noescape
func fuse16AVX512(t *fuseTile)

//go:noescape
func fuse8AVX2(t *fuseTile)

// Both powers functions read and write whole vectors.

//go:noescape
func powersAVX512(dst, src *float32, n int, minPower float32) (largest float32)

//go:noescape
func powersAVX2(dst, src *float32, n int, minPower float32) (largest float32)
