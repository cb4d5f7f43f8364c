// What a thread begins and does not wait for, as cuda_host.h runs it: copies to
// shared memory (cp.async) and the products of warpgroups (wgmma). The rules are those
// of the PTX ISA; what it leaves undefined ends the launch with a message, or gives
// NaN.
//
// A copy is done at once, and is visible to products once its thread has waited for
// it and then shown it (fence.proxy.async): before, a product that reads it fails.
//
// A product is done as late as the wait for it allows. What it reads from shared
// memory, and from registers of A, must not have changed until then; its sums are
// NaN meanwhile.
#pragma once

namespace octet_host {

const unsigned GROUP = 128;      // threads of a warpgroup
const unsigned GROUPS = MOST / GROUP;
const unsigned QUEUE = 64;       // products that a warpgroup may have begun
const unsigned COLUMNS = 128;    // of a product, at most
const unsigned COMMITS = 16;     // groups of copies, or of products, that are remembered
const unsigned MATRICES = 8;     // of sums, under way

// What a thread has begun, and how much of it was committed: end[n % COMMITS] is
// the number of the first after group n. Groups are counted from 1.
struct Begun {
	unsigned n, groups, end[COMMITS];

	void commit() { end[++groups % COMMITS] = n; }
	// done is how many are, once at most so many groups are under way.
	unsigned done(unsigned pending) const { return groups > pending ? end[(groups - pending) % COMMITS] : 0; }
};

struct Async {
	Begun copies, products;
	unsigned arrived, shown; // copies
	bool fenced;             // products may begin
};

// Sums are a matrix of sums while products add to it.
struct Sums {
	float *home[GROUP]; // where the threads have theirs
	unsigned last;      // number of the last product, plus 1
	unsigned columns;   // 0: this one is free
	float value[64][COLUMNS];
};

struct Operands {
	uint64_t a, b;          // descriptors
	const unsigned *in;     // A in registers: the thread's
	bool add;               // else the sums begin anew
	bool b_by_columns;      // imm-trans-b
};

struct Product {
	Operands of;
	Sums *sums;
	unsigned columns, threads; // threads: that have begun it
	const unsigned *in[GROUP];
};

struct Warpgroup {
	Product queue[QUEUE];
	unsigned done, waiting, until, generation;
	Sums sums[MATRICES];
};

static Async asyncs[MOST];
static Warpgroup warpgroups[GROUPS];
// Who copied to 16 bytes of shared memory: the thread, plus 1, and the number of
// its copy, plus 1, above.
static uint64_t copier[(BASE + SHARED) / 16];
static bool used; // any of this, by a block

static inline unsigned shared_offset(const void *p) { return (unsigned)((const unsigned char *)p - shared_storage); }

static void reset_async() {
	if (!used)
		return;
	used = false;
	memset(asyncs, 0, threads * sizeof *asyncs);
	memset(copier, 0, (BASE + shared_bytes + 15) / 16 * sizeof *copier);
	for (unsigned i = 0; i < threads / GROUP; i++) {
		Warpgroup &g = warpgroups[i];
		g.done = g.waiting = g.until = g.generation = 0;
		for (Product &p : g.queue)
			p.threads = 0;
		for (Sums &s : g.sums)
			s.columns = 0;
	}
}

// unfinished says what a block that has ended did not wait for.
static const char *unfinished() {
	for (unsigned i = 0; used && i < threads; i++)
		if (asyncs[i].products.n != warpgroups[i / GROUP].done)
			return "a block ended before its products";
	return nullptr;
}

static inline void copied(const void *to) {
	Begun &c = asyncs[current].copies;
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
static inline void show() { asyncs[current].shown = asyncs[current].arrived; }

static inline float from_bf16(uint16_t code) {
	const uint32_t bits = (uint32_t)code << 16;
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

// chunk is what a product reads at an address: eight elements.
static const uint16_t *chunk(unsigned at) {
	at ^= (at >> 7 & 7) << 4; // the swizzle
	if (at % 16 || at < BASE || at + 16 > BASE + shared_bytes)
		fail("a product reads what is not in the dynamic shared memory");
	const uint64_t by = copier[at / 16];
	if (by && (by >> 16) > asyncs[(by & 0xffff) - 1].shown)
		fail("a product reads a copy that was not waited for and then shown by fence.proxy.async");
	return (const uint16_t *)(shared_storage + at);
}

// Matrix is a descriptor: CUTLASS's mma_sm90_desc.hpp has it as a bit field.
struct Matrix {
	unsigned start, leading, stride;

	explicit Matrix(uint64_t d) : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4) {
		if (d >> 62 != 1)
			fail("a product's operand without the swizzle of 128 bytes, which alone is emulated");
		if (d >> 49 & 7 || start % 1024 / 128)
			fail("a product's operand that does not begin where the swizzle does");
		if (stride % 1024 || leading % 16)
			fail("distances of a product's operand that cut the pattern of the swizzle");
	}

	// by_rows reads n rows of 16 elements that follow each other ("K-major"). Eight
	// rows are 128 bytes apart, and eights of them the stride.
	void by_rows(unsigned n, float *to, unsigned row, unsigned element) const {
		for (unsigned i = 0; i < n; i++)
			for (unsigned half = 0; half < 2; half++) {
				const uint16_t *x = chunk(start + i % 8 * 128 + i / 8 * stride + half * 16);
				for (unsigned e = 0; e < 8; e++)
					to[i * row + (half * 8 + e) * element] = from_bf16(x[e]);
			}
	}

	// by_columns reads 16 columns of n elements ("MN-major"): 64 that follow each
	// other, and further ones at the leading distance. Eight columns are 128 bytes
	// apart, and eights of them the stride.
	void by_columns(unsigned n, float *to) const {
		for (unsigned k = 0; k < 16; k++)
			for (unsigned i = 0; i < n / 8; i++) {
				const uint16_t *x = chunk(start + i % 8 * 16 + i / 8 * leading + k % 8 * 128 + k / 8 * stride);
				for (unsigned e = 0; e < 8; e++)
					to[k * n + i * 8 + e] = from_bf16(x[e]);
			}
	}
};

// each_sum calls f for a thread's sums and their places.
template <class F> static inline void each_sum(unsigned thread, unsigned columns, const F &f) {
	const unsigned row = thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
	for (unsigned i = 0; i < columns / 2; i++)
		f(i, row + i / 2 % 2 * 8, col + i / 4 * 8 + i % 2);
}

typedef float Eight __attribute__((vector_size(32), aligned(4)));

static void perform(const Product &p) {
	static float a[64][16], b[16 * COLUMNS];
	const unsigned n = p.columns;
	if (p.of.in) {
		for (unsigned t = 0; t < GROUP; t++)
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

static inline void begin_products() {
	used = true;
	asyncs[current].fenced = true;
}
static inline void commit_products() { asyncs[current].products.commit(); }

// multiply begins a product of 64 rows with so many columns.
static inline void multiply(float *c, unsigned columns, Operands of) {
	Async &mine = asyncs[current];
	Warpgroup &g = warpgroups[current / GROUP];
	const unsigned thread = current % GROUP, number = mine.products.n++;
	if (threads % GROUP)
		fail("a product in a block that is not made of warpgroups");
	if (!mine.fenced)
		fail("a product without wgmma.fence between it and the last wait");
	if (number - g.done >= QUEUE)
		fail("more products under way than are emulated");
	Sums *sums = nullptr; // those that are at c already
	for (Sums &s : g.sums)
		if (s.columns && s.home[thread] == c)
			sums = &s;
	Product &p = g.queue[number % QUEUE];
	if (p.threads++ == 0) {
		p.of = of;
		p.columns = columns;
		p.sums = sums;
		for (Sums &s : g.sums)
			if (!p.sums && !s.columns) {
				p.sums = &s;
				s.columns = columns;
				memset(s.home, 0, sizeof s.home);
			}
		if (!p.sums)
			fail("more matrices of sums under way than are emulated");
		p.sums->last = number + 1;
	}
	if (p.of.a != of.a || p.of.b != of.b || p.of.add != of.add || !p.of.in != !of.in || p.columns != columns ||
	    (sums && sums != p.sums) || p.sums->columns != columns)
		fail("the threads of a warpgroup begin different products");
	p.in[thread] = of.in;
	if (!sums) {
		p.sums->home[thread] = c;
		each_sum(thread, columns, [&](unsigned i, unsigned row, unsigned col) {
			p.sums->value[row][col] = c[i];
			c[i] = NAN;
		});
	}
}

// wait_products waits for the warpgroup. The last thread does what is due.
static inline void wait_products(unsigned pending) {
	Warpgroup &g = warpgroups[current / GROUP];
	const unsigned until = asyncs[current].products.done(pending), mine = g.generation;
	asyncs[current].fenced = false; // registers may be touched now
	if (g.waiting && until != g.until)
		fail("the threads of a warpgroup wait for different products");
	g.until = until;
	if (++g.waiting < GROUP) {
		while (g.generation == mine)
			yield();
		return;
	}
	for (; g.done < until; g.done++) {
		Product &p = g.queue[g.done % QUEUE];
		if (p.threads != GROUP)
			fail("a product that not all threads of the warpgroup began");
		perform(p);
		p.threads = 0;
	}
	for (Sums &s : g.sums) {
		if (!s.columns || s.last > until)
			continue;
		for (unsigned t = 0; t < GROUP; t++)
			each_sum(t, s.columns, [&](unsigned i, unsigned row, unsigned col) { s.home[t][i] = s.value[row][col]; });
		s.columns = 0;
	}
	g.waiting = 0;
	g.generation++;
	idle = 0;
}

} // namespace octet_host
