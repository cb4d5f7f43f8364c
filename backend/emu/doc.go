// Package emu is the CPU backend: Go and Go assembly, on every machine, without a
// driver. It emulates the values of FP8 training, not its speed: codes, scales and
// casts are those of an accelerator; the arithmetic between casts is FP32.
//
// # From a program to a run
//
// Load plans one arena for the temps of all programs, resolves each tensor to a slice
// of memory, and binds each op to a kernel: a closure that holds its slices, its
// scratch and its function values. Run calls the kernels in program order and
// allocates nothing. Load rejects ops without a kernel and format pairs that Spec
// does not list.
//
// # Arithmetic
//
// A GEMM computes the chain acc = fma(a, b, acc) in FP32, k ascending (package gemm says
// for which formats this is the same on all machines); the dequantizing scales
// (scale_inv) multiply the finished sum. Every other op reads its operands as FP32
// (memory.Matrix), computes in FP32, and stores its result through the op's casts
// (cast.Output): rounded once, in all requested formats, without a wider copy. Package simd
// does the arithmetic on slices; its vector kernels give casts, scales and norms the
// same bits on every architecture. Float64 appears where an op computes one value (the
// root of a mean square, a bias correction, a sum of losses).
//
// The device model emu:amx multiplies BF16 and floating-point formats of up to eight bits in
// the order of the matrix unit of Intel's server processors, also with the block scales that
// multiply elements (backend.MatMul): several times as fast with that unit, and
// the same bits in plain Go without it. Attention of BF16 operands multiplies in that order
// too (package attention). Its sums of integers are exact, as emu's are.
// emu:h100, emu:ada, emu:b200, emu:gaudi2 and emu:gaudi3 multiply FP8 as those accelerators
// do (packages arith and gemm); the rest of their arithmetic is emu's. emu:accum16 adds up
// products of integers in 16 bits, and emu:accum16,saturate saturates; any number of bits
// from 2 to 32 will do.
//
// A maximum compares bit patterns without sign, so NaN counts as larger than infinity
// and infinity as larger than any finite value.
//
// # Determinism
//
// Results do not depend on the number of threads. Work is split by output into chunks
// that follow from the shape; a sum over rows has one partial sum per chunk, added in
// the order of the chunks. Random bits of stochastic casts depend on the element, not
// on the worker that rounds it.
//
// # Memory
//
// Load allocates variables, zeroed, on cache-line boundaries. Temps live in
// the arena, which programs loaded together share: the next run overwrites them. Each
// worker has scratch, whose size is fixed when kernels are bound.
//
// # Threads and ranks
//
// A device is one rank: a pool of workers, one of which is the goroutine that calls
// Run. Ranks of one process (world.Local) divide the threads among them. Call each
// rank's Run from its own goroutine: a collective waits for all ranks. It fails when its
// context ends, when another rank fails, or when the ranks that it waits for finish no op
// within the group's timeout. The group has then ended for good.
package emu
