// rms_norm, rms_norm_grad: by tiles (tile.cuh) whose blocks take whole rows and read them
// twice. 264 blocks read 16,896 bytes per column of BF16 in one pass, 69 MB for 4,096
// columns: more than the L2 cache, 50 MB on an H100 or H200; rms_norm_grad, which reads
// six bytes twice, three times that. So the second pass goes backwards and hits what was
// read last; forwards, the cache would have evicted each line just before its use. Blocks
// of fewer rows would fit, but a sector of a transposed copy needs 32. row_cosine: a warp
// per row.
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
	// One word of padding after each eight puts the lanes of a warp in different banks.
	const int pitch = SHEET_WORDS / TILE_ROWS;
	float *const products = (float *)transpose_buffer().words;
	float *const mine = products + threadIdx.x / 32 * TILE_EACH * pitch + threadIdx.x % 32 * 9;
	for (t.back(); t.left(); t.back()) {
		float v[TILE_EACH][8], gain[8];
		values8(a.gain, t.fetch_row(a.gain), gain);
		__syncthreads(); // other threads may still read the last tile
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
		// dgain: the column sums of the tile's dy ⊙ x̂, in row order.
		__syncthreads();
		if (threadIdx.x < TILE_COLS && t.col0 + threadIdx.x < a.cols) {
			float column = 0.0f;
#pragma unroll 8
			for (int r = 0; r < TILE_ROWS; r++)
				column += products[r * pitch + threadIdx.x + threadIdx.x / 8];
			a.scratch[blockIdx.x * a.cols + t.col0 + threadIdx.x] = column;
		}
		__syncthreads(); // the transposed copies use the same memory
		dx.store(t, v);
	}
	dx.end();
}

// rms_norm_grad_gain adds the blocks' sums, in order.
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
