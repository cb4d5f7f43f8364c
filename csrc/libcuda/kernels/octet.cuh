// Shared by all kernels: argument structures, block and warp reductions, scales.
// formats.cuh has the storage formats.
//
// No file of the toolkit is included, so that NVRTC needs none. On the host
// (csrc/standin/cuda_host.h) the same code runs, with a portable version of each
// instruction under __CUDA_ARCH__.
#pragma once

// Arguments are in constant memory, where dynamic indexing costs nothing. cuda_host.h has
// its own macro.
#ifndef KERNEL
#define KERNEL(name, Args, threads, blocks) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a)
// The dynamic shared memory of a launch.
extern __shared__ __align__(256) unsigned char dynamic_shared[];
#define DYNAMIC_SHARED(T, name) T *const name = (T *)dynamic_shared
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef double f64;

enum Format { F32, BF16, F16, E4M3, E4M3IEEE, E5M2, I32, E8M0, E2M1, INT8 };
enum Flag { STOCHASTIC = 1, TOKENS = 2, TRANSPOSE = 4, POW2 = 8, SCALE_E8M0 = 16, SCALE_E4M3 = 32, SCALE_DOWN = 64 };

const int FLAT_THREADS = 256; // block size of kernels without tiles
const int ONE_THREADS = 1024; // of kernels with one block

struct Tensor {
	void *p;
	i64 ld, format;
	const float *scale; // scale_inv; null is 1

	__device__ const float *f32() const { return (const float *)p; }
	__device__ float *out() const { return (float *)p; }
	__device__ const int *i32() const { return (const int *)p; }
};

struct Cast {
	void *out;
	i64 ld, format;
	const float *scale; // null is 1; with block scales that of the tensor beside them
	float *amax;        // null: no amax
	i64 flags;
	u64 name_key;
	void *scale_inv; // of block scales
	i64 block_rows, block_cols;
	f64 limit;
	u64 precision; // 0, or the format that values are rounded to: see reduced
};

// by_block reports whether a cast has block scales.
__device__ inline bool by_block(const Cast &c) { return c.block_rows || c.block_cols; }

const int MAX_CASTS = 4;

struct Casts {
	i64 n;
	const int *control;
	Cast cast[MAX_CASTS];
};

// ---- step.control (backend.Control): 32-bit words, 64-bit values low half first ----

__device__ inline u64 control_word(const int *control, int at) {
	return control ? (u64)(u32)control[at] | (u64)(u32)control[at + 1] << 32 : 0;
}
__device__ inline u64 control_seed(const int *c) { return control_word(c, 0); }
__device__ inline u64 control_step(const int *c) { return control_word(c, 2); }
__device__ inline u64 control_token(const int *c) { return control_word(c, 4); }
__device__ inline u64 control_rank(const int *c) { return (u64)(u32)c[9]; }
__device__ inline float control_lr(const int *c) { return __int_as_float(c[6]); }
__device__ inline float control_inv_tokens(const int *c) { return c ? __int_as_float(c[7]) : 0.0f; }
__device__ inline i64 control_position(const int *c) { return c ? c[8] : 0; }

// ---- ranks that have the parts of a tensor ----

// Group is backend.Group: size ranks, stride apart. Size 0 is all ranks.
struct Group {
	i64 size, stride;

	// index returns the place of a rank in its group.
	__device__ u64 index(u64 rank) const { return size ? (u32)rank / (u32)stride % (u32)size : rank; }
};

// Vocabulary is the n elements of a vocabulary that this rank has: a part if there is a split,
// else all of them.
struct Vocabulary {
	i64 first, n, all; // its first element in the whole, and the size of the whole

	__device__ Vocabulary(const Group &split, const int *control, i64 n)
		: first(split.size ? (i64)split.index(control_rank(control)) * n : 0), n(n), all(split.size ? split.size * n : n) {}
	// valid returns how many elements are among the first end of the whole.
	__device__ i64 valid(i64 end) const { return max(0ll, min(n, end - first)); }
};

// ---- magnitudes ----

// The bits of |x| are ordered like magnitudes, with NaN above infinity (fp8.MaxAmax):
// their maximum keeps NaN and does not depend on the order.
__device__ inline u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ inline bool finite(float x) { return magnitude(x) < 0x7f800000u; }

// top8 returns the maximum of top and eight magnitudes.
__device__ inline u32 top8(u32 top, const float v[8]) {
#pragma unroll
	for (int i = 0; i < 8; i += 2)
		top = max(max(top, magnitude(v[i])), magnitude(v[i + 1]));
	return top;
}

// Peak is a running maximum of magnitudes, one instruction per value: high is the maximum
// as unsigned bits (of negative values if there are any), positive as signed bits (of
// positive values).
struct Peak {
	u32 high;
	int positive;

