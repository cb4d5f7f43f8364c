// Package gemm computes GEMMs of matrices in memory, out = epilogue(A·B), on the workers
// of a pool. New makes one, Run runs it; NewAMX and NewFused have the arithmetic of other
// devices.
//
// # Arithmetic
//
// Each element of A·B is the chain (backend.MatMul says how block scales change it)
//
//	acc = +0;  acc = fma(a[i,l], b[l,j], acc)  for l = 0, 1, … k-1
//
// in FP32, independent of shape, blocking, number of threads and kernel. A product of
// two FP8 values, or of two BF16 values, is exact in FP32, so multiply-then-add gives
// the same bits as fma, and all kernels agree bit for bit on every machine. There are
// two exceptions. BF16 products outside FP32's range: fma rounds once, after the
// addition; separate instructions also round the product. F32 operands: the plain Go
// kernel multiplies, rounds and adds. Sign and payload of a NaN are specified only for
// device models (see canonicalNaNs).
//
// # Method
//
// The output is cut into rectangles, one task each, that share nothing. A worker decodes
// the operands of its rectangle, block by block, to FP32, or to pairs of BF16 where
// those are faster (pairs.go), or to words of integers (integers.go). Neighbouring tasks decode the same blocks again, but
// need no synchronization. Inside a task the blocking is nearly that of GotoBLAS (Goto
// and van de Geijn, 2008):
//
//   - a block of B that fits the second-level cache, in panels of nr columns
//   - a slab of mr rows of A, decoded just before it is multiplied by all panels
//   - a kernel with mr×nr accumulators in registers
//
// A kernel with narrow registers keeps a block of A in the second-level cache instead,
// and multiplies it by panel after panel, each in the first-level cache. Kernels
// broadcast A from any layout, so A is decoded without rearrangement. B is transposed
// only if it is stored transposed; FP8 B is transposed as codes. Between two blocks of k
// the accumulators are stored in FP32 and loaded again, which preserves the chain. Where
// k is one block, tasks are small, one slab if A can be decoded that way, and a worker
// keeps its block of B from task to task. A GEMM of few rows streams through B instead
// (runStream).
//
// # Files
//
//	gemm.go     epilogue, the loop over blocks: read this first
//	plan.go     sizes of blocks
//	kernel.go   what an instruction set provides; kernels_*.go and *.s do
//	integers.go exact sums of INT8 and INT4
//	accumulate.go sums of INT8 and INT4 in an accumulator of few bits
//	pairs.go    products of pairs of BF16
//	scale.go    block scales that multiply sums, and promotion
//	scaled.go   block scales that multiply elements; scaled_pairs.go: of words of pairs
//	amx.go      the arithmetic of Intel's matrix unit
//	fuse.go     the arithmetic of device models: fused sums; fuse_exact.go: their exact sums
package gemm
