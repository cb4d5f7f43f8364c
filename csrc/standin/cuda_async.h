// Asynchronous operations of cuda_host.h: copies to shared memory (cp.async), and wgmma.
// The rules are those of the PTX ISA; undefined behaviour ends the launch with a message,
// or gives NaN.
//
// A copy runs at once. A wgmma may read it after its thread has waited for it and then
// executed fence.proxy.async; an earlier wgmma fails.
//
// A wgmma runs as late as possible: in the wait for it. Shared memory and A registers that
// it reads must not change until then; its accumulators are NaN meanwhile.
#pragma once

namespace octet_host {

const unsigned WARPGROUP = 128;  // threads
const unsigned WARPGROUPS = MAX_THREADS / WARPGROUP;
const unsigned QUEUE = 64;       // maximum of pending wgmmas of a warpgroup
const unsigned COLUMNS = 128;    // maximum of a wgmma
const unsigned COMMITS = 16;     // remembered groups of copies, or of wgmmas
const unsigned MATRICES = 8;     // maximum of accumulators in use

// Issued counts a thread's operations and committed groups: end[n % COMMITS] is the number
// of the first operation after group n. Groups are counted from 1.
struct Issued {
	unsigned n, groups, end[COMMITS];

	void commit() { end[++groups % COMMITS] = n; }
	// done returns how many operations have completed when at most `pending` groups have not.
	unsigned done(unsigned pending) const { return groups > pending ? end[(groups - pending) % COMMITS] : 0; }
};

struct Async {
	Issued copies, wgmmas;
	unsigned arrived, visible; // copies: waited for; visible to wgmma
	bool fenced;               // wgmma.fence was executed
};

// Accumulator is a matrix that wgmmas add to.
struct Accumulator {
	float *home[WARPGROUP]; // the threads' registers
	unsigned last;          // number of the last wgmma, plus 1
	unsigned columns;       // 0: free
	float value[64][COLUMNS];
};

struct Operands {
	uint64_t a, b;          // descriptors
	const unsigned *in;     // the thread's registers of A; null: A is in shared memory
	bool add;               // false: the accumulator is zeroed first
	bool b_by_columns;      // imm-trans-b
};

struct Wgmma {
	Operands of;
	Accumulator *sums;
	unsigned columns, threads; // threads: that have issued it
	const unsigned *in[WARPGROUP];
};

struct Warpgroup {
	Wgmma queue[QUEUE];
	unsigned done, waiting, until, generation;
	Accumulator sums[MATRICES];
};

static Async asyncs[MAX_THREADS];
static Warpgroup warpgroups[WARPGROUPS];
// For each 16 bytes of shared memory the last copy: bits 0-15 hold its thread, plus 1, the
// bits above its number, plus 1.
static uint64_t copier[(BASE + SHARED) / 16];
static bool used; // by the current block

static inline unsigned shared_offset(const void *p) { return (unsigned)((const unsigned char *)p - shared_storage); }

static void reset_async() {
	if (!used)
		return;
	used = false;
	memset(asyncs, 0, threads * sizeof *asyncs);
	memset(copier, 0, (BASE + shared_bytes + 15) / 16 * sizeof *copier);
	for (unsigned i = 0; i < threads / WARPGROUP; i++) {
		Warpgroup &g = warpgroups[i];
		g.done = g.waiting = g.until = g.generation = 0;
		for (Wgmma &p : g.queue)
			p.threads = 0;
		for (Accumulator &s : g.sums)
			s.columns = 0;
	}
}

// unfinished returns an error if a block ended without a wait for its wgmmas.
static const char *unfinished() {
	for (unsigned i = 0; used && i < threads; i++)
		if (asyncs[i].wgmmas.n != warpgroups[i / WARPGROUP].done)
			return "a block ended before its wgmmas completed";
	return nullptr;
}

static inline void copied(const void *to) {
	Issued &c = asyncs[current].copies;
	used = true;
	copier[shared_offset(to) / 16] = (uint64_t)++c.n << 16 | (current + 1);
}
static inline void commit_copies() {
	used = true;
	asyncs[current].copies.commit();
}
static inline void wait_copies(unsigned pending) {
	Async &a = asyncs[current];
	const unsigned n = a.copies.done(pending);
	if (n > a.arrived)
		a.arrived = n;
}
static inline void publish_copies() { asyncs[current].visible = asyncs[current].arrived; }

static inline float from_bf16(uint16_t code) {
	const uint32_t bits = (uint32_t)code << 16;
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

// chunk returns the eight elements that a wgmma reads at an address.
static const uint16_t *chunk(unsigned at) {
	at ^= (at >> 7 & 7) << 4; // the swizzle
	if (at % 16 || at < BASE || at + 16 > BASE + shared_bytes)
		fail("a wgmma reads outside the dynamic shared memory");
	const uint64_t by = copier[at / 16];
	if (by && (by >> 16) > asyncs[(by & 0xffff) - 1].visible)
		fail("a wgmma reads a copy without a wait and then fence.proxy.async");
	return (const uint16_t *)(shared_storage + at);
}

// Matrix is a decoded descriptor: see the bit field in CUTLASS's mma_sm90_desc.hpp.
struct Matrix {
	unsigned start, leading, stride;

	explicit Matrix(uint64_t d) : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4) {
		if (d >> 62 != 1)
			fail("a wgmma operand without the 128-byte swizzle: only that swizzle is emulated");
		if (d >> 49 & 7 || start % 1024 / 128)
			fail("a wgmma operand does not begin at a swizzle pattern");
		if (stride % 1024 || leading % 16)
			fail("strides of a wgmma operand are not multiples of the swizzle pattern");
	}

	// by_rows reads n rows of 16 consecutive elements ("K-major"). Rows are 128 bytes apart,
	// groups of eight rows by the stride.
	void by_rows(unsigned n, float *to, unsigned row, unsigned element) const {
		for (unsigned i = 0; i < n; i++)
			for (unsigned half = 0; half < 2; half++) {
				const uint16_t *x = chunk(start + i % 8 * 128 + i / 8 * stride + half * 16);
				for (unsigned e = 0; e < 8; e++)
					to[i * row + (half * 8 + e) * element] = from_bf16(x[e]);
			}
	}

	// by_columns reads 16 columns of n elements ("MN-major"): 64 consecutive ones, then more
	// at the leading distance. Columns are 128 bytes apart, groups of eight columns by the
	// stride.
	void by_columns(unsigned n, float *to) const {
		for (unsigned k = 0; k < 16; k++)
			for (unsigned i = 0; i < n / 8; i++) {
				const uint16_t *x = chunk(start + i % 8 * 16 + i / 8 * leading + k % 8 * 128 + k / 8 * stride);
				for (unsigned e = 0; e < 8; e++)
					to[k * n + i * 8 + e] = from_bf16(x[e]);
			}
	}
};

// each_sum calls f(i, row, column) for the accumulator registers of a thread.
template <class F> static inline void each_sum(unsigned thread, unsigned columns, const F &f) {
	const unsigned row = thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
	for (unsigned i = 0; i < columns / 2; i++)
		f(i, row + i / 2 % 2 * 8, col + i / 4 * 8 + i % 2);
}

typedef float Eight __attribute__((vector_size(32), aligned(4)));

static void perform(const Wgmma &p) {
	static float a[64][16], b[16 * COLUMNS];
	const unsigned n = p.columns;
	if (p.of.in) {
		for (unsigned t = 0; t < WARPGROUP; t++)
			for (unsigned i = 0; i < 8; i++) {
				const unsigned row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, k = t % 4 * 2 + i / 4 * 8 + i % 2;
				a[row][k] = from_bf16((uint16_t)(p.in[t][i / 2] >> i % 2 * 16));
			}
	} else {
		Matrix(p.of.a).by_rows(64, a[0], 16, 1);
	}
	if (p.of.b_by_columns)
		Matrix(p.of.b).by_columns(n, b);
	else
		Matrix(p.of.b).by_rows(n, b, 1, n);
	for (unsigned row = 0; row < 64; row++) {
		float *const sum = p.sums->value[row];
		if (!p.of.add)
			memset(sum, 0, n * sizeof *sum);
		for (unsigned k = 0; k < 16; k++)
			for (unsigned i = 0; i < n; i += 8)
				*(Eight *)(sum + i) += *(const Eight *)(b + k * n + i) * a[row][k];
	}
}

static inline void fence_wgmmas() {
	used = true;
	asyncs[current].fenced = true;
}
static inline void commit_wgmmas() { asyncs[current].wgmmas.commit(); }

// multiply issues a wgmma of 64 rows.
static inline void multiply(float *c, unsigned columns, Operands of) {
	Async &mine = asyncs[current];
	Warpgroup &g = warpgroups[current / WARPGROUP];
	const unsigned thread = current % WARPGROUP, number = mine.wgmmas.n++;
	if (threads % WARPGROUP)
		fail("wgmma in a block that is not a multiple of 128 threads");
	if (!mine.fenced)
		fail("wgmma without wgmma.fence after the last wait");
	if (number - g.done >= QUEUE)
		fail("more pending wgmmas than the emulation supports");
	Accumulator *sums = nullptr; // that already has c
	for (Accumulator &s : g.sums)
		if (s.columns && s.home[thread] == c)
			sums = &s;
	Wgmma &p = g.queue[number % QUEUE];
	if (p.threads++ == 0) {
		p.of = of;
		p.columns = columns;
		p.sums = sums;
		for (Accumulator &s : g.sums)
			if (!p.sums && !s.columns) {
				p.sums = &s;
				s.columns = columns;
				memset(s.home, 0, sizeof s.home);
			}
		if (!p.sums)
			fail("more accumulators in use than the emulation supports");
		p.sums->last = number + 1;
	}
	if (p.of.a != of.a || p.of.b != of.b || p.of.add != of.add || !p.of.in != !of.in || p.columns != columns ||
	    (sums && sums != p.sums) || p.sums->columns != columns)
		fail("the threads of a warpgroup issue different wgmmas");
	p.in[thread] = of.in;
	if (!sums) {
		p.sums->home[thread] = c;
		each_sum(thread, columns, [&](unsigned i, unsigned row, unsigned col) {
			p.sums->value[row][col] = c[i];
			c[i] = NAN;
		});
	}
}

// wait_wgmmas waits for all threads of the warpgroup. The last one runs the wgmmas.
static inline void wait_wgmmas(unsigned pending) {
	Warpgroup &g = warpgroups[current / WARPGROUP];
	const unsigned until = asyncs[current].wgmmas.done(pending), mine = g.generation;
	asyncs[current].fenced = false; // the thread may use its registers now
	if (g.waiting && until != g.until)
		fail("the threads of a warpgroup wait for different wgmmas");
	g.until = until;
	if (++g.waiting < WARPGROUP) {
		while (g.generation == mine)
			yield();
		return;
	}
	for (; g.done < until; g.done++) {
		Wgmma &p = g.queue[g.done % QUEUE];
		if (p.threads != WARPGROUP)
			fail("not all threads of the warpgroup issued a wgmma");
		perform(p);
		p.threads = 0;
	}
	for (Accumulator &s : g.sums) {
		if (!s.columns || s.last > until)
			continue;
		for (unsigned t = 0; t < WARPGROUP; t++)
			each_sum(t, s.columns, [&](unsigned i, unsigned row, unsigned col) { s.home[t][i] = s.value[row][col]; });
		s.columns = 0;
	}
	g.waiting = 0;
	g.generation++;
	idle = 0;
}

} // namespace octet_host