	__device__ Peak() : high(0), positive(0) {}
	__device__ void fold(const float v[8]) {
#pragma unroll
		for (int i = 0; i < 8; i += 2) {
			high = max(max(high, __float_as_uint(v[i])), __float_as_uint(v[i + 1]));
			positive = max(max(positive, (int)__float_as_uint(v[i])), (int)__float_as_uint(v[i + 1]));
		}
	}
	__device__ void fold(u32 magnitude) { positive = max(positive, (int)magnitude); }
	__device__ u32 top() const { return max(high & 0x7fffffffu, (u32)positive); }
};

// fold_amax computes *amax = max(*amax, top) on the bits of magnitudes.
__device__ inline void fold_amax(float *amax, u32 top) { atomicMax((u32 *)amax, top); }

// ---- over the threads of a warp and of a block ----

const u32 ALL = 0xffffffffu;

// Butterflies add in a fixed order, and all lanes get the same bits.
template <class T> __device__ inline T warp_sum(T x) {
#pragma unroll
	for (int i = 16; i > 0; i /= 2)
		x += __shfl_xor_sync(ALL, x, i);
	return x;
}

__device__ inline u32 warp_max(u32 x) {
#pragma unroll
	for (int i = 16; i > 0; i /= 2)
		x = max(x, __shfl_xor_sync(ALL, x, i));
	return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
	for (int i = 16; i > 0; i /= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL, x, i));
	return x;
}

struct Sum {
	template <class T> __device__ T operator()(T x) const { return warp_sum(x); }
};

struct Max {
	template <class T> __device__ T operator()(T x) const { return warp_max(x); }
};

// over_block reduces one value of each thread, first over warps, then over their results;
// all threads get the result. neutral is the identity. Every thread must call it.
template <class Over, class T> __device__ inline T over_block(T x, T neutral) {
	__shared__ T partial[32];
	const Over over;
	x = over(x);
	__syncthreads(); // an earlier call may still be reading
	if (threadIdx.x % 32 == 0)
		partial[threadIdx.x / 32] = x;
	__syncthreads();
	x = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : neutral;
	return over(x);
}

template <class T> __device__ inline T block_sum(T x) { return over_block<Sum, T>(x, T(0)); }
__device__ inline u32 block_max(u32 x) { return over_block<Max, u32>(x, 0u); }

// ---- tables of tensors ----

// index_of returns the index of a chunk's tensor: the last one whose first chunk is not
// after it.
template <class T> __device__ inline i64 index_of(const T *list, i64 n, i64 chunk) {
	i64 low = 0;
	while (n > 1) {
		const i64 half = n / 2;
		if (list[low + half].first <= chunk)
			low += half, n -= half;
		else
			n = half;
	}
	return low;
}

// ---- scales: fp8/scale.go is the definition ----

struct Scale {
	float scale;
	bool ok; // the amax is positive and finite
};

__device__ inline Scale scale_for(float amax, float limit, bool pow2) {
	if (!(amax > 0.0f && finite(amax)))
		return {1.0f, false};
	float s = __fdiv_rn(limit, amax);
	if (__fmul_rn(s, amax) > limit) // the quotient was rounded up
		s = __uint_as_float(__float_as_uint(s) - 1);
	if (pow2)
		s = __uint_as_float(__float_as_uint(s) & 0x7f800000u);
	return {fminf(fmaxf(s, 0x1p-126f), 0x1p126f), true};
}

// mx_scale returns the E8M0 code of the scale of a block with this amax, for a
// format with maximum limit, rounded up or down (fp8.MXScale).
__device__ inline u32 mx_scale(float amax, float limit, bool up) {
	const u32 a = magnitude(amax), top = __float_as_uint(limit);
	if (a >= 0x7f800000u)
		return a > 0x7f800000u ? 0xff : 0xfe;
	if (a == 0)
		return 0;
	const int code = (int)(a >> 23) - (int)(top >> 23) + 127 + (up && (a & 0x7fffffu) > (top & 0x7fffffu));
	return (u32)min(max(code, 0), 0xfe);
}

// e8m0_value returns 2^(code-127), NaN for 0xff.
__device__ inline float e8m0_value(u32 code) {
	return __uint_as_float(code == 0xff ? 0x7fc00000u : code ? code << 23 : 0x400000u);
}

// largest_of returns the maximum finite value of a format that needs a scale.
__device__ inline float largest_of(i64 format) {
	return format == F16 ? 65504.0f : format == E4M3 ? 448.0f : format == E4M3IEEE ? 240.0f : format == E2M1 ? 6.0f : 57344.0f;
}
