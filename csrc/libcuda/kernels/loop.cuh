// Template of the kernels of custom ops (Loop in loop.go): by tiles (tile.cuh), one call
// of the op's function per element.
#pragma once
#include "tile.cuh"

template <int IN, int OUT> struct LoopArgs {
	Tensor in[IN]; // ld is 0 if all rows read one row
	Casts out[OUT];
	i64 rows, cols;
	void *scratch;
};

// Results stores N results.
template <int N> struct Results : Results<N - 1> {
	Result last;

	__device__ Results(const Casts *casts, i64 cols, Result::Shared *shared) : Results<N - 1>(casts, cols, shared), last(casts[N - 1], cols, shared[N - 1]) {}
	__device__ void store(Tile &t, const float (*v)[TILE_EACH][8]) {
		Results<N - 1>::store(t, v);
		last.store(t, v[N - 1]);
	}
	__device__ void end() {
		Results<N - 1>::end();
		last.end();
	}
};

template <> struct Results<0> {
	__device__ Results(const Casts *, i64, Result::Shared *) {}
	__device__ void store(Tile &, const float (*)[TILE_EACH][8]) {}
	__device__ void end() {}
};

// load_row loads the thread's elements of row r of tensors of any float format.
template <int N> __device__ inline void load_row(const Tile &t, int r, const Tensor (&x)[N], float v[N][8]) {
	Eight e[N];
#pragma unroll
	for (int k = 0; k < N; k++)
		e[k] = fetch8<true>(x[k].p, offset(t.row + r, x[k].ld, t.col), size_of((int)x[k].format), t.n(r));
#pragma unroll
	for (int k = 0; k < N; k++) {
		decode8((int)x[k].format, e[k], v[k]);
		const float scale = x[k].scale ? __ldg(x[k].scale) : 1.0f; // x · 1 is exact
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[k][i] = __fmul_rn(v[k][i], scale);
	}
}

// loop calls f(results, inputs) for each element. Elements outside the matrix are zero.
template <int IN, int OUT, class F> __device__ inline void loop(const LoopArgs<IN, OUT> &a, const F &f) {
	__shared__ Result::Shared shared[OUT];
	Results<OUT> results(a.out, a.cols, shared);
	for (Tile t(a.rows, a.cols, TILE_SPAN); t.more(); t.next()) {
		float y[OUT][TILE_EACH][8];
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			float x[IN][8];
			load_row(t, r, a.in, x);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				float in[IN], out[OUT];
#pragma unroll
				for (int k = 0; k < IN; k++)
					in[k] = x[k][i];
				f(out, in);
#pragma unroll
				for (int k = 0; k < OUT; k++)
					y[k][r][i] = out[k];
			}
		}
		results.store(t, y);
	}
	results.end();
}
