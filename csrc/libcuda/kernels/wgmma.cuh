// BF16 tensor cores of Hopper by wgmma: a warpgroup, four warps, multiplies 64 rows by a
// shared B operand, which the instruction reads from shared memory. Only sm_90a has it,
// not later architectures. With mma.sync each warp needs ldmatrix for its own copy of B.
//
// The rules below are those of the PTX ISA, section 9.7.15 (asynchronous warpgroup level
// matrix instructions). CUTLASS (mma_sm90_desc.hpp, and the table before make_gmma_desc
// in mma_traits_sm90_gmma.hpp) and ThunderKittens (wgmma/base.cuh) agree on the
// descriptor's fields and the layouts.
//
//  - Accumulators, and A registers, that other instructions have touched need
//    a wgmma.fence before wgmma uses them. They belong to wgmma until
//    wgmma.wait_group completes its group. ptxas before 13.3 may reuse A's
//    registers too early (Triton's issue 9433); in its code for these kernels
//    (NVRTC 12.0 to 13.0) nothing writes to them, or to accumulators, before
//    the wait.
//  - wgmma reads shared memory through the asynchronous proxy. Each thread must
//    publish its writes, cp.async included, by fence.proxy.async before the
//    barrier. The completion of a wgmma is such a fence.
//  - A thread's accumulators c[N / 8][4] have the layout of mma.sync: warp w of
//    the group has rows 16·w to 16·w + 15. So has A in registers.
//
// On the host csrc/standin/cuda_async.h emulates wgmma by its descriptors, as late as the
// wait allows.
#pragma once
#include "mma.cuh"

const int WARPGROUP_ROWS = 64; // rows of a warpgroup
const int PATTERN = 1024;  // bytes after which the swizzle repeats

// warpgroup_row returns the first row of this thread's warpgroup. The shuffle from one
// lane tells the compiler that it is uniform in the warp, so descriptors are in uniform
// registers.
__device__ inline int warpgroup_row() { return __shfl_sync(ALL, (int)(threadIdx.x / 128 * WARPGROUP_ROWS), 0); }

// begin_at_pattern rounds up to the beginning of a swizzle pattern.
__device__ inline bf16 *begin_at_pattern(bf16 *p) {
#ifdef __CUDA_ARCH__
	const u32 at = address_of(p);
#else
	const u32 at = octet_host::shared_offset(p);
#endif
	return p + (PATTERN - at % PATTERN) % PATTERN / 2;
}

// descriptor describes a matrix with the 128-byte swizzle: bits 0-13 hold the address,
// 16-29 and 32-45 two distances, all in units of 16 bytes, 62-63 the swizzle mode, 1. The
// swizzle is a function of the address: bits 4-6 xor bits 7-9. A BF16Tile<64> has the
// same swizzle if it begins at a multiple of 1,024 bytes; then bits 49-51, the base
// offset, are 0.
__device__ inline u64 descriptor(const bf16 *p, u32 leading, u32 stride) {
#ifdef __CUDA_ARCH__
	const u32 at = address_of(p);
#else
	const u32 at = octet_host::shared_offset(p);
#endif
	return (u64)(at >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// PanelTile is a matrix of ROWS rows and D columns in shared memory, as panels of 64
// columns, 128 bytes, each a BF16Tile.
template <int D, int ROWS> struct PanelTile {
	bf16 *p;

	static const int SIZE = ROWS * D;
	static const u32 PANEL = ROWS * 128, EIGHT_ROWS = 1024; // bytes

	template <int THREADS> __device__ void load(const bf16 *from, i64 ld, int n) const {
#pragma unroll
		for (int c = 0; c < D / 64; c++)
			BF16Tile<64>{p + c * ROWS * 64}.template load<ROWS, THREADS>(from + c * 64, ld, n);
	}

	// rows describes the rows from row, for sums over columns ("K-major"): the stride is
	// the distance between groups of eight rows; the leading distance is unused. step is
	// the offset of the k-th 16 columns.
	__device__ u64 rows(int row) const { return descriptor(p + row * 64, 16, EIGHT_ROWS); }
	__device__ static u64 step(int k) { return (k / 4 * PANEL + k % 4 * 32) >> 4; }

	// read loads 16 rows of a warp, from row, into registers, as A.
	__device__ void read(u32 (&a)[D / 16][4], int row) const {
		const int lane = threadIdx.x % 32;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
			ldmatrix4(a[k], BF16Tile<64>{p + k / 4 * ROWS * 64}.at(row + lane % 16, lane / 16) ^ k % 4 * 32);
	}

	// columns describes all columns, for sums over rows ("MN-major"): the leading
	// distance is that between groups of 64 columns, the stride that between groups of
	// eight rows. down is the offset of the k-th 16 rows.
	__device__ u64 columns() const { return descriptor(p, PANEL, EIGHT_ROWS); }
	__device__ static u64 down(int k) { return k * 2 * EIGHT_ROWS >> 4; }
};

// fence_proxy makes this thread's completed copies visible to wgmma.
__device__ inline void fence_proxy() {
#ifdef __CUDA_ARCH__
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
	octet_host::publish_copies();
#endif
}

__device__ inline void wgmma_fence() {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
	octet_host::fence_wgmmas();
#endif
}

__device__ inline void wgmma_commit() {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
	octet_host::commit_wgmmas();
#endif
}

// hold keeps the compiler from using accumulators before this point: it sees no
// dependency on the wait.
template <int N> __device__ inline void hold(float (&c)[1][N][4]) {
#ifdef __CUDA_ARCH__
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			asm volatile("" : "+f"(c[0][n][i])::"memory");
#endif
}

// wgmma_wait waits until at most PENDING of the latest committed groups are pending. c
// are the accumulators that are used next.
template <int PENDING, class... Sums> __device__ inline void wgmma_wait(Sums &...c) {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#else
	octet_host::wait_wgmmas(PENDING);
#endif
	(hold(c), ...);
}

// settle forces non-negative values to be computed before this point: ptxas sees no
// dependency on the following wait, and would move the computation, which should overlap
// with wgmma, after it.
template <int N> __device__ inline void settle(const float *x) {
#ifdef __CUDA_ARCH__
	u32 bits = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		bits |= __float_as_uint(x[i]);
	asm volatile("{ .reg .pred never; setp.lt.s32 never, %0, 0; @never nanosleep.u32 0; }" ::"r"(bits) : "memory");
#endif
}

#define SUMS4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS32(c, n) SUMS4(c, n), SUMS4(c, n + 1), SUMS4(c, n + 2), SUMS4(c, n + 3), SUMS4(c, n + 4), SUMS4(c, n + 5), SUMS4(c, n + 6), SUMS4(c, n + 7)
#define LIST32 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
	"%24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64 LIST32 ", " \
	"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
	"%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// multiply starts c = A·Bᵀ, or c += A·Bᵀ, for descriptors of 64 rows of A and N rows of
// B.
template <int N> __device__ inline void multiply(float (*c)[4], u64 a, u64 b, bool add) {
	static_assert(N == 64 || N == 128, "the sizes that kernels use");
#ifdef __CUDA_ARCH__
	if constexpr (N == 64)
		asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0;"
			"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LIST32 "}, %32, %33, add, 1, 1, 0, 0; }"
			: SUMS32(c, 0) : "l"(a), "l"(b), "r"((int)add));
	else
		asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0;"
			"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST64 "}, %64, %65, add, 1, 1, 0, 0; }"
			: SUMS32(c, 0), SUMS32(c, 8) : "l"(a), "l"(b), "r"((int)add));
