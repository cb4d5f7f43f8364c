// BF16 tensor cores by mma.sync, on every architecture from sm_80, with shared-memory
// tiles that cp.async fills and ldmatrix reads. Element positions are named as in the PTX
// ISA's figures for m16n8k16: g = lane / 4, t = lane % 4.
//
// On the host each function emulates the instruction over the fibers of a warp.
#pragma once
#include "formats.cuh"

typedef u16 bf16; // a BF16 code

__device__ inline float from_bf16(u32 code) { return __uint_as_float(code << 16); }

// fast_exp2 is the hardware instruction: 2 ulp, 2^-inf is 0.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#else
	return exp2f(x);
#endif
}

// Address is a byte address in shared memory; on the device as instructions take it.
#ifdef __CUDA_ARCH__
typedef u32 Address;
__device__ inline Address address_of(const void *p) { return (Address)__cvta_generic_to_shared(p); }
#else
typedef u64 Address;
__device__ inline Address address_of(const void *p) { return (Address)p; }
#endif

// BF16Tile is a matrix of D columns in shared memory. Rows are contiguous; their 16-byte
// chunks are permuted among eight by the low three bits of the row (swizzle), so that the
// eight rows that ldmatrix reads at a time, or that are written at a time, lie in
// different banks. A tile begins at a multiple of a row, so chunk i + 2n of a row, i
// being 0 or 1, is at the address of chunk i xor n·32: a thread keeps one address per
// tile.
template <int D> struct BF16Tile {
	bf16 *p;

	__device__ bf16 *chunk(int row, int chunk) const { return p + row * D + (chunk ^ (row & 7)) * 8; }
	__device__ Address at(int row, int i) const { return address_of(chunk(row, i)); }

	// load starts to copy ROWS rows of a matrix; rows from n become zero. The copy is
	// complete after commit and wait_for, and visible to other threads after a barrier. A
	// thread's column and the low three bits of its row are fixed, so the permutation is
	// computed once.
	template <int ROWS, int THREADS> __device__ void load(const bf16 *from, i64 ld, int n) const {
		const int across = D / 8, step = THREADS / across;
		static_assert(step % 8 == 0 && ROWS % step == 0, "the rows of a thread must agree in their last three bits");
		const int row = threadIdx.x / across, at = threadIdx.x % across;
		bf16 *to = chunk(row, at);
		const bf16 *source = from + row * ld + at * 8;
#pragma unroll 1
		for (int i = 0; i < ROWS; i += step, source += step * ld)
			copy16(to + i * D, row + i < n ? source : from, row + i < n);
	}

	__device__ static void copy16(bf16 *to, const bf16 *from, bool inside) {
#ifdef __CUDA_ARCH__
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
#else
		*(uint4 *)to = inside ? __ldg((const uint4 *)from) : uint4{0, 0, 0, 0};
		octet_host::copied(to);
#endif
	}
};

__device__ inline void commit() {
#ifdef __CUDA_ARCH__
	asm volatile("cp.async.commit_group;" ::: "memory");
#else
	octet_host::commit_copies();
#endif
}

// wait_for waits until at most PENDING of this thread's latest committed copies are
// pending.
template <int PENDING> __device__ inline void wait_for() {
#ifdef __CUDA_ARCH__
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#else
	octet_host::wait_copies(PENDING);
#endif
}

// ldmatrix4 loads four 8 × 8 matrices, whose row addresses are in lanes 0-7, 8-15, 16-23
// and 24-31: r[i] has elements (g, 2t) and (g, 2t+1) of the i-th matrix; ldmatrix4t those
// of its transpose.
template <bool TRANSPOSED> __device__ inline void ldmatrix4_of(u32 r[4], Address row) {
#ifdef __CUDA_ARCH__
	if (TRANSPOSED)
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
			: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
	else
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
			: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
#else
	if (row % 16)
		octet_host::fail("ldmatrix of a row that is not at a multiple of 16 bytes");
	octet_host::send(row);
	const unsigned set = octet_host::sync_warp();
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int i = 0; i < 4; i++) {
		u32 pair[2];
		for (int e = 0; e < 2; e++) {
			const int lane = i * 8 + (TRANSPOSED ? 2 * t + e : g);
			pair[e] = ((const bf16 *)octet_host::receive<Address>(set, lane))[TRANSPOSED ? g : 2 * t + e];
		}
		r[i] = pair[0] | pair[1] << 16;
	}
