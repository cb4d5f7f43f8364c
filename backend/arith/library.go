package arith

import "octet/fp8"

// NewestCublasLt is the version of cuBLASLt that device models and plans without a GPU assume.
const NewestCublasLt = 1300

// CublasLt returns the operands of up to eight bits that cuBLASLt documents for GPUs of a
// compute capability, 90 for 9.0, in a version of the library, 1209 for 12.9 (cuBLAS
// documentation, "Narrow precision data types usage" and cublasLtMatmulMatrixScale_t): OCP's
// E4M3, and every pair of FP8 formats except E5M2×E5M2, which tensor cores support and
// cuBLASLt does not. Blocks of 128×128 by blocks of 128×128 are not a pair of its modes: A
// is then read as 1×128, with equal scales.
func CublasLt(capability, version int) (pairs [][2]fp8.Encoding) {
	pairs = fp8.PerTensor(cublasLtFP8...)
	add := func(formats [][2]fp8.DType, e fp8.Encoding) {
		for _, f := range formats {
			a, b := e, e
			a.DType, b.DType = f[0], f[1]
			pairs = append(pairs, [2]fp8.Encoding{a, b})
		}
	}
	if capability == 90 && version >= 1209 {
		add(cublasLtFP8, fp8.Encoding{Across: 1, Scale: fp8.F32})
		add(cublasLtFP8, fp8.Encoding{Across: 1, Along: 128, Scale: fp8.F32})
	}
	if capability >= 100 && version >= 1208 {
		add(cublasLtFP8, fp8.Encoding{Across: 1, Along: 32, Scale: fp8.E8M0})
		fp4 := [][2]fp8.DType{{fp8.E2M1, fp8.E2M1}}
		add(fp4, fp8.Encoding{Across: 1, Along: 16, Scale: fp8.E4M3, Outer: true})
		add(fp4, fp8.Encoding{Across: 1, Along: 16, Scale: fp8.E4M3})
	}
	return pairs
}

var cublasLtFP8 = [][2]fp8.DType{{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}}
