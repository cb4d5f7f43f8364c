// BF16 tensor cores of Hopper by wgmma: four warps, a warpgroup, multiply 64 rows
// together and share what they are multiplied by, which is read from shared memory
// without a load of its own. The instruction is sm_90a's alone, not of what came
// later. What mma.sync costs here is ldmatrix: a warp reads for itself alone.
//
// The rules below are those of the PTX ISA, section 9.7.15 (asynchronous warpgroup
// level matrix instructions); of the descriptor's fields and the layouts CUTLASS
// (mma_sm90_desc.hpp, and the table before make_gmma_desc in
// mma_traits_sm90_gmma.hpp) and ThunderKittens (wgmma/base.cuh) say the same.
//
//   - Registers of sums and of A that something else has touched need a
//     wgmma.fence before a product takes them. They are the product's until
//     wgmma.wait_group says that its group is done. ptxas before 13.3 may give those
//     of A away too soon (Triton's issue 9433); in its code for these kernels, of NVRTC
//     12.0 to 13.0, nothing writes to them, nor to sums, before the wait.
//   - Products read shared memory in the asynchronous proxy. What threads wrote
//     there, with cp.async too, they have to show to it by fence.proxy.async, each
//     its own, before the barrier. The end of a product is such a fence.
//   - A thread's sums c[N / 8][4] lie as those of mma.sync: warp w of the group has
//     rows 16·w to 16·w + 15. So do its parts of A in registers.
//
// On the host csrc/standin/cuda_async.h does a product by its descriptors, at the
// last moment that the wait allows.
#pragma once
#include "mma.cuh"

const int GROUP_ROWS = 64; // rows of a warpgroup
const int PATTERN = 1024;  // bytes after which the swizzle repeats

// group_row is the first row of this thread's warpgroup. From one lane, it is the same
// for the warp as the compiler sees it, too, and so are descriptors, which lie in
// registers of the warp.
__device__ inline int group_row() { return __shfl_sync(ALL, (int)(threadIdx.x / 128 * GROUP_ROWS), 0); }

// begin_at_pattern rounds up to where the swizzle's pattern begins.
__device__ inline bf16 *begin_at_pattern(bf16 *p) {
#ifdef __CUDA_ARCH__
	const u32 at = address_of(p);
#else
	const u32 at = octet_host::shared_offset(p);
#endif
	return p + (PATTERN - at % PATTERN) % PATTERN / 2;
}