#endif
}
__device__ inline void ldmatrix4(u32 r[4], Address row) { ldmatrix4_of<false>(r, row); }
__device__ inline void ldmatrix4t(u32 r[4], Address row) { ldmatrix4_of<true>(r, row); }

// mma computes c += A·B for A of 16 × 16, B of 16 × 8. c[0] and c[1] are elements (g, 2t)
// and (g, 2t+1), c[2] and c[3] those eight rows below.
__device__ inline void mma(float c[4], const u32 a[4], const u32 *b) {
#ifdef __CUDA_ARCH__
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	struct Operands { u32 a[4], b[2]; };
	octet_host::send(Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
	const unsigned set = octet_host::sync_warp();
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int k = 0; k < 4; k++) { // lanes of a row of A and of a column of B
		const Operands left = octet_host::receive<Operands>(set, g * 4 + k);
		for (int e = 0; e < 2; e++) {
			const Operands right = octet_host::receive<Operands>(set, (2 * t + e) * 4 + k);
			for (int i = 0; i < 2; i++)
				for (int half = 0; half < 2; half++) {
					const float b0 = from_bf16(right.b[half] & 0xffffu), b1 = from_bf16(right.b[half] >> 16);
					const u32 row = left.a[i + 2 * half];
					c[2 * i + e] += from_bf16(row & 0xffffu) * b0 + from_bf16(row >> 16) * b1;
				}
		}
	}
#endif
}

// GEMMs of tiles. A warp has MT times 16 rows of the result, in accumulators c[MT][N /
// 8][4]. The matrices of an ldmatrix are ordered so that it returns one A operand, or two
// adjacent B operands, r[0..1] and r[2..3].

// multiply_rows computes c += X·Yᵀ for MT·16 rows of X, from row, and N rows of Y.
template <int D, int MT, int N> __device__ inline void multiply_rows(float (*c)[N / 8][4], const BF16Tile<D> &x, int row, const BF16Tile<D> &y) {
	const int lane = threadIdx.x % 32;
	const Address xs = x.at(row + lane % 16, lane / 16), ys = y.at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		u32 a[MT][4];
#pragma unroll
		for (int m = 0; m < MT; m++)
			ldmatrix4(a[m], (xs ^ k * 32) + m * 16 * D * 2);
#pragma unroll
		for (int n = 0; n < N / 16; n++) {
			u32 b[4];
			ldmatrix4(b, (ys ^ k * 32) + n * 16 * D * 2);
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][2 * n], a[m], b);
				mma(c[m][2 * n + 1], a[m], b + 2);
			}
		}
	}
}

// pack_weights rounds the k-th 16 columns of an accumulator to BF16, as the A of the next
// GEMM.
__device__ inline void pack_weights(u32 a[4], const float (*w)[4], int k) {
#pragma unroll
	for (int i = 0; i < 4; i++)
		a[i] = pair2<BF16>(w[2 * k + i / 2][i % 2 * 2], w[2 * k + i / 2][i % 2 * 2 + 1]);
}

// multiply_weights computes c += W·Y for weights w[MT][K / 8][4] in accumulator
// registers, rounded to BF16, and K rows of Y.
template <int D, int MT, int K> __device__ inline void multiply_weights(float (*c)[D / 8][4], const float (*w)[K / 8][4], const BF16Tile<D> &y) {
	const int lane = threadIdx.x % 32;
	const Address ys = y.at(lane % 16, lane / 16);
#pragma unroll
	for (int k = 0; k < K / 16; k++) {
		u32 a[MT][4];
#pragma unroll
		for (int m = 0; m < MT; m++)
			pack_weights(a[m], w[m], k);
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			u32 b[4];
			ldmatrix4t(b, (ys ^ n * 32) + k * 16 * D * 2);
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][2 * n], a[m], b);
				mma(c[m][2 * n + 1], a[m], b + 2);
			}
		}
	}
}

template <int MT, int N> __device__ inline void clear(float (*c)[N][4]) {
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				c[m][n][i] = 0.0f;
}
