// Package emu is the backend that runs on the processor: in Go and Go
// assembly, on every machine, without a driver. It emulates FP8 training in
// its numbers, not in its speed: codes, scales and casts are those of an
// accelerator, and the arithmetic between them is FP32.
//
// # From a program to a run
//
// Load plans one arena for the temps of all programs, resolves each tensor to
// a slice of memory, and binds each op to a kernel: a closure that holds its
// slices, its scratch and its function values. Run calls the kernels in the
// order of the list and allocates nothing. An op that has no kernel, or a
// pair of formats that Spec does not list, is refused by Load.
//
// # Arithmetic
//
// A matrix product is the chain acc = fma(a, b, acc), k ascending, in FP32
// (gemm.go says for which formats this is the same on all machines); the
// dequantising factors multiply the finished sum. Every other op reads its
// operands as FP32 (rows), computes in FP32, and stores its result through the
// op's casts (emitter): once rounded, in as many formats as are wanted,
// without a wider copy in memory. The arithmetic on slices is package simd's,
// whose vector kernels give casts, scales and norms the same bits on every
// architecture. Float64 appears where an op computes one number (the root of a
// mean square, a bias correction, a sum of losses) and in GELU.
//
// The device model emu:amx multiplies FP8 and BF16 in another order, that of the
// matrix unit of Intel's server processors (gemm_amx.go): several times as fast
// where there is one, and the same bits in plain Go elsewhere. emu:h100, emu:ada,
// emu:b200, emu:gaudi2 and emu:gaudi3 multiply FP8 as those accelerators do (package
// arith, fuse.go), everything else as emu does.
//
// A maximum is taken over bit patterns without sign, so that NaN counts as
// larger than infinity and infinity as larger than any number.
//
// # Determinism
//
// Results do not depend on the number of threads. Work is split by output into
// chunks that follow from the shape; a sum over rows has one partial sum per
// chunk, added up in the order of the chunks. Random bits of stochastic casts
// belong to the element, not to the worker that rounds it.
//
// # Memory
//
// Persistent tensors are allocated by Bind, zeroed, on cache-line boundaries.
// Temps live in the arena, which programs loaded together share: what a temp
// holds after a run is overwritten by the next one. Scratch of a kernel is
// sized when it is bound, for each worker.
//
// # Threads and ranks
//
// A device is one rank: a pool of workers of which the goroutine that calls
// Run is one. Options.Ranks opens several devices that share the threads out
// and meet in a group for their collectives. Each rank's Run must be called
// from a goroutine of its own, with a context that ends when any of them
// fails, as golang.org/x/sync/errgroup makes it: a collective waits for all
// ranks. It gives up when its context ends, another rank fails, or one for which it
// waits has neither come nor ended an op for OCTET_EMU_TIMEOUT, ten minutes if it is
// not set. The group is then closed for good.
package emu
