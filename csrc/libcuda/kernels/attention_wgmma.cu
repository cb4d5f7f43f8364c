// attention_wgmma_64 and attention_wgmma_128: attention.cu's fast kernels with wgmma, for
// Hopper only.
//
// A block has 128 queries of a head, 64 per warpgroup, and iterates over the keys, 128 at
// a time, with two stages of K and of V: 1,280·D bytes, 160 KiB with D = 128. As in
// FlashAttention-3 (Shah et al., 2024) a warpgroup starts the scores of the next keys
// before the GEMM of its weights with V, and computes softmax while that GEMM runs.
//
// Counts for D = 128: 128 queries and 128 keys take 2,048 clocks of a multiprocessor's
// tensor cores. Meanwhile exponentials, 16 per clock, take 1,024, instructions 1,200 (600
// per warp, two warps per scheduler), and shared memory, 128 bytes per clock, 1,792, of
// which 512 are copies. Not hidden are the corrections of the result and the rounding of
// the weights, about 400 clocks, and a block's first copies and its result.
#include "attention.cuh"
#include "wgmma.cuh"

template <int D, bool DOCUMENTS> __device__ inline void attend(const AttentionArgs &a, Result::Shared &shared) {
	const int N = 128, THREADS = 256;
	typedef PanelTile<D, QUERY_BLOCK> QTile;
	typedef PanelTile<D, N> KTile;
	DYNAMIC_SHARED(bf16, start);
	bf16 *memory = begin_at_pattern(start);
	const QTile q = {memory};
	const Queries<D, DOCUMENTS> b(a);
	const int begin = b.start(a, 0) / N, steps = (b.seen + N - 1) / N, row = threadIdx.x / 32 * 16, first_row = warpgroup_row();
	const auto k = [&](int at) { return KTile{memory + QTile::SIZE + at % 2 * KTile::SIZE}; };
	const auto v = [&](int at) { return KTile{memory + QTile::SIZE + (2 + at % 2) * KTile::SIZE}; };
	const auto load_k = [&](int at) { k(at).template load<THREADS>(b.k(a) + (i64)at * N * a.k.ld, a.k.ld, min(N, b.keys - at * N)); };
	const auto load_v = [&](int at) { v(at).template load<THREADS>(b.v(a) + (i64)at * N * a.v.ld, a.v.ld, min(N, b.keys - at * N)); };

	Softmax<D, 1> softmax;
	float o[1][D / 8][4], s[1][N / 8][4], correction[1][2];
	u32 w[N / 16][4];
	clear<1>(o);

	q.template load<THREADS>(b.q(a), a.q.ld, b.rows);
	load_k(begin);
	commit();
	load_v(begin);
	if (steps > begin + 1)
		load_k(begin + 1);
	commit();
	wait_for<1>();
	fence_proxy();
	__syncthreads();
	wgmma_fence();
	begin_rows(s, q, first_row, k(begin));
	wgmma_commit();
	wgmma_wait<0>(s);
	softmax.template mask<N>(s, a, b, row, begin * N);
	softmax.template to_weights<N>(s, correction); // no sums to correct yet
	pack(w, s);
	for (int at = begin; at + 1 < steps; at++) {
		wait_for<0>();
		fence_proxy();
		__syncthreads(); // V and the next K are loaded, and no thread reads K or the last V
		if (at + 2 < steps)
			load_k(at + 2);
		load_v(at + 1);
		commit();
		wgmma_fence();
		begin_rows(s, q, first_row, k(at + 1));
		wgmma_commit();
		begin_weights(o, w, v(at));
		wgmma_commit();
		wgmma_wait<1>(s);
		softmax.template mask<N>(s, a, b, row, (at + 1) * N);
		softmax.template to_weights<N>(s, correction);
		settle<2>(softmax.total[0]);
		wgmma_wait<0>(o);
		softmax.correct(o, correction);
		pack(w, s);
	}
	wait_for<0>();
	fence_proxy();
	__syncthreads();
	wgmma_fence();
	begin_weights(o, w, v(steps - 1));
	wgmma_commit();
	wgmma_wait<0>(o);
	softmax.end(a, b, o, memory, shared);
}

KERNEL(attention_wgmma_64, AttentionArgs, 256, 1) {
	__shared__ Result::Shared shared;
	attend<64, false>(a, shared);
}

KERNEL(attention_wgmma_documents_64, AttentionArgs, 256, 1) {
	__shared__ Result::Shared shared;
	attend<64, true>(a, shared);
}

KERNEL(attention_wgmma_128, AttentionArgs, 256, 1) {
	__shared__ Result::Shared shared;
	attend<128, false>(a, shared);
}

KERNEL(attention_wgmma_documents_128, AttentionArgs, 256, 1) {
	__shared__ Result::Shared shared;
	attend<128, true>(a, shared);
}
