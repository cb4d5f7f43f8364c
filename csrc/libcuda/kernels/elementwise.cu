// add, activation, activation_grad, epilogue: kernels by tiles (tile.cuh) whose
// blocks take TILE_SPAN columns of 32 rows. fill: a block for FLAT_ELEMS elements.
#include "flat.cuh"
#include "tile.cuh"

struct AddArgs {
	Tensor a, b;
	Casts out;
	i64 rows, cols;
	void *scratch;
};

KERNEL(add, AddArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[8], w[8];
		const Eight x = fetch8(a.a, t.row, t.col, t.n), y = fetch8(a.b, t.row, t.col, t.n);
		values8(a.a, x, v);
		values8(a.b, y, w);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] += w[i];
		out.store(t, v);
	}
	out.end();
}

enum Kind { GELU, RELU };

// normal_cdf is Φ, by erfc: erf would cancel where x is far below zero.
__device__ inline float normal_cdf(float x) { return 0.5f * erfcf(x * -0.70710678118654752f); }

struct ActivationArgs {
	Tensor x;
	Casts out;
	i64 rows, cols, kind;
	void *scratch;
};

KERNEL(activation, ActivationArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[8];
		load8(a.x, t.row, t.col, t.n, v);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = a.kind == GELU ? v[i] * normal_cdf(v[i]) : v[i] < 0.0f ? 0.0f : v[i];
		out.store(t, v);
	}
	out.end();
}

struct ActivationGradArgs {
	Tensor dout, x;
	Casts dx;
	i64 rows, cols, kind;
	void *scratch;
};

KERNEL(activation_grad, ActivationGradArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result dx(a.dx, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[8], x[8];
		const Eight dout = fetch8(a.dout, t.row, t.col, t.n), in = fetch8(a.x, t.row, t.col, t.n);
		values8(a.dout, dout, v);
		values8(a.x, in, x);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (a.kind == GELU)
				v[i] *= normal_cdf(x[i]) + x[i] * 0.39894228040143268f * expf(-0.5f * x[i] * x[i]);
			else if (x[i] <= 0.0f)
				v[i] = 0.0f;
		}
		dx.store(t, v);
	}
	dx.end();
}

struct EpilogueArgs {
	Tensor x, row_scale, col_scale, residual, out, out_scale, amax;
	i64 rows, cols, accumulate;
	void *scratch;
};

// epilogue keeps the order of MatMul's comment, each operation rounded.
KERNEL(epilogue, EpilogueArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	__shared__ Casts casts;
	if (threadIdx.x == 0)
		casts = {1, nullptr, {{a.out.p, a.out.ld, a.out.format, a.out_scale.f32(), a.amax.out(), 0, 0, nullptr, 0, 0, 0, 0}}};
	__syncthreads();
	Result out(casts, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[8], w[8];
		load8(a.x, t.row, t.col, t.n, v);
		if (a.row_scale.p && t.n > 0) {
			const float s = a.row_scale.f32()[t.row];
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = __fmul_rn(v[i], s);
		}
		if (a.col_scale.p) {
			load8(a.col_scale, 0, t.col, t.n, w);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = __fmul_rn(v[i], w[i]);
		}
		if (a.residual.p || a.accumulate) {
			if (a.residual.p) {
				load8(a.residual, t.row, t.col, t.n, w);
			} else {
				// The kernel writes here: not for the read-only path of load8.
				const Tensor old = {a.out.p, a.out.ld, a.out.format, nullptr};
#pragma unroll
				for (int i = 0; i < 8; i++)
					w[i] = i < t.n ? load_value(old, t.row, t.col + i) : 0.0f;
			}
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = __fadd_rn(v[i], w[i]);
		}
		out.store(t, v);
	}
	out.end();
}

struct FillArgs {
	Tensor out;
	i64 rows, cols;
	f64 value;
	void *scratch;
};

KERNEL(fill, FillArgs, FLAT_THREADS, 1) {
	float v[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = (float)a.value;
	u32 words[8];
	encode8(a.out.format, v, false, 0, 0, words);
	each_flat(a.rows, a.cols, a.rows > 1 && a.out.ld != a.cols, [&](i64 row, i64 col, int n) {
		store8(a.out.p, row * a.out.ld + col, size_of(a.out.format), n, words);
	});
}
