// rms_norm and rms_norm_grad: kernels by tiles (tile.cuh) whose blocks take whole rows
// and look at them twice. What 264 blocks have read in between is 16,896 bytes for each
// column of BF16, 69 MB of 4,096: more than the second-level cache, 50 MB on an H100 or
// H200, and three times that in rms_norm_grad, which reads six bytes twice. So the
// second look goes backwards and finds what was read last; forwards, the cache would
// have lost each line just before its turn. Fewer rows in a block would all be there,
// but 32 make a sector of a transposed copy. row_cosine: a warp for each row.
#include "tile.cuh"

struct RMSNormArgs {
	Tensor x, gain;
	Casts out;
	Tensor inv_rms;
	i64 rows, cols;
	f64 eps;
	void *scratch;
};

template <bool PLAIN> __device__ inline void rms_norm_squares(const Operands<1> &x, const Tile &t, float sum[TILE_EACH]) {
	t.each_row<PLAIN>(x, [&](int r, const float x[1][8]) {
		float squares = 0.0f;
#pragma unroll
		for (int i = 0; i < 8; i++)
			squares += x[0][i] * x[0][i];
		sum[r] += squares;
	});
}

template <bool PLAIN> __device__ inline void rms_norm_tile(const RMSNormArgs &a, const Operands<1> &x, const float inv[TILE_EACH], Tile &t, Result &out) {
	float v[TILE_EACH][8], gain[8];
	values8(a.gain, t.fetch_row(a.gain), gain);
	t.each_row<PLAIN>(x, [&](int r, const float x[1][8]) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[r][i] = x[0][i] * inv[r] * gain[i];
	});
	out.store<PLAIN>(t, v);
}

KERNEL(rms_norm, RMSNormArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result out(a.out, a.cols, shared);
	const Operands<1> x({&a.x});
	Tile t(a.rows, a.cols, a.cols);
	float inv[TILE_EACH] = {};
	for (; t.more(); t.next())
		if (x.plain && t.full())
			rms_norm_squares<true>(x, t, inv);
		else
			rms_norm_squares<false>(x, t, inv);
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++) {
		inv[r] = 1.0f / sqrtf(warp_sum(inv[r]) / (float)a.cols + (float)a.eps);
		if (a.inv_rms.p && threadIdx.x % 32 == 0 && t.row + r < a.rows)
			a.inv_rms.out()[t.row + r] = inv[r];
	}
	for (t.back(); t.left(); t.back())
		if (x.plain && out.vectors && t.full())
			rms_norm_tile<true>(a, x, inv, t, out);
		else
			rms_norm_tile<false>(a, x, inv, t, out);
	out.end();
}

struct RMSNormGradArgs {
	Tensor dout, x, gain, inv_rms, residual;
	Casts dx;
	Tensor dgain;
	i64 rows, cols, accumulate;
	float *scratch; // [blocks, cols]: the sums of dgain over a block's rows
};

KERNEL(rms_norm_grad, RMSNormGradArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	Result dx(a.dx, a.cols, shared);
	Tile t(a.rows, a.cols, a.cols);
	float inv[TILE_EACH], mean[TILE_EACH] = {};
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++)
		inv[r] = t.row + r < a.rows ? a.inv_rms.f32()[t.row + r] : 0.0f;
	for (; t.more(); t.next()) {
		float gain[8];
		values8(a.gain, t.fetch_row(a.gain), gain);
		t.each_row(Operands<2>({&a.dout, &a.x}), [&](int r, const float x[2][8]) {
			float part = 0.0f;
#pragma unroll
			for (int i = 0; i < 8; i++)
				part += x[0][i] * gain[i] * (x[1][i] * inv[r]);
			mean[r] += part;
		});
	}
#pragma unroll
	for (int r = 0; r < TILE_EACH; r++)
		mean[r] = warp_sum(mean[r]) / (float)a.cols;
	// A word more behind each eight keeps the lanes of a warp in different banks.
	const int pitch = SHEET_WORDS / TILE_ROWS;
	float *const products = (float *)tile_turn().words;
	float *const mine = products + threadIdx.x / 32 * TILE_EACH * pitch + threadIdx.x % 32 * 9;
	for (t.back(); t.left(); t.back()) {
		float v[TILE_EACH][8], gain[8];
		values8(a.gain, t.fetch_row(a.gain), gain);
		__syncthreads(); // the last tile may still be read
		t.each_row(Operands<2>({&a.dout, &a.x}), [&](int r, const float x[2][8]) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float dy = x[0][i], normal = x[1][i] * inv[r];
				mine[r * pitch + i] = dy * normal;
				v[r][i] = inv[r] * (dy * gain[i] - normal * mean[r]);
			}
		});
		if (a.residual.p)
			t.each_row(Operands<1>({&a.residual}), [&](int r, const float x[1][8]) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					v[r][i] += x[0][i];
			});
		// dgain: the column sums of the tile's dy ⊙ x̂, from row 0 on.
		__syncthreads();
		if (threadIdx.x < TILE_COLS && t.col0 + threadIdx.x < a.cols) {
			float column = 0.0f;
#pragma unroll 8
			for (int r = 0; r < TILE_ROWS; r++)
				column += products[r * pitch + threadIdx.x + threadIdx.x / 8];
			a.scratch[blockIdx.x * a.cols + t.col0 + threadIdx.x] = column;
		}
		__syncthreads(); // the transposed copies take the same memory
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
