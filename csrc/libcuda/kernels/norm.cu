// rms_norm and rms_norm_grad: kernels by tiles (tile.cuh) whose blocks take
// whole rows, so that the second look at them finds them in the second-level
// cache. row_cosine: a warp for each row.
#include "tile.cuh"

struct RMSNormArgs {
	Tensor x, gain;
	Casts out;
	Tensor inv_rms;
	i64 rows, cols;
	f64 eps;
	void *scratch;
};

KERNEL(rms_norm, RMSNormArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	Tile t(a.rows, a.cols, a.cols);
	float squares = 0.0f;
	for (; t.more(); t.next()) {
		float v[8], sum = 0.0f;
		load8(a.x, t.row, t.col, t.n, v);
#pragma unroll
		for (int i = 0; i < 8; i++)
			sum += v[i] * v[i];
		squares += sum;
	}
	const float inv = 1.0f / sqrtf(warp_sum(squares) / (float)a.cols + (float)a.eps);
	if (a.inv_rms.p && threadIdx.x % 32 == 0 && t.row < a.rows)
		a.inv_rms.out()[t.row] = inv;
	for (t.restart((int)a.cols); t.more(); t.next()) {
		float v[8], gain[8];
		const Eight x = fetch8(a.x, t.row, t.col, t.n), g = fetch8(a.gain, 0, t.col, t.n);
		values8(a.x, x, v);
		values8(a.gain, g, gain);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = v[i] * inv * gain[i];
		out.store(t, v);
	}
	out.end();
}

struct RMSNormGradArgs {
	Tensor dout, x, gain, inv_rms, residual;
	Casts dx;
	Tensor dgain;
	i64 rows, cols, accumulate;
	float *scratch; // [blocks, cols]: the sums of dgain over a block's rows
};

KERNEL(rms_norm_grad, RMSNormGradArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	Result dx(a.dx, a.cols, shared);
	Tile t(a.rows, a.cols, a.cols);
	const float inv = t.row < a.rows ? a.inv_rms.f32()[t.row] : 0.0f;
	float sum = 0.0f;
	for (; t.more(); t.next()) {
		float dy[8], x[8], gain[8], part = 0.0f;
		const Eight dout = fetch8(a.dout, t.row, t.col, t.n), in = fetch8(a.x, t.row, t.col, t.n);
		values8(a.dout, dout, dy);
		values8(a.x, in, x);
		load8(a.gain, 0, t.col, t.n, gain);
#pragma unroll
		for (int i = 0; i < 8; i++)
			part += dy[i] * gain[i] * (x[i] * inv);
		sum += part;
	}
	const float mean = warp_sum(sum) / (float)a.cols;
	for (t.restart((int)a.cols); t.more(); t.next()) {
		float dy[8], x[8], v[8];
		const Eight dout = fetch8(a.dout, t.row, t.col, t.n), in = fetch8(a.x, t.row, t.col, t.n);
		values8(a.dout, dout, dy);
		values8(a.x, in, x);
		load8(a.gain, 0, t.col, t.n, v);

		// dgain: the column sums of the tile's dy ⊙ x̂, from row 0 on.
		Turn<TILE_COLS> &turn = tile_turn();
		__syncthreads(); // the last tile may still be read
		u32 products[8];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			x[i] *= inv;
			products[i] = __float_as_uint(dy[i] * x[i]);
		}
		turn.put(threadIdx.x / 32, threadIdx.x % 32 * 8, 4, products);
		__syncthreads();
		if (threadIdx.x < TILE_COLS && t.col0 + threadIdx.x < a.cols) {
			float column = 0.0f;
#pragma unroll 8
			for (int r = 0; r < TILE_ROWS; r++)
				column += __uint_as_float(turn.words[r * turn.pitch(4) + threadIdx.x]);
			a.scratch[blockIdx.x * a.cols + t.col0 + threadIdx.x] = column;
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = inv * (dy[i] * v[i] - x[i] * mean);
		if (a.residual.p) {
			load8(a.residual, t.row, t.col, t.n, x);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] += x[i];
		}
		dx.store(t, v);
	}
	dx.end();
}

// rms_norm_grad_gain adds the blocks' sums up, in order.
KERNEL(rms_norm_grad_gain, RMSNormGradArgs, FLAT_THREADS, 1) {
	const i64 col = (i64)blockIdx.x * FLAT_THREADS + threadIdx.x;
	if (col >= a.cols)
		return;
	const i64 blocks = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
	float sum = 0.0f;
#pragma unroll 8
	for (i64 i = 0; i < blocks; i++)
		sum += a.scratch[i * a.cols + col];
	a.dgain.out()[col] = a.accumulate ? a.dgain.f32()[col] + sum : sum;
}

struct RowCosineArgs {
	Tensor a, b, out;
	i64 rows, cols;
	void *scratch;
};

KERNEL(row_cosine, RowCosineArgs, FLAT_THREADS, 1) {
	const i64 row = (i64)blockIdx.x * (FLAT_THREADS / 32) + threadIdx.x / 32;
	if (row >= a.rows)
		return; // a whole warp
	double dot = 0, aa = 0, bb = 0;
	for (i64 col = threadIdx.x % 32 * 8; col < a.cols; col += 256) {
		float v[8], w[8];
		const int n = (int)min(8ll, a.cols - col);
		load8(a.a, row, col, n, v);
		load8(a.b, row, col, n, w);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const double x = v[i], y = w[i];
			dot += x * y;
			aa += x * x;
			bb += y * y;
		}
	}
	dot = warp_sum(dot), aa = warp_sum(aa), bb = warp_sum(bb);
	if (threadIdx.x % 32 == 0) {
		float *out = a.out.out() + row;
		out[0] = aa != 0 && bb != 0 ? (float)(dot / (sqrt(aa) * sqrt(bb))) : 0.0f;
		out[a.out.ld] = (float)sqrt(aa);
		out[2 * a.out.ld] = (float)sqrt(bb);
	}
}
