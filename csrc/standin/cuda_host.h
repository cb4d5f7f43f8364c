// The header compiles the CUDA sources of csrc/libcuda/kernels as C++ for the CPU: it
// defines CUDA's additions to the language and runs a grid on one core, block by block.
// For tests: slow, and without guarantees beyond CUDA's.
//
//	g++ -std=c++17 -O1 -shared -fPIC -fno-gnu-unique -fno-strict-aliasing
//	    -ffp-contract=off -Wno-unknown-pragmas -include cuda_host.h -x c++ norm.cu
//
// A thread is a fiber: it runs until it waits at a barrier or for other lanes of its warp;
// then the next fiber runs. CUDA guarantees no order of threads or blocks: some launches,
// always the same, run backwards. A kernel is a function that takes the address of its
// arguments; octet_host_launch, which every shared object exports, runs one on a grid.
// (-fno-gnu-unique separates the shared memory of two shared objects, and lets dlclose
// unload them.)
//
// Undefined behaviour ends the launch with a message: a barrier that some threads of the
// block never reach, or after some have ended, a shuffle without all lanes, a vector load
// from an unaligned address, a write beyond the dynamic shared memory, a stack overflow.
// Dynamic shared memory is initialized to NaN. cuda_async.h has asynchronous operations.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static
#define __align__(n) alignas(n)
#define KERNEL(name, Args, threads, blocks) extern "C" void name(const Args &a)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint3 { unsigned x, y, z; };

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

