// attention_grad_kv_wgmma_64, _128, attention_grad_q_wgmma_64 and _128:
// attention_grad.cu's fast kernels with wgmma, for Hopper only.
//
// Blocks are as large as those of mma.sync, with steps of 64 queries, or keys. Each of
// their two warpgroups has 64 keys, or queries. Shared memory: 1,280·D bytes, and 1,536
// for LSE and DOut·O.
//
// In _kv_ the last GEMM of a step is still pending when the next step begins, and each of
// the four GEMMs overlaps with other work. In _q_ the fixed operands, Q and dOut, are in
// registers: a 64 × 64 GEMM with both operands in shared memory would read it at its full
// rate, 128 bytes per clock.
//
// Counts for D = 128, in clocks per step: _kv_: tensor cores 2,048, exponentials 512,
// instructions 1,040, shared memory 1,792; _q_: 1,536, 512, 760 and 1,024.
#include "attention_grad.cuh"
#include "wgmma.cuh"

const int STEP = 64;   // queries, or keys, of a stage
const int STAGES = 3;  // being copied, in use, and the previous one, which pending wgmma may still read
const int THREADS = 256;

template <int D, bool DOCUMENTS> __device__ inline void grad_keys(const AttentionGradArgs &a, Result::Shared shared[2]) {
	typedef PanelTile<D, KEY_BLOCK> KTile;
	typedef PanelTile<D, STEP> QTile;
	DYNAMIC_SHARED(bf16, start);
	bf16 *memory = begin_at_pattern(start);
	const KTile k = {memory}, v = {memory + KTile::SIZE};
	bf16 *stages = memory + 2 * KTile::SIZE; // Q, then dOut, of each stage
	float *vectors = (float *)(stages + 2 * STAGES * QTile::SIZE); // LSE, then DOut·O
	const Keys<D, STEP, DOCUMENTS> b(a);
	const int row = threadIdx.x / 32 * 16, first_row = warpgroup_row();

	const auto load = [&](int at, const typename Keys<D, STEP, DOCUMENTS>::Step &s) {
		const int n = b.n(a, s), stage = at % STAGES;
		const QTile q = {stages + stage * 2 * QTile::SIZE}, dout = {q.p + QTile::SIZE};
		q.template load<THREADS>(b.queries(a, a.q, s), a.q.ld, n);
		dout.template load<THREADS>(b.queries(a, a.dout, s), a.dout.ld, n);
		b.load_vectors(a, vectors + stage * 2 * STEP, vectors + (stage * 2 + 1) * STEP, s);
		commit();
	};

	float sum_k[1][D / 8][4], sum_v[1][D / 8][4];
	u32 wp[STEP / 16][4], wd[STEP / 16][4];
	clear<1>(sum_k);
	clear<1>(sum_v);
	k.template load<THREADS>(b.k(a), a.k.ld, b.rows);
	v.template load<THREADS>(b.v(a), a.v.ld, b.rows);
	typename Keys<D, STEP, DOCUMENTS>::Step now, next = b.first(a);
	load(0, next);
	for (int at = 0; at < b.all; at++) {
		wait_for<0>();
		fence_proxy();
		__syncthreads(); // the stage is loaded, and no thread reads the one before the last
		now = next;
		next.advance(b);
		if (at + 1 < b.all)
			load(at + 1, next);
		const int stage = at % STAGES;
		const QTile q = {stages + stage * 2 * QTile::SIZE}, dout = {q.p + QTile::SIZE};
		const float *lse = vectors + stage * 2 * STEP, *dots = lse + STEP;

		float p[1][STEP / 8][4], d[1][STEP / 8][4];
		wgmma_fence();
		begin_rows(p, k, first_row, q);
		wgmma_commit();
		begin_rows(d, v, first_row, dout);
		wgmma_commit();
		wgmma_wait<1>(p, sum_k, sum_v);
		b.template to_weights<1>(p, a, lse, row, now);
		pack(wp, p);
		wgmma_fence();
		begin_weights(sum_v, wp, dout);
		wgmma_commit();
		wgmma_wait<1>(d);
		b.template to_score_grads<1>(d, p, dots);
		pack(wd, d);
		wgmma_fence();
		begin_weights(sum_k, wd, q);
		wgmma_commit();
	}
	wgmma_wait<0>(sum_k, sum_v);
	b.template end<1>(a, sum_k, sum_v, memory, shared);
}

KERNEL(attention_grad_kv_wgmma_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<64, false>(a, shared);
}

KERNEL(attention_grad_kv_wgmma_documents_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<64, true>(a, shared);
}

KERNEL(attention_grad_kv_wgmma_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<128, false>(a, shared);
}

KERNEL(attention_grad_kv_wgmma_documents_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<128, true>(a, shared);
}

template <int D, bool DOCUMENTS> __device__ inline void grad_queries(const AttentionGradArgs &a, Result::Shared &shared) {
	typedef PanelTile<D, QUERY_BLOCK> QTile;
	typedef PanelTile<D, STEP> KTile;
	DYNAMIC_SHARED(bf16, start);
	bf16 *memory = begin_at_pattern(start);
	const QTile q = {memory}, dout = {memory + QTile::SIZE};
	bf16 *stages = memory + 2 * QTile::SIZE; // K, then V, of each stage
	const GradQueries<D, STEP, 1, DOCUMENTS> b(a);

	const auto load = [&](int at) {
		const KTile k = {stages + at % STAGES * 2 * KTile::SIZE}, v = {k.p + KTile::SIZE};
		k.template load<THREADS>(b.seen(a, a.k, at), a.k.ld, b.n(at));
		v.template load<THREADS>(b.seen(a, a.v, at), a.v.ld, b.n(at));
		commit();
	};

	float sum[1][D / 8][4];
	u32 w[STEP / 16][4], qs[D / 16][4], douts[D / 16][4];
	clear<1>(sum);
	q.template load<THREADS>(b.queries(a.q), a.q.ld, b.rows);
	dout.template load<THREADS>(b.queries(a.dout), a.dout.ld, b.rows);
	commit();
	load(b.begin);
	wait_for<1>();
	__syncthreads();
	q.read(qs, b.row());
	dout.read(douts, b.row());
	for (int at = b.begin; at < b.steps; at++) {
		wait_for<0>();
		fence_proxy();
		__syncthreads(); // the stage is loaded, and no thread reads the one before the last
		if (at + 1 < b.steps)
			load(at + 1);
		const KTile k = {stages + at % STAGES * 2 * KTile::SIZE}, v = {k.p + KTile::SIZE};

		float p[1][STEP / 8][4], d[1][STEP / 8][4];
		wgmma_fence();
		begin_rows<D, STEP>(p, qs, k);
		wgmma_commit();
		begin_rows<D, STEP>(d, douts, v);
		wgmma_commit();
		wgmma_wait<1>(p, sum);
		b.to_weights(p, a, at);
		settle<STEP / 2>(p[0][0]);
		wgmma_wait<0>(d);
		b.to_score_grads(d, p);
		pack(w, d);
		wgmma_fence();
		begin_weights(sum, w, k);
		wgmma_commit();
	}
	wgmma_wait<0>(sum);
	b.end(a, sum, memory, shared);
}

KERNEL(attention_grad_q_wgmma_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<64, false>(a, shared);
}

KERNEL(attention_grad_q_wgmma_documents_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<64, true>(a, shared);
}

KERNEL(attention_grad_q_wgmma_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<128, false>(a, shared);
}

KERNEL(attention_grad_q_wgmma_documents_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<128, true>(a, shared);
}