// descriptor is that of a matrix with the 128-byte swizzle: in bits 0-13 its
// address, in 16-29 and 32-45 two distances, all in units of 16 bytes, in 62-63 the
// kind of swizzle, 1. The swizzle is a function of the address: bits 4-6 in exclusive
// or with bits 7-9. That of a BF16Tile<64> is the same if the tile begins at a
// multiple of 1,024 bytes; then bits 49-51, the base offset, are 0.
__device__ inline u64 descriptor(const bf16 *p, u32 leading, u32 stride) {
#ifdef __CUDA_ARCH__
	const u32 at = address_of(p);
#else
	const u32 at = octet_host::shared_offset(p);
#endif
	return (u64)(at >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// PanelTile is a matrix of ROWS rows and D columns in shared memory, by panels of
// 64 columns, 128 bytes, each of which is a BF16Tile.
template <int D, int ROWS> struct PanelTile {
	bf16 *p;

	static const int SIZE = ROWS * D;
	static const u32 PANEL = ROWS * 128, EIGHT_ROWS = 1024; // bytes

	template <int THREADS> __device__ void load(const bf16 *from, i64 ld, int n) const {
#pragma unroll
		for (int c = 0; c < D / 64; c++)
			BF16Tile<64>{p + c * ROWS * 64}.template load<ROWS, THREADS>(from + c * 64, ld, n);
	}

	// rows describes the rows from row on, whose columns a product sums over
	// ("K-major"): the stride is from eight rows to the next eight, the leading
	// distance is not used. step is what the k-th 16 columns add to it.
	__device__ u64 rows(int row) const { return descriptor(p + row * 64, 16, EIGHT_ROWS); }
	__device__ static u64 step(int k) { return (k / 4 * PANEL + k % 4 * 32) >> 4; }

	// read takes 16 rows of a warp, from row on, into registers, as A.
	__device__ void read(u32 (&a)[D / 16][4], int row) const {
		const int lane = threadIdx.x % 32;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
			ldmatrix4(a[k], BF16Tile<64>{p + k / 4 * ROWS * 64}.at(row + lane % 16, lane / 16) ^ k % 4 * 32);
	}

	// columns describes all columns, and rows that a product sums over ("MN-major"):
	// the leading distance is from 64 columns to the next 64, the stride from eight
	// rows to the next eight. down is what the k-th 16 rows add to it.
	__device__ u64 columns() const { return descriptor(p, PANEL, EIGHT_ROWS); }
	__device__ static u64 down(int k) { return k * 2 * EIGHT_ROWS >> 4; }
};

// show makes this thread's finished copies visible to products.
__device__ inline void show() {
#ifdef __CUDA_ARCH__
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
	octet_host::show();
#endif
}

__device__ inline void begin_products() {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
	octet_host::begin_products();
#endif
}

__device__ inline void commit_products() {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
	octet_host::commit_products();
#endif
}

// hold keeps the compiler from using sums before this point: to it the wait is an
// instruction that has nothing to do with them.
template <int N> __device__ inline void hold(float (&c)[1][N][4]) {
#ifdef __CUDA_ARCH__
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			asm volatile("" : "+f"(c[0][n][i])::"memory");
#endif
}

// wait_products waits until at most PENDING committed groups, the last ones, are
// under way. c are the sums that are used next.
template <int PENDING, class... Sums> __device__ inline void wait_products(Sums &...c) {
#ifdef __CUDA_ARCH__
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#else
	octet_host::wait_products(PENDING);
#endif
	(hold(c), ...);
}

// settle has numbers that are not negative be there at this point: to the
// assembler, too, the wait that follows has nothing to do with them, and it would put
// off behind it what is to be worked out while the products run.
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

// multiply begins c = A·Bᵀ, or c += A·Bᵀ, for descriptors of 64 rows A and N rows B.
template <int N> __device__ inline void multiply(float (*c)[4], u64 a, u64 b, bool add) {
	static_assert(N == 64 || N == 128, "the products that kernels want");
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

// multiply begins the same for A in registers. B is N rows of 16 columns, or, by
// columns, 16 rows of N.
template <int N, bool BY_COLUMNS> __device__ inline void multiply(float (*c)[4], const u32 a[4], u64 b, bool add) {
	static_assert(N == 64 || N == 128, "the products that kernels want");
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

// begin_rows begins c = X·Yᵀ for 64 rows of X from row on, and all N of Y.
template <int D, int M, int N> __device__ inline void begin_rows(float (&c)[1][N / 8][4], const PanelTile<D, M> &x, int row, const PanelTile<D, N> &y) {
	const u64 a = x.rows(row), b = y.rows(0);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		multiply<N>(c[0], a + x.step(k), b + y.step(k), k > 0);
}

// begin_rows begins the same for the warp's rows of X in registers.
template <int D, int N> __device__ inline void begin_rows(float (&c)[1][N / 8][4], const u32 (&x)[D / 16][4], const PanelTile<D, N> &y) {
	const u64 b = y.rows(0);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		multiply<N, false>(c[0], x[k], b + y.step(k), k > 0);
}

// begin_weights begins c += W·Y for weights of K columns, packed, and K rows of Y.
template <int D, int K> __device__ inline void begin_weights(float (&c)[1][D / 8][4], const u32 (&w)[K / 16][4], const PanelTile<D, K> &y) {
	const u64 b = y.columns();
#pragma unroll
	for (int k = 0; k < K / 16; k++)
		multiply<D, true>(c[0], w[k], b + y.down(k), true);
}

// pack rounds weights to BF16, as a product's A.
template <int K> __device__ inline void pack(u32 (&a)[K][4], const float (&w)[1][2 * K][4]) {
#pragma unroll
	for (int k = 0; k < K; k++)
		pack_weights(a[k], w[0], k);
}