namespace octet_host {

const unsigned MAX_THREADS = 1024;      // per block
const size_t STACK = (128 << 10) + 320; // bytes per fiber; at powers of two, all would have the same cache sets
const size_t GUARD = 64;                // bytes at the end of a stack, to find overflows
const size_t SHARED = 228 << 10;        // bytes of dynamic shared memory
const size_t FENCE = 256;               // bytes of a red zone after it
const size_t BASE = 256;                // its offset, so that it is aligned to 256 bytes only

struct Fiber {
#ifdef __x86_64__
	void *sp;
#else
	ucontext_t context;
#endif
	uint3 thread;
	unsigned next, previous; // in the ring of live fibers
};

// Warp has the values that lanes exchange: two alternating sets of slots, so that a lane
// can send again while other lanes still read.
struct Warp {
	unsigned arrived, generation;
	char slot[2][32][32];
};

static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static char *stacks;
static unsigned current, live, threads, arrived, generation;
static unsigned long idle; // switches since the last progress
static uint64_t launches;  // generator, advanced by every launch
static bool backwards;     // threads and blocks run in descending order
static uint3 block_index, block_size, grid_size;
alignas(1024) static unsigned char shared_storage[BASE + SHARED + FENCE];
static unsigned char *const shared_memory = shared_storage + BASE;
static unsigned shared_bytes; // of the launch
static void (*kernel)(const void *);
static const void *arguments;
static const char *failure;

#ifdef __x86_64__
static void *scheduler;
extern "C" void octet_host_switch(void **from, void *to);
__asm__(".text\n"
	".local octet_host_switch\n"
	".type octet_host_switch,@function\n"
	"octet_host_switch:\n"
	"push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
	"mov %rsp, (%rdi)\n"
	"mov %rsi, %rsp\n"
	"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
	"ret\n");
static inline void to_fiber(unsigned i) {
	const unsigned from = current;
	current = i;
	octet_host_switch(&fibers[from].sp, fibers[i].sp);
}
[[maybe_unused]] static void to_scheduler() {
	octet_host_switch(&fibers[current].sp, scheduler);
}
#else
static ucontext_t scheduler;
static inline void to_fiber(unsigned i) {
	const unsigned from = current;
	current = i;
	swapcontext(&fibers[from].context, &fibers[i].context);
}
static void to_scheduler() { swapcontext(&fibers[current].context, &scheduler); }
#endif

// fail ends the launch: its fibers never run again.
static inline void fail(const char *why) {
	failure = why;
	to_scheduler();
}

static inline void yield() {
	if (++idle > 4ul * live + 4)
		fail("deadlock: not all threads reach a barrier or shuffle");
	if (fibers[current].next != current)
		to_fiber(fibers[current].next);
}

static void run_thread() {
	kernel(arguments);
	// Leave the ring. This thread will not arrive at barriers.
	Fiber &f = fibers[current];
	fibers[f.previous].next = f.next;
	fibers[f.next].previous = f.previous;
	idle = 0;
	if (--live > 0 && arrived > 0)
		fail("a thread ended while other threads wait at a barrier");
	if (live == 0)
		to_scheduler();
	to_fiber(f.next);
	__builtin_unreachable();
}

static void prepare(unsigned i) {
	Fiber &f = fibers[i];
	f.thread = {i, 0, 0};
	const unsigned up = (i + 1) % threads, down = (i + threads - 1) % threads;
	f.next = backwards ? down : up;
	f.previous = backwards ? up : down;
	char *const stack = stacks + i * STACK;
	memset(stack, 0x5a, GUARD);
#ifdef __x86_64__
	// The unused return address of run_thread aligns the stack as after a call.
	void **top = (void **)(stack + STACK);
	*--top = nullptr;
	*--top = (void *)run_thread;
	f.sp = top - 6;
#else
	getcontext(&f.context);
	f.context.uc_stack.ss_sp = stack;
	f.context.uc_stack.ss_size = STACK;
	f.context.uc_link = nullptr;
	makecontext(&f.context, run_thread, 0);
#endif
}

static void reset_async();
static const char *unfinished();

static const char *run_block() {
	const unsigned shared = shared_bytes;
	live = threads;
	arrived = 0;
	idle = 0;
	failure = nullptr;
	memset(warps, 0, sizeof warps);
	reset_async();
	memset(shared_memory, 0xff, shared);
	memset(shared_memory + shared, 0x5a, FENCE);
	for (unsigned i = 0; i < threads; i++)
		prepare(i);
	current = backwards ? threads - 1 : 0;
#ifdef __x86_64__
	octet_host_switch(&scheduler, fibers[current].sp);
#else
	swapcontext(&scheduler, &fibers[current].context);
#endif
	char guard[GUARD];
	memset(guard, 0x5a, GUARD);
	for (unsigned i = 0; i < threads && !failure; i++)
		if (memcmp(stacks + i * STACK, guard, GUARD))
			failure = "a fiber's stack overflowed";
	for (size_t j = 0; j < FENCE && !failure; j++)
		if (shared_memory[shared + j] != 0x5a)
			failure = "a write beyond the dynamic shared memory";
	return failure ? failure : unfinished();
}

static inline void sync_threads() {
	if (live != threads)
		fail("a barrier after threads of the block have ended");
	const unsigned mine = generation;
	if (++arrived == threads) {
		arrived = 0;
		generation++;
		idle = 0;
		return;
	}
	while (generation == mine)
		yield();
}

// sync_warp waits for all lanes of the warp and returns the index of the slots that they
// filled.
static inline unsigned sync_warp() {
	Warp &w = warps[current / 32];
	const unsigned mine = w.generation;
	if (++w.arrived == 32) {
		w.arrived = 0;
		w.generation++;
		idle = 0;
	} else {
		while (w.generation == mine)
			yield();
	}
	return mine % 2;
}

template <class T> static inline void send(const T &x) {
	static_assert(sizeof x <= sizeof warps->slot[0][0], "a slot is too small");
	Warp &w = warps[current / 32];
	memcpy(w.slot[w.generation % 2][current % 32], &x, sizeof x);
}

template <class T> static inline T receive(unsigned set, unsigned lane) {
	T x;
	memcpy(&x, warps[current / 32].slot[set][lane % 32], sizeof x);
	return x;
}

template <class T> static inline T shuffle(unsigned mask, const T &x, unsigned lane) {
	if (mask != 0xffffffffu)
		fail("a shuffle without all lanes");
	send(x);
	return receive<T>(sync_warp(), lane);
}

} // namespace octet_host

#include "cuda_async.h"

