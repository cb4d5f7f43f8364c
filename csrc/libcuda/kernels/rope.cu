// rope: by tiles (tile.cuh). Dynamic shared memory: the float64 frequencies of half a
// head, then cosine and sine per row and frequency.
#include "tile.cuh"

struct RopeArgs {
	Tensor x, control;
	Casts out;
	i64 rows, cols, seq, head_dim;
	f64 theta;
	i64 inverse;
	f64 factor, low_freq, high_freq;
	i64 original;
	void *scratch;
};

// rotation_of returns cosine and sine of an angle, which may be some millions. It reduces
// the angle in float64: the product of position and frequency in FP32 would be off by
// whole radians.
__device__ inline float2 rotation_of(double angle) {
	const double halves = angle * 0.31830988618379067; // half turns, of π
	float2 r;
	sincospif((float)(halves - 2 * rint(halves / 2)), &r.y, &r.x);
	return r;
}

// frequency_of returns the frequency of pair i of a head, as backend.Rope.Frequencies does.
__device__ inline double frequency_of(const RopeArgs &a, int i) {
	const double f = pow(a.theta, -2.0 * i / (double)a.head_dim);
	if (a.factor == 0)
		return f;
	if (a.original == 0)
		return f / a.factor;
	const double turns = (double)a.original * f / 6.283185307179586;
	const double kept = fmax(0.0, fmin(1.0, (turns - a.low_freq) / (a.high_freq - a.low_freq)));
	return f * (kept + (1 - kept) / a.factor);
}

// rope_tile rotates a tile whose groups of eight columns lie in one half of one head,
// from column at of the head. The operands are the elements and their partners, half a
// head away.
template <bool PLAIN> __device__ inline void rope_tile(const Operands<2> &x, const float2 *rotations, int half, int at, Tile &t, Result &out) {
	float v[TILE_EACH][8];
	const bool first = at < half;
	const float2 *const rotation = rotations + (first ? at : at - half);
	const u32 sign = first ? 0x80000000u : 0;
	t.each_row<PLAIN>(x, [&](int r, const float x[2][8]) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[r][i] = x[0][i] * rotation[r * half + i].x + __uint_as_float(__float_as_uint(x[1][i]) ^ sign) * rotation[r * half + i].y;
	}, first ? half : -half);
	out.store<PLAIN>(t, v);
}

KERNEL(rope, RopeArgs, TILE_THREADS, 2) {
	__shared__ Result::Shared shared;
	DYNAMIC_SHARED(double, frequency);
	const int half = (int)a.head_dim / 2;
	float2 *table = (float2 *)(frequency + half); // [TILE_ROWS, half]
	for (int i = threadIdx.x; i < half; i += TILE_THREADS)
		frequency[i] = frequency_of(a, i);
	__syncthreads();
	const i64 position = control_position(a.control.i32());
	Tile t(a.rows, a.cols, TILE_SPAN);
	for (int i = threadIdx.x; i < TILE_ROWS * half; i += TILE_THREADS) {
		float2 rotation = rotation_of((double)(position + (t.row0 + i / half) % a.seq) * frequency[i % half]);
		if (a.inverse)
			rotation.y = -rotation.y;
		table[i] = rotation;
	}
	Result out(a.out, a.cols, shared); // waits for the table, too
	const int head = (int)a.head_dim, step = TILE_COLS % head;
	int at = t.col % head; // column within the head
	const Operands<2> x({&a.x, &a.x});
	for (; t.more(); t.next(), at += step, at -= at >= head ? head : 0) {
		const float2 *const rotations = table + threadIdx.x / 32 * TILE_EACH * half;
		if (half % 8 == 0 && x.plain && out.vectors && t.full()) {
			rope_tile<true>(x, rotations, half, at, t, out);
			continue;
		}
		if (half % 8 == 0) {
			rope_tile<false>(x, rotations, half, at, t, out);
			continue;
		}
		float v[TILE_EACH][8];
#pragma unroll
		for (int r = 0; r < TILE_EACH; r++) {
			load8(a.x, t.row + r, t.col, t.n(r), v[r]);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				if (i >= t.n(r))
					break;
				const int in = (t.col + i) % head;
				const float2 rotation = rotations[r * half + in % half];
				const float other = load_value(a.x, t.row + r, in < half ? t.col + i + half : t.col + i - half);
				v[r][i] = v[r][i] * rotation.x + (in < half ? -other : other) * rotation.y;
			}
		}
		out.store(t, v);
	}
	out.end();
}
