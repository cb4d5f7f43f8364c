// swiglu, swiglu_by_row, swiglu_grad: kernels by tiles (tile.cuh). swiglu_by_row,
// of SwiGLU with a RowFactor, takes whole rows. swiglu_amax finds the maxima of
// the columns of strips of rows, swiglu_amax_end those of the strips.
#include "smooth.cuh"
#include "tile.cuh"

// The approximate instructions are good to two units in the last place; where
// the exponential overflows or the quotient is flushed, the sigmoid is 0 and
// below 2^-126 anyway.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// gated is up ⊙ silu(gate). Whatever looks for its maxima must see the very
// values that are cast, so nothing may be fused into its products.
__device__ inline void gated(const float up[8], const float gate[8], float v[8]) {
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __fmul_rn(up[i], __fmul_rn(gate[i], sigmoid(gate[i])));
}

// load_both reads up and gate.
__device__ inline void load_both(const Tensor &x, const Tensor &y, i64 row, i64 col, int n, float v[8], float w[8]) {
	const Eight first = fetch8(x, row, col, n), second = fetch8(y, row, col, n);
	values8(x, first, v);
	values8(y, second, w);
}

struct SwiGLUArgs {
	Tensor up, gate, inv_c, row_factor;
	Casts out;
	i64 rows, cols, factor_of_up, exact;
	void *scratch;
};

KERNEL(swiglu, SwiGLUArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float up[8], v[8];
		load_both(a.up, a.gate, t.row, t.col, t.n, up, v);
		gated(up, v, v);
		if (a.inv_c.p) {
			load8(a.inv_c, 0, t.col, t.n, up);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = __fmul_rn(v[i], up[i]);
		}
		out.store(t, v);
	}
	out.end();
}

KERNEL(swiglu_by_row, SwiGLUArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	Tile t(a.rows, a.cols, a.cols);
	u32 top = 0;
	for (; t.more(); t.next()) {
		float up[8], v[8];
		load8(a.up, t.row, t.col, t.n, up);
		if (!a.factor_of_up) {
			load8(a.gate, t.row, t.col, t.n, v);
			gated(up, v, up);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			top = max(top, magnitude(up[i]));
	}
	const float factor = smooth_factor(__uint_as_float(warp_max(top)), 0, a.exact);
	const float inv = __fdiv_rn(1.0f, factor);
	if (threadIdx.x % 32 == 0 && t.row < a.rows)
		a.row_factor.out()[t.row] = factor;
	for (t.restart((int)a.cols); t.more(); t.next()) {
		float up[8], v[8];
		load_both(a.up, a.gate, t.row, t.col, t.n, up, v);
		gated(up, v, v);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = __fmul_rn(v[i], inv);
		out.store(t, v);
	}
	out.end();
}

struct SwiGLUGradArgs {
	Tensor dout, up, gate, inv_c, row_factor;
	Casts dup, dgate;
	i64 rows, cols;
	void *scratch;
};

// incoming is da, the gradient of up ⊙ silu(gate), of what was fetched of dout.
__device__ inline void incoming(const SwiGLUGradArgs &a, const Tile &t, const Eight &dout, float da[8]) {
	values8(a.dout, dout, da);
	if (a.inv_c.p) {
		float inv[8];
		load8(a.inv_c, 0, t.col, t.n, inv);
#pragma unroll
		for (int i = 0; i < 8; i++)
			da[i] *= inv[i];
	}
	if (a.row_factor.p && t.n > 0) {
		const float inv = __fdiv_rn(1.0f, a.row_factor.f32()[t.row]);
#pragma unroll
		for (int i = 0; i < 8; i++)
			da[i] *= inv;
	}
}

// The two gradients are made one after the other, each from operands read anew,
// the second time out of the first-level cache: 64 registers, all that a thread of
// 1024 has, do not hold both.
KERNEL(swiglu_grad, SwiGLUGradArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared[2];
	Result dup(a.dup, a.cols, shared[0]), dgate(a.dgate, a.cols, shared[1]);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		{
			float v[8], gate[8];
			const Eight dout = fetch8(a.dout, t.row, t.col, t.n), gates = fetch8(a.gate, t.row, t.col, t.n);
			incoming(a, t, dout, v);
			values8(a.gate, gates, gate);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] *= gate[i] * sigmoid(gate[i]);
			dup.store(t, v);
		}
		float v[8], up[8], gate[8];
		const Eight dout = fetch8(a.dout, t.row, t.col, t.n), ups = fetch8(a.up, t.row, t.col, t.n);
		incoming(a, t, dout, v);
		values8(a.up, ups, up);
		load8(a.gate, t.row, t.col, t.n, gate);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float g = gate[i], s = sigmoid(g);
			v[i] = v[i] * up[i] * (s * (1.0f + g * (1.0f - s)));
		}
		dgate.store(t, v);
	}
	dup.end();
	dgate.end();
}

struct SwiGLUAmaxArgs {
	Tensor up, gate, out, seen, up_out, up_seen;
	i64 rows, cols;
	float *scratch; // twice [strips, cols]: maxima of the product, and of up
};

KERNEL(swiglu_amax, SwiGLUAmaxArgs, TILE_THREADS, 1) {
	Columns products, ups;
	each_strip_row(a.rows, a.cols, [&](i64 row, i64 col, int n) {
		float up[8], v[8];
		load_both(a.up, a.gate, row, col, n, up, v);
		ups.fold(up);
		gated(up, v, v);
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
