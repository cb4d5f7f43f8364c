// rope: a kernel by tiles (tile.cuh). Dynamic shared memory: the frequencies of
// half a head (float64), then cosine and sine of each for each row.
#include "tile.cuh"

struct RopeArgs {
	Tensor x, control;
	Casts out;
	i64 rows, cols, seq, head_dim;
	f64 theta;
	i64 inverse;
	void *scratch;
};

// turn_of is the cosine and the sine of an angle, which may be some millions: it
// is brought near zero in float64, because the product of position and frequency
// in FP32 would be wrong by whole radians.
__device__ inline float2 turn_of(double angle) {
	const double halves = angle * 0.31830988618379067; // half turns, of π
	float2 r;
	sincospif((float)(halves - 2 * rint(halves / 2)), &r.y, &r.x);
	return r;
}

KERNEL(rope, RopeArgs, TILE_THREADS, 1) {
	__shared__ Result::Shared shared;
	DYNAMIC_SHARED(double, frequency);
	const int half = (int)a.head_dim / 2;
	float2 *table = (float2 *)(frequency + half); // [TILE_ROWS, half]
	for (int i = threadIdx.x; i < half; i += TILE_THREADS)
		frequency[i] = pow(a.theta, -2.0 * i / (double)a.head_dim);
	__syncthreads();
	const i64 position = control_position(a.control.i32());
	Tile t(a.rows, a.cols, TILE_SPAN);
	for (int i = threadIdx.x; i < TILE_ROWS * half; i += TILE_THREADS) {
		float2 turn = turn_of((double)(position + (t.row0 + i / half) % a.seq) * frequency[i % half]);
		if (a.inverse)
			turn.y = -turn.y;
		table[i] = turn;
	}
	Result out(a.out, a.cols, shared); // waits for the table, too
	const float2 *turns = table + threadIdx.x / 32 * half;
	for (; t.more(); t.next()) {
		float v[8], w[8];
		const int at = (int)(t.col % a.head_dim);
		const bool first = at < half;
		const Eight mine = fetch8(a.x, t.row, t.col, t.n);
		if (half % 8 == 0) { // the eight are in one half of one head
			const Eight other = fetch8(a.x, t.row, first ? t.col + half : t.col - half, t.n);
			values8(a.x, mine, v);
			values8(a.x, other, w);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float2 turn = turns[t.n > 0 ? (first ? at : at - half) + i : 0];
				v[i] = v[i] * turn.x + (first ? -w[i] : w[i]) * turn.y;
			}
		} else {
			values8(a.x, mine, v);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				if (i >= t.n)
					break;
				const int in = (int)((t.col + i) % a.head_dim);
				const float2 turn = turns[in % half];
				const float other = load_value(a.x, t.row, in < half ? t.col + i + half : t.col + i - half);
				v[i] = v[i] * turn.x + (in < half ? -other : other) * turn.y;
			}
		}
		out.store(t, v);
	}
	out.end();
}
