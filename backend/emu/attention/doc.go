// Package attention computes causal attention with grouped queries, and its gradients, on
// operands in memory, block by block of keys as FlashAttention does: New and NewGrad, which
// forward.go and backward.go explain.
//
// The matrix products of a block are those of a Unit. FP32 multiplies small matrices in a
// worker's scratch (fp32.go), by a GEMM kernel where it can multiply in place (tile_*.s; on
// NEON gemm.Multiply6x16NEON), else through copies. AMX multiplies BF16 tiles (amx.go, which
// defines its arithmetic). FP32 multiplies scores, and dO by Vᵀ, in pairs of BF16 where that is
// faster (pairs.go). Scores become weights in package simd (WeighRows).
//
// Function inPlace maps a gemm.Kernel to its multiply in place, so a kernel for an
// instruction set begins in gemm/kernels_*.go; a new architecture also changes the build tag
// of tile_other.go.
package attention