#else
	octet_host::multiply(c[0], N, {a, b, nullptr, add, false});
#endif
}

// multiply starts the same with A in registers. B is N rows of 16 columns, or with
// BY_COLUMNS 16 rows of N columns.
template <int N, bool BY_COLUMNS> __device__ inline void multiply(float (*c)[4], const u32 a[4], u64 b, bool add) {
	static_assert(N == 64 || N == 128, "the sizes that kernels use");
#ifdef __CUDA_ARCH__
	if constexpr (N == 64)
		asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0;"
			"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LIST32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38; }"
			: SUMS32(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)BY_COLUMNS));
	else
		asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0;"
			"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST64 "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70; }"
			: SUMS32(c, 0), SUMS32(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)BY_COLUMNS));
#else
	octet_host::multiply(c[0], N, {0, b, a, add, BY_COLUMNS});
#endif
}

#undef SUMS4
#undef SUMS32
#undef LIST32
#undef LIST64

// begin_rows starts c = X·Yᵀ for 64 rows of X, from row, and all N rows of Y.
template <int D, int M, int N> __device__ inline void begin_rows(float (&c)[1][N / 8][4], const PanelTile<D, M> &x, int row, const PanelTile<D, N> &y) {
	const u64 a = x.rows(row), b = y.rows(0);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		multiply<N>(c[0], a + x.step(k), b + y.step(k), k > 0);
}

// begin_rows starts the same for the warp's rows of X in registers.
template <int D, int N> __device__ inline void begin_rows(float (&c)[1][N / 8][4], const u32 (&x)[D / 16][4], const PanelTile<D, N> &y) {
	const u64 b = y.rows(0);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		multiply<N, false>(c[0], x[k], b + y.step(k), k > 0);
}

// begin_weights starts c += W·Y for packed weights of K columns, and K rows of Y.
template <int D, int K> __device__ inline void begin_weights(float (&c)[1][D / 8][4], const u32 (&w)[K / 16][4], const PanelTile<D, K> &y) {
	const u64 b = y.columns();
#pragma unroll
	for (int k = 0; k < K / 16; k++)
		multiply<D, true>(c[0], w[k], b + y.down(k), true);
}

// pack rounds weights to BF16, as the A of the next GEMM.
template <int K> __device__ inline void pack(u32 (&a)[K][4], const float (&w)[1][2 * K][4]) {
#pragma unroll
	for (int k = 0; k < K; k++)
		pack_weights(a[k], w[0], k);
}
