// hadamard: a block rotates HADAMARD_GROUPS groups that lie side by side, in shared memory.
#include "tile.cuh"

const int HADAMARD_GROUPS = 32;
const int MAX_HADAMARD = 128;
const int HADAMARD_PITCH = HADAMARD_GROUPS + 1; // neighbours in a group and in a row use different banks

struct HadamardArgs {
	Tensor x, control;
	Casts out;
	i64 rows, cols, size, columns, signs;
	void *scratch;
};

// negative reports whether element i of a group changes its sign (backend.Hadamard.SignOf).
__device__ inline bool negative(const HadamardArgs &a, int i) {
	const u64 name = 0x6bf14c4143c88881ull; // fp8.NameKey("hadamard.signs")
	if (!a.control.p)
		return a.signs >> i % 16 & 1;
	return random_bits(mix64(mix64(mix64(control_seed(a.control.i32()) + GOLDEN64)) ^ name), i) >> 31;
}

// Place is element i of group g: the e-th of a block, in the order of rows.
struct Place {
	int i, g;
	i64 row, col;

	__device__ Place(const HadamardArgs &a, int e) {
		const int size = (int)a.size;
		if (a.columns)
			i = e / HADAMARD_GROUPS, g = e % HADAMARD_GROUPS, row = blockIdx.x * (i64)size + i, col = blockIdx.y * (i64)HADAMARD_GROUPS + g;
		else
			i = e % size, g = e / size, row = blockIdx.x * (i64)HADAMARD_GROUPS + g, col = blockIdx.y * (i64)size + i;
	}
	__device__ int at() const { return i * HADAMARD_PITCH + g; }
};

KERNEL(hadamard, HadamardArgs, FLAT_THREADS, 2) {
	__shared__ Result::Shared shared;
	__shared__ float v[MAX_HADAMARD * HADAMARD_PITCH];
	Result out(a.out, a.cols, shared);
	const int elems = (int)a.size * HADAMARD_GROUPS;
	for (int e = threadIdx.x; e < elems; e += FLAT_THREADS) {
		const Place p(a, e);
		const float x = p.row < a.rows && p.col < a.cols ? load_value(a.x, p.row, p.col) : 0.0f;
		v[p.at()] = negative(a, p.i) ? -x : x;
	}
	for (int stride = 1; stride < a.size; stride *= 2) {
		__syncthreads();
		for (int e = threadIdx.x; e < elems / 2; e += FLAT_THREADS) {
			const int pair = e / HADAMARD_GROUPS, i = pair / stride * 2 * stride + pair % stride;
			float &x = v[i * HADAMARD_PITCH + e % HADAMARD_GROUPS], &y = v[(i + stride) * HADAMARD_PITCH + e % HADAMARD_GROUPS];
			const float sum = x + y;
			y = x - y, x = sum;
		}
	}
	__syncthreads();
	const float scale = (float)(1.0 / sqrt((double)a.size));
	for (int e = threadIdx.x; e < elems; e += FLAT_THREADS) {
		const Place p(a, e);
		if (p.row < a.rows && p.col < a.cols)
			out.store1(__fmul_rn(v[p.at()], scale), p.row, p.col);
	}
	out.end();
}
