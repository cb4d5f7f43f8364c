// attention_grad_kv_wgmma_64, _128, attention_grad_q_wgmma_64 and _128:
// attention_grad.cu's fast kernels with wgmma, for Hopper alone.
//
// Blocks are as large as those of mma.sync, and take 64 queries, or keys, a step.
// Each of their two warpgroups has 64 keys, or queries. Shared memory: 1,280·D bytes,
// and 1,536 for numbers of the queries.
//
// _kv_ has its last product under way when the next step begins, and each of the
// four runs while something else is worked out. In _q_ the operands that stay, Q and
// dOut, lie in registers: a product of 64 × 64 with both operands in shared memory reads
// it at its full rate, 128 bytes a clock.
//
// By counting, D = 128, of a step's 2,048 clocks of tensor cores in _kv_:
// exponentials 512, instructions 1,040, shared memory 1,792; and of 1,536 in _q_: 512,
// 760 and 1,024.
#include "attention_grad.cuh"
#include "wgmma.cuh"

const int STEP = 64;   // queries, or keys, of a stage
const int STAGES = 3;  // the one that is copied, the one in use, and the last one, whose products may still run
const int THREADS = 256;

template <int D> __device__ inline void grad_keys(const AttentionGradArgs &a, Result::Shared shared[2]) {
	typedef PanelTile<D, KEY_BLOCK> KTile;
	typedef PanelTile<D, STEP> QTile;
	DYNAMIC_SHARED(bf16, start);
	bf16 *memory = begin_at_pattern(start);
	const KTile k = {memory}, v = {memory + KTile::SIZE};
	bf16 *stages = memory + 2 * KTile::SIZE; // Q, then dOut, of each stage
	float *numbers = (float *)(stages + 2 * STAGES * QTile::SIZE); // LSE, then DOut·O
	const Keys<D, STEP> b(a);
	const int row = threadIdx.x / 32 * 16, group = group_row();

	const auto load = [&](int at, const typename Keys<D, STEP>::Step &s) {
		const int n = b.n(a, s), stage = at % STAGES;
		const QTile q = {stages + stage * 2 * QTile::SIZE}, dout = {q.p + QTile::SIZE};
		q.template load<THREADS>(b.queries(a, a.q, s), a.q.ld, n);
		dout.template load<THREADS>(b.queries(a, a.dout, s), a.dout.ld, n);
		b.load_numbers(a, numbers + stage * 2 * STEP, numbers + (stage * 2 + 1) * STEP, s);
		commit();
	};

	float sum_k[1][D / 8][4], sum_v[1][D / 8][4];
	u32 wp[STEP / 16][4], wd[STEP / 16][4];
	clear<1>(sum_k);
	clear<1>(sum_v);
	k.template load<THREADS>(b.k(a), a.k.ld, b.rows);
	v.template load<THREADS>(b.v(a), a.v.ld, b.rows);
	typename Keys<D, STEP>::Step now, next = b.first(a);
	load(0, next);
	for (int at = 0; at < b.all; at++) {
		wait_for<0>();
		show();
		__syncthreads(); // the stage is there, and nobody needs the one before the last any more
		now = next;
		next.advance(b);
		if (at + 1 < b.all)
			load(at + 1, next);
		const int stage = at % STAGES;
		const QTile q = {stages + stage * 2 * QTile::SIZE}, dout = {q.p + QTile::SIZE};
		const float *lse = numbers + stage * 2 * STEP, *dots = lse + STEP;

		float p[1][STEP / 8][4], d[1][STEP / 8][4];
		begin_products();
		begin_rows(p, k, group, q);
		commit_products();
		begin_rows(d, v, group, dout);
		commit_products();
		wait_products<1>(p, sum_k, sum_v);
		b.template weigh<1>(p, lse, row, now);
		pack(wp, p);
		begin_products();
		begin_weights(sum_v, wp, dout);
		commit_products();
		wait_products<1>(d);
		b.template grade<1>(d, p, dots);
		pack(wd, d);
		begin_products();
		begin_weights(sum_k, wd, q);
		commit_products();
	}
	wait_products<0>(sum_k, sum_v);
	b.template end<1>(a, sum_k, sum_v, memory, shared);
}

KERNEL(attention_grad_kv_wgmma_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<64>(a, shared);
}

KERNEL(attention_grad_kv_wgmma_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared[2];
	grad_keys<128>(a, shared);
}

template <int D> __device__ inline void grad_queries(const AttentionGradArgs &a, Result::Shared &shared) {
	typedef PanelTile<D, QUERY_BLOCK> QTile;
	typedef PanelTile<D, STEP> KTile;
	DYNAMIC_SHARED(bf16, start);
	bf16 *memory = begin_at_pattern(start);
	const QTile q = {memory}, dout = {memory + QTile::SIZE};
	bf16 *stages = memory + 2 * QTile::SIZE; // K, then V, of each stage
	const GradQueries<D, STEP, 1> b(a);

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
	load(0);
	wait_for<1>();
	__syncthreads();
	q.read(qs, b.row());
	dout.read(douts, b.row());
	for (int at = 0; at < b.steps; at++) {
		wait_for<0>();
		show();
		__syncthreads(); // the stage is there, and nobody needs the one before the last any more
		if (at + 1 < b.steps)
			load(at + 1);
		const KTile k = {stages + at % STAGES * 2 * KTile::SIZE}, v = {k.p + KTile::SIZE};

		float p[1][STEP / 8][4], d[1][STEP / 8][4];
		begin_products();
		begin_rows<D, STEP>(p, qs, k);
		commit_products();
		begin_rows<D, STEP>(d, douts, v);
		commit_products();
		wait_products<1>(p, sum);
		b.weigh(p, at);
		settle<STEP / 2>(p[0][0]);
		wait_products<0>(d);
		b.grade(d, p);
		pack(w, d);
		begin_products();
		begin_weights(sum, w, k);
		commit_products();
	}
	wait_products<0>(sum);
	b.end(a, sum, memory, shared);
}

KERNEL(attention_grad_q_wgmma_64, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<64>(a, shared);
}

KERNEL(attention_grad_q_wgmma_128, AttentionGradArgs, 256, 1) {
	__shared__ Result::Shared shared;
	grad_queries<128>(a, shared);
}
