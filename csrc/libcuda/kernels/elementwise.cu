// add, activation, activation_grad, epilogue: by tiles (tile.cuh); a block takes
// TILE_SPAN columns of 32 rows. fill: a block per FLAT_ELEMS elements.
#include "flat.cuh"
#include "tile.cuh"

struct AddArgs {
	Tensor a, b;
	Casts out;
	i64 rows, cols;
	void *scratch;
};

template <bool PLAIN> __device__ inline void add_tile(const Operands<2> &x, Tile &t, Result &out) {
	float v[TILE_EACH][8];
	t.each_row<PLAIN>(x, [&](int r, const float x[2][8]) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[r][i] = x[0][i] + x[1][i];
	});
	out.store<PLAIN>(t, v);
}

KERNEL(add, AddArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	const Operands<2> x({&a.a, &a.b});
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next())
		if (x.plain && out.vectors && t.full())
			add_tile<true>(x, t, out);
		else
			add_tile<false>(x, t, out);
	out.end();
}

enum Kind { GELU, RELU };

// normal_cdf is Φ, by erfc: erf would cancel for x far below zero.
__device__ inline float normal_cdf(float x) { return 0.5f * erfcf(x * -0.70710678118654752f); }

struct ActivationArgs {
	Tensor x;
	Casts out;
	i64 rows, cols, kind;
	void *scratch;
};

KERNEL(activation, ActivationArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[TILE_EACH][8];
		t.each_row(Operands<1>({&a.x}), [&](int r, const float x[1][8]) {
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = a.kind == GELU ? x[0][i] * normal_cdf(x[0][i]) : x[0][i] < 0.0f ? 0.0f : x[0][i];
		});
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

KERNEL(activation_grad, ActivationGradArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result dx(a.dx, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[TILE_EACH][8];
		t.each_row(Operands<2>({&a.dout, &a.x}), [&](int r, const float in[2][8]) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float dout = in[0][i], x = in[1][i];
				if (a.kind == GELU)
					v[r][i] = dout * (normal_cdf(x) + x * 0.39894228040143268f * expf(-0.5f * x * x));
				else
					v[r][i] = x <= 0.0f ? 0.0f : dout;
			}
		});
		dx.store(t, v);
	}
	dx.end();
}

struct EpilogueArgs {
	Tensor x, row_scale, col_scale, residual, out, out_scale, amax;
	i64 rows, cols, accumulate;
	void *scratch;
};

// epilogue keeps the order of operations of MatMul's comment, each rounded.
KERNEL(epilogue, EpilogueArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	__shared__ Casts casts;
	if (threadIdx.x == 0)
		casts = {1, nullptr, {{a.out.p, a.out.ld, a.out.format, a.out_scale.f32(), a.amax.out(), 0, 0, nullptr, 0, 0, 0, 0}}};
	__syncthreads();
	Result out(casts, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float v[TILE_EACH][8];
		t.each_row(Operands<1>({&a.x}), [&](int r, const float x[1][8]) {
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[r][i] = x[0][i];
		});
		scale_tile(t, a.row_scale, a.col_scale, v);
		if (a.residual.p) {
			t.each_row(Operands<1>({&a.residual}), [&](int r, const float x[1][8]) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					v[r][i] = __fadd_rn(v[r][i], x[0][i]);
			});
		} else if (a.accumulate) {
			// The kernel writes this memory, so each_row's read-only path is excluded.
			const Tensor old = {a.out.p, a.out.ld, a.out.format, nullptr};
#pragma unroll
			for (int r = 0; r < TILE_EACH; r++)
#pragma unroll
				for (int i = 0; i < 8; i++)
					if (i < t.n(r))
						v[r][i] = __fadd_rn(v[r][i], load_value(old, t.row + r, t.col + i));
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
	encode8(a.out.format, v, false, nullptr, words);
	each_flat(a.rows, a.cols, a.rows > 1 && a.out.ld != a.cols, [&](i64 row, i64 col, int n) {
		store8(a.out.p, row * a.out.ld + col, size_of(a.out.format), n, words);
	});
}
