// Package attention computes causal attention with grouped queries, and its gradients, on
// operands in memory, block by block of keys as FlashAttention does: New and NewGrad, which
// forward.go and backward.go explain.
//
// The matrix products of a block are those of tile.go: small FP32 matrices in a worker's
// scratch, multiplied by a GEMM kernel where it can multiply in place (tile_*.s), else
// through copies. A faster kernel for an instruction set belongs there, in inPlace. Scores
// become weights in package simd (WeighRows).
package attention