// octet_host_launch runs a kernel and returns NULL, or an error message.
extern "C" const char *octet_host_launch(void (*kernel)(const void *), const unsigned grid[3], unsigned block, unsigned shared, const void *args) {
	using namespace octet_host;
	if (block == 0 || block > MAX_THREADS || block % 32)
		return "a block must have a multiple of 32 threads, up to 1024";
	if (shared > SHARED - 1024)
		return "more than 227 KiB of dynamic shared memory";
	if (!stacks) {
		void *p = mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return "no memory for the fibers' stacks";
		stacks = (char *)p;
	}
	octet_host::kernel = kernel;
	arguments = args;
	threads = block;
	shared_bytes = shared;
	block_size = {block, 1, 1};
	grid_size = {grid[0], grid[1], grid[2]};
	launches = launches * 6364136223846793005u + 1442695040888963407u;
	backwards = launches >> 63;
	const uint64_t row = grid[0], layer = row * grid[1], blocks = layer * grid[2];
	for (uint64_t i = 0; i < blocks; i++) {
		const uint64_t at = backwards ? blocks - 1 - i : i;
		block_index = {(unsigned)(at % row), (unsigned)(at % layer / row), (unsigned)(at / layer)};
		if (const char *why = run_block())
			return why;
	}
	return nullptr;
}

#define threadIdx (octet_host::fibers[octet_host::current].thread)
#define blockIdx (octet_host::block_index)
#define blockDim (octet_host::block_size)
#define gridDim (octet_host::grid_size)
#define DYNAMIC_SHARED(T, name) T *const name = (T *)octet_host::shared_memory

static inline void __syncthreads() { octet_host::sync_threads(); }
static inline void __syncwarp() { octet_host::sync_warp(); }

template <class T> static inline T __shfl_sync(unsigned mask, T x, int lane) { return octet_host::shuffle(mask, x, lane); }
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int lanes) {
	return octet_host::shuffle(mask, x, octet_host::current % 32 ^ lanes);
}
static inline unsigned __ballot_sync(unsigned mask, int yes) {
	if (mask != 0xffffffffu)
		octet_host::fail("a vote without all lanes");
	octet_host::send(yes);
	const unsigned set = octet_host::sync_warp();
	unsigned votes = 0;
	for (unsigned i = 0; i < 32; i++)
		votes |= (octet_host::receive<int>(set, i) != 0) << i;
	return votes;
}
static inline int __syncthreads_or(int yes) {
	static int any[2];
	const unsigned set = octet_host::generation % 2;
	if (yes)
		any[set] = 1;
	octet_host::sync_threads();
	const int result = any[set];
	octet_host::sync_threads();
	any[set] = 0;
	octet_host::sync_threads();
	return result;
}

// Fibers switch only where they wait, so plain code is atomic.
template <class T> static inline T atomicMax(T *p, T x) {
	const T old = *p;
	if (x > old)
		*p = x;
	return old;
}
template <class T> static inline T atomicAdd(T *p, T x) {
	const T old = *p;
	*p = old + x;
	return old;
}

template <class T> static inline T __ldg(const T *p) {
	if ((uintptr_t)p % sizeof(T))
		octet_host::fail("a load from an address that is not a multiple of the load's size");
	return *p;
}

template <class To, class From> static inline To octet_host_bits(From x) {
	To y;
	static_assert(sizeof x == sizeof y, "sizes differ");
	memcpy(&y, &x, sizeof y);
	return y;
}
static inline unsigned __float_as_uint(float x) { return octet_host_bits<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return octet_host_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return octet_host_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return octet_host_bits<double>(x); }
static inline float __int_as_float(int x) { return octet_host_bits<float>(x); }

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
	const uint64_t bytes = (uint64_t)y << 32 | x;
	unsigned r = 0;
	for (int i = 0; i < 4; i++)
		r |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
	return r;
}

static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

template <class A, class B> static inline auto min(A a, B b) -> decltype(a + b) {
	typedef decltype(a + b) C;
	return (C)a < (C)b ? (C)a : (C)b;
}
template <class A, class B> static inline auto max(A a, B b) -> decltype(a + b) {
	typedef decltype(a + b) C;
	return (C)a > (C)b ? (C)a : (C)b;
}

static inline float __fmul_rn(float x, float y) { return x * y; }
// The product of two floats is exact in double; it is rounded toward zero to float.
static inline float __fmul_rz(float x, float y) {
	const double exact = (double)x * y;
	const float r = (float)exact;
	return fabs((double)r) > fabs(exact) ? nextafterf(r, 0) : r;
}
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline void sincospif(float x, float *sine, float *cosine) {
	*sine = (float)sin(x * M_PI);
	*cosine = (float)cos(x * M_PI);
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf expf // glibc has a function __expf
static inline float __fdividef(float x, float y) { return x / y; }
