// swiglu, swiglu_by_row, swiglu_grad: by tiles (tile.cuh). swiglu_by_row, for SwiGLU with
// a TokenScale, takes whole rows. swiglu_amax computes column maxima by strips
// (strips.cuh), swiglu_amax_end reduces the strips.
#include "smooth.cuh"
#include "strips.cuh"

// The approximate instructions are accurate to 2 ulp. Values that they flush to zero do
// not matter in 1 + e⁻ˣ, or are a sigmoid below 2^-126.
__device__ inline float sigmoid(float x) {
#ifdef __CUDA_ARCH__
	float e, s;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504088896341f));
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
	return s;
#else
	return 1.0f / (1.0f + expf(-x));
#endif
}

// gated returns up ⊙ silu(gate). Kernels that compute its maxima must get the same bits
// as the casts, so nothing may be fused into its multiplications.
__device__ inline void gated(const float up[8], const float gate[8], float v[8]) {
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __fmul_rn(up[i], __fmul_rn(gate[i], sigmoid(gate[i])));
}

// gated_tile is gated of a tile; x are up and gate.
template <bool PLAIN> __device__ inline void gated_tile(const Tile &t, const Operands<2> &x, float v[TILE_EACH][8]) {
	t.each_row<PLAIN>(x, [&](int r, const float x[2][8]) { gated(x[0], x[1], v[r]); });
}

struct SwiGLUArgs {
	Tensor up, gate, inv_c, token_scale;
	Casts out;
	i64 rows, cols, scale_of_up, exact;
	void *scratch;
};

template <bool PLAIN> __device__ inline void swiglu_tile(const SwiGLUArgs &a, const Operands<2> &x, Tile &t, Result &out) {
	float v[TILE_EACH][8];
	gated_tile<PLAIN>(t, x, v);
	scale_tile(t, Tensor{}, a.inv_c, v);
	out.store<PLAIN>(t, v);
}

KERNEL(swiglu, SwiGLUArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	const Operands<2> x({&a.up, &a.gate});
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next())
		if (x.plain && out.vectors && t.full())
			swiglu_tile<true>(a, x, t, out);
		else
			swiglu_tile<false>(a, x, t, out);
	out.end();
}

KERNEL(swiglu_by_row, SwiGLUArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	const Operands<2> x({&a.up, &a.gate});
	Tile t(a.rows, a.cols, a.cols);
	float inv[TILE_EACH];
	u32 top[TILE_EACH] = {};
	for (; t.more(); t.next()) {
		float v[TILE_EACH][8];
		if (a.scale_of_up) {
			t.each_row(Operands<1>({&a.up}), [&](int r, const float x[1][8]) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					v[r][i] = x[0][i];
			});
		} else {
			gated_tile<false>(t, x, v);
		}
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
			top[r] = top8(top[r], v[r]);
	}
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++) {
		const float r_scale = smoothing_scale(__uint_as_float(warp_max(top[r])), 0, a.exact);
		inv[r] = __fdiv_rn(1.0f, r_scale);
		if (threadIdx.x % 32 == 0 && t.row + r < a.rows)
			a.token_scale.out()[t.row + r] = r_scale;
	}
	for (t.back(); t.left(); t.back()) {
		float v[TILE_EACH][8];
		gated_tile<false>(t, x, v);
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = __fmul_rn(v[r][i], inv[r]);
		out.store(t, v);
	}
	out.end();
}

struct SwiGLUGradArgs {
	Tensor dout, up, gate, inv_c, token_scale;
	Casts dup, dgate;
	i64 rows, cols;
	void *scratch;
};

template <bool PLAIN> __device__ inline void swiglu_grad_tile(const SwiGLUGradArgs &a, const Operands<3> &x, Tile &t, Result &dup, Result &dgate) {
	float v[TILE_EACH][8], w[TILE_EACH][8], inv[8], inv_row[TILE_EACH];
	if (a.inv_c.p)
		values8(a.inv_c, t.fetch_row(a.inv_c), inv);
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++)
		inv_row[r] = a.token_scale.p && t.n(r) > 0 ? __fdiv_rn(1.0f, a.token_scale.f32()[t.row + r]) : 1.0f;
	t.each_row<PLAIN>(x, [&](int r, const float x[3][8]) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			// da is the gradient of up ⊙ silu(gate).
			const float da = (a.inv_c.p ? x[0][i] * inv[i] : x[0][i]) * inv_row[r];
			const float g = x[2][i], s = sigmoid(g);
			v[r][i] = da * (g * s);
			w[r][i] = da * x[1][i] * (s * (1.0f + g * (1.0f - s)));
		}
	});
	dup.store<PLAIN>(t, v);
	dgate.store<PLAIN>(t, w);
}

KERNEL(swiglu_grad, SwiGLUGradArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared[2];
	Result dup(a.dup, a.cols, shared[0]), dgate(a.dgate, a.cols, shared[1]);
	const Operands<3> x({&a.dout, &a.up, &a.gate});
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next())
		if (x.plain && dup.vectors && dgate.vectors && t.full())
			swiglu_grad_tile<true>(a, x, t, dup, dgate);
		else
			swiglu_grad_tile<false>(a, x, t, dup, dgate);
	dup.end();
	dgate.end();
}

struct SwiGLUAmaxArgs {
	Tensor up, gate, out, seen, up_out, up_seen;
	i64 rows, cols;
	float *scratch; // twice [strips, cols]: maxima of h, and of up
};

KERNEL(swiglu_amax, SwiGLUAmaxArgs, TILE_THREADS, 2) {
	Columns products, ups;
	each_strip_row<2>({&a.up, &a.gate}, a.rows, a.cols, [&](const float x[2][8]) {
		float v[8];
		if (a.up_out.p)
			ups.fold(x[0]);
		gated(x[0], x[1], v);
		products.fold(v);
	});
	products.write(a.scratch, a.cols);
	if (a.up_out.p)
		ups.write(a.scratch + gridDim.x * a.cols, a.cols);
}

KERNEL(swiglu_amax_end, SwiGLUAmaxArgs, FLAT_THREADS, 1) {
	const i64 col = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (col >= a.cols)
		return;
	const float *strips = a.scratch;
	const Tensor *to[2][2] = {{&a.out, &a.seen}, {&a.up_out, &a.up_seen}};
	for (int i = 0; i < 2; i++) {
		if (!to[i][0]->p)
			continue;
		const u32 top = strips_max(strips, a.rows, a.cols, col);
		to[i][0]->out()[col] = __uint_as_float(top);
		if (to[i][1]->p) {
			float *seen = to[i][1]->out() + col;
			*seen = __uint_as_float(max(magnitude(*seen), top));
		}
		strips += (a.rows + STRIP_ROWS - 1) / STRIP_ROWS * a.cols;
	}
}
