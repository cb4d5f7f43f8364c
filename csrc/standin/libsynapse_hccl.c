//go:build ignore

// Stand-in for libSynapse.so: HCCL, collectives between processes of one machine. Every
// rank has a socket to every other; a collective is everybody sending to everybody,
// and is done in its stream's turn, when somebody waits. Sums go by ascending rank, in
// F32 for floats. What ranks do together is compared: a rank that asks for another
// collective, and one that has died, is an error and no hang.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// hcclResult_t.
typedef enum {
	HCCL_SUCCESS = 0,
	HCCL_NO_DEVICE = 1,
	HCCL_UNSUPPORTED = 2,
	HCCL_SYSTEM = 5,
	HCCL_INVALID_ARGUMENT = 7,
	HCCL_INVALID_USAGE = 8,
	HCCL_SOCKET = 9,
	HCCL_SYNAPSE_TERMINATED = 15,
} result;

// hcclDataType_t and hcclRedOp_t.
enum { HCCL_I32 = 2, HCCL_U32 = 3, HCCL_F16 = 6, HCCL_F32 = 7, HCCL_BF16 = 9 };
enum { SUM = 0, MIN = 2, MAX = 3, NONE = 5 };

enum { MAX_RANKS = 64, MAX_GROUP = 1024 };

typedef struct {
	char name[1024];
	uint64_t length;
} unique_id;

_Static_assert(sizeof(unique_id) == 1032, "hcclUniqueId");

typedef struct {
	object object;
	int ranks, rank;
	int peers[MAX_RANKS]; // sockets
	uint64_t done;        // collectives, the same number on all ranks
	result error;
} comm;

// enter_hccl is enter with HCCL's codes.
static result enter_hccl(void) {
	const status s = enter();
	return s == SYNAPSE_TERMINATED ? HCCL_SYNAPSE_TERMINATED : s ? HCCL_INVALID_USAGE : HCCL_SUCCESS;
}

static result leave_hccl(result r) {
	leave(SUCCESS);
	return r;
}
#define ENTER_HCCL()                              \
	do {                                      \
		const result refused = enter_hccl(); \
		if (refused)                      \
			return refused;           \
	} while (0)

result hcclGetVersion(int *version) {
	*version = 12400;
	return HCCL_SUCCESS;
}

const char *hcclGetErrorString(result r) {
	static const char *const texts[] = {"success", "no device", "unsupported", "out of memory", "unhandled synapse error", "system error", "internal error",
	                                    "invalid argument", "invalid usage", "socket error", "libfabric error", "try again", "busy", "", "stream error", "synapse terminated", "port down"};
	return r < sizeof texts / sizeof *texts ? texts[r] : "unknown";
}

// Time: everything ends within a deadline, which begins anew with every progress.

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double deadline(void) { return now() + setting("STANDIN_HCCL_SECONDS", 20); }

static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }

// Communicators.

result hcclGetUniqueId(unique_id *id) {
	static unsigned made;
	struct timespec t;
	ENTER_HCCL();
	clock_gettime(CLOCK_REALTIME, &t);
	memset(id, 0, sizeof *id);
	id->length = snprintf(id->name, sizeof id->name, "standin-hccl-%d-%lx-%lx-%u", getpid(), (long)t.tv_sec, (long)t.tv_nsec, made++);
	return leave_hccl(HCCL_SUCCESS);
}

// address_of is where a rank listens: a name in no file system.
static socklen_t address_of(struct sockaddr_un *a, const unique_id *id, int rank) {
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.80s-%d", id->name, rank);
	return offsetof(struct sockaddr_un, sun_path) + 1 + n;
}

// whole reads or writes a piece of a few bytes.
static bool whole(int fd, void *p, size_t bytes, bool sends, double until) {
	for (size_t done = 0; done < bytes;) {
		struct pollfd f = {fd, sends ? POLLOUT : POLLIN, 0};
		if (poll(&f, 1, 10) < 0 || now() > until)
			return false;
		if (!f.revents)
			continue;
		const ssize_t n = sends ? send(fd, (char *)p + done, bytes - done, MSG_NOSIGNAL) : recv(fd, (char *)p + done, bytes - done, 0);
		if (n <= 0)
			return false;
		done += n;
	}
	return true;
}

typedef struct {
	int32_t rank, ranks;
} hello;

static bool connect_to(comm *c, const unique_id *id, int peer, double until) {
	struct sockaddr_un a;
	const socklen_t bytes = address_of(&a, id, peer);
	hello h = {c->rank, c->ranks}, other;
	for (; now() < until; nap()) {
		const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, (struct sockaddr *)&a, bytes) == 0) {
			c->peers[peer] = fd;
			return whole(fd, &h, sizeof h, true, until) && whole(fd, &other, sizeof other, false, until) && other.rank == peer && other.ranks == c->ranks;
		}
		close(fd);
	}
	return false;
}

static bool accept_from(comm *c, int listener, double until) {
	struct pollfd f = {listener, POLLIN, 0};
	while (now() < until)
		if (poll(&f, 1, 10) > 0) {
			hello h, mine = {c->rank, c->ranks};
			const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			if (fd < 0 || !whole(fd, &h, sizeof h, false, until) || h.ranks != c->ranks || h.rank <= c->rank || h.rank >= c->ranks || c->peers[h.rank] >= 0) {
				close(fd);
				return false;
			}
			c->peers[h.rank] = fd;
			return whole(fd, &mine, sizeof mine, true, until);
		}
	return false;
}

static bool meet(comm *c, const unique_id *id) {
	const double until = deadline();
	struct sockaddr_un a;
	const socklen_t bytes = address_of(&a, id, c->rank);
	const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool met = listener >= 0 && bind(listener, (struct sockaddr *)&a, bytes) == 0 && listen(listener, MAX_RANKS) == 0;
	for (int peer = 0; peer < c->rank && met; peer++)
		met = connect_to(c, id, peer, until);
	for (int peer = c->rank + 1; peer < c->ranks && met; peer++)
		met = accept_from(c, listener, until);
	close(listener);
	return met;
}

static void comm_free(comm *c) {
	for (int i = 0; i < MAX_RANKS; i++)
		if (c->peers[i] >= 0)
			close(c->peers[i]);
	object_free(c);
}

result hcclCommInitRank(void **out, int ranks, unique_id id, int rank) {
	ENTER_HCCL();
	if (!is_device(0))
		return leave_hccl(HCCL_NO_DEVICE);
	if (!out || ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks || id.length == 0 || id.length >= sizeof id.name)
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	comm *c = object_new(COMM, sizeof *c);
	c->ranks = ranks;
	c->rank = rank;
	memset(c->peers, -1, sizeof c->peers);
	if (!meet(c, &id)) {
		complain("rank %d of %d has not met the others", rank, ranks);
		comm_free(c);
		return leave_hccl(HCCL_SOCKET);
	}
	*out = c;
	return leave_hccl(HCCL_SUCCESS);
}

result hcclCommDestroy(void *handle) {
	ENTER_HCCL();
	comm *c = object_find(handle, COMM);
	if (!c)
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	finish_all();
	comm_free(c);
	return leave_hccl(lost() ? HCCL_SYNAPSE_TERMINATED : HCCL_SUCCESS);
}

result hcclCommAbort(void *handle) { return hcclCommDestroy(handle); }

result hcclCommFinalize(void *handle) {
	ENTER_HCCL();
	if (!object_find(handle, COMM))
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	finish_all();
	return leave_hccl(lost() ? HCCL_SYNAPSE_TERMINATED : HCCL_SUCCESS);
}

static result ask(void *handle, int *value, size_t field) {
	ENTER_HCCL();
	const comm *c = object_find(handle, COMM);
	if (!c || !value)
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	*value = *(const int *)((const char *)c + field);
	return leave_hccl(HCCL_SUCCESS);
}

result hcclCommCount(void *c, int *ranks) { return ask(c, ranks, offsetof(comm, ranks)); }
result hcclCommUserRank(void *c, int *rank) { return ask(c, rank, offsetof(comm, rank)); }

result hcclCommSynDevice(void *c, int *device) {
	const result r = ask(c, device, offsetof(comm, rank));
	if (!r)
		*device = 0;
	return r;
}

// It is there to ask after an error, when nothing else answers any more.
result hcclCommGetAsyncError(void *handle, int *error) {
	const comm *c = object_find(handle, COMM);
	if (!c || !error)
		return HCCL_INVALID_ARGUMENT;
	*error = c->error;
	return HCCL_SUCCESS;
}

// Exchanges. A message is a head, by which both sides see that they mean the same, and
// bytes.

enum kind_of_op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER, SEND, RECV };

typedef struct {
	uint32_t kind, type, reduction, root;
	uint64_t done, bytes;
} head; // without padding: heads are compared byte by byte

typedef struct {
	int peer;
	bool sends;
	head head;
	unsigned char *data;
	uint64_t at; // bytes of head and data that are done
} message;

// move takes a message on as far as that goes without waiting. False: it broke.
static bool move(int fd, message *m, const head *expected) {
	for (;;) {
		const bool in_head = m->at < sizeof m->head;
		char *p = in_head ? (char *)&m->head + m->at : (char *)m->data + (m->at - sizeof m->head);
		const uint64_t end = in_head ? sizeof m->head : sizeof m->head + m->head.bytes;
		if (!in_head && !m->sends && memcmp(&m->head, expected, sizeof m->head)) {
			complain("rank %d does something else: kind %u, type %u, reduction %u, %lu bytes, not kind %u, type %u, reduction %u, %lu bytes", m->peer, m->head.kind, m->head.type,
			         m->head.reduction, (unsigned long)m->head.bytes, expected->kind, expected->type, expected->reduction, (unsigned long)expected->bytes);
			return false;
		}
		if (m->at == end)
			return true;
		const ssize_t n = m->sends ? send(fd, p, end - m->at, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, p, end - m->at, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (n <= 0) {
			complain("rank %d is gone", m->peer);
			return false;
		}
		m->at += n;
	}
}

static bool is_done(const message *m) { return m->at == sizeof m->head + m->head.bytes && m->at >= sizeof m->head; }

// exchange sends and receives all messages; those of one peer and direction one after
// the other.
static bool exchange(comm *c, message *messages, uint32_t n) {
	head *expected = malloc((n + 1) * sizeof *expected);
	bool *done = calloc(n + 1, sizeof *done);
	for (uint32_t i = 0; i < n; i++) {
		expected[i] = messages[i].head;
		if (!messages[i].sends)
			memset(&messages[i].head, 0, sizeof(head));
	}
	double until = deadline();
	bool fine = true;
	for (uint32_t left = n; left && fine;) {
		struct pollfd polls[2 * MAX_RANKS];
		uint32_t active[2 * MAX_RANKS], actives = 0;
		bool taken[2][MAX_RANKS] = {0};
		for (uint32_t i = 0; i < n; i++) {
			const message *m = &messages[i];
			if (done[i] || taken[m->sends][m->peer])
				continue;
			taken[m->sends][m->peer] = true;
			polls[actives] = (struct pollfd){c->peers[m->peer], m->sends ? POLLOUT : POLLIN, 0};
			active[actives++] = i;
		}
		if (poll(polls, actives, 100) < 0 && errno != EINTR)
			fine = false;
		for (uint32_t i = 0; i < actives && fine; i++) {
			message *m = &messages[active[i]];
			const uint64_t before = m->at;
			if (!polls[i].revents)
				continue;
			fine = move(c->peers[m->peer], m, &expected[active[i]]);
			if (m->at != before)
				until = deadline();
			if (fine && is_done(m)) {
				done[active[i]] = true;
				left--;
			}
		}
		if (fine && now() > until) {
			complain("a collective waits for rank %d", messages[active[0]].peer);
			fine = false;
		}
	}
	free(expected);
	free(done);
	return fine;
}

// Collectives.

typedef struct {
	comm *comm;
	enum kind_of_op kind;
	uint64_t from, to; // addresses
	uint64_t count;    // elements of what the call counts
	uint32_t type, reduction, root;
} op;

static uint32_t element_type(uint32_t type) {
	switch (type) {
	case HCCL_I32: return I32;
	case HCCL_U32: return U32;
	case HCCL_F16: return F16;
	case HCCL_F32: return F32;
	case HCCL_BF16: return BF16;
	}
	return 0;
}

// bytes_from and bytes_to are how large an op's buffers are.
static uint64_t bytes_from(const op *o) {
	const uint64_t bytes = o->count * type_size(element_type(o->type));
	if (o->kind == RECV || o->kind == BARRIER || (o->kind == BROADCAST && (int)o->root != o->comm->rank))
		return 0;
	return o->kind == REDUCE_SCATTER ? bytes * o->comm->ranks : bytes;
}

static uint64_t bytes_to(const op *o) {
	const uint64_t bytes = o->count * type_size(element_type(o->type));
	return o->kind == ALL_GATHER ? bytes * o->comm->ranks : o->kind == SEND || o->kind == BARRIER ? 0 : bytes;
}

static float reduced(uint32_t reduction, float a, float b) {
	return reduction == SUM ? a + b : reduction == MIN ? (b < a || b != b ? b : a) : (b > a || b != b ? b : a);
}

static int64_t reduced_integer(uint32_t reduction, int64_t a, int64_t b) {
	return reduction == SUM ? a + b : reduction == MIN ? (b < a ? b : a) : (b > a ? b : a);
}

// reduce folds the parts of all ranks, which lie behind each other.
static void reduce(void *to, const unsigned char *parts, uint64_t n, const op *o) {
	const uint32_t type = element_type(o->type);
	const uint64_t bytes = n * type_size(type);
	const operand out = {.type = type, .data = to};
	for (uint64_t i = 0; i < n; i++) {
		if (type == I32 || type == U32) {
			int64_t sum = 0;
			for (int r = 0; r < o->comm->ranks; r++) {
				const unsigned char *p = parts + r * bytes + i * 4;
				const int64_t x = type == I32 ? *(const int32_t *)p : (int64_t) *(const uint32_t *)p;
				sum = r ? reduced_integer(o->reduction, sum, x) : x;
			}
			((uint32_t *)to)[i] = sum;
			continue;
		}
		float sum = 0;
		for (int r = 0; r < o->comm->ranks; r++) {
			const operand part = {.type = type, .data = (void *)(parts + r * bytes)};
			const float x = element(&part, i, false);
			sum = r ? reduced(o->reduction, sum, x) : x;
		}
		store(&out, i, &sum, 1, false);
	}
}

// run_collective has every rank send its part of from to every other.
static bool run_collective(const op *o, unsigned char *from, unsigned char *to) {
	comm *c = o->comm;
	const uint64_t part = o->count * type_size(element_type(o->type));
	unsigned char *parts = malloc(part * c->ranks + 1);
	message messages[2 * MAX_RANKS];
	uint32_t n = 0;
	const head h = {o->kind, o->type, o->reduction, o->root, c->done++, part};
	for (int peer = 0; peer < c->ranks; peer++) {
		unsigned char *mine = o->kind == REDUCE_SCATTER ? from + peer * part : from;
		if (peer == c->rank) {
			if (part && from)
				memcpy(parts + peer * part, mine, part);
			continue;
		}
		if (o->kind != BROADCAST || (int)o->root == c->rank)
			messages[n++] = (message){peer, true, h, mine, 0};
		if (o->kind != BROADCAST || (int)o->root == peer)
			messages[n++] = (message){peer, false, h, parts + peer * part, 0};
	}
	const bool fine = exchange(c, messages, n);
	if (fine && (o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER))
		reduce(to, parts, o->count, o);
	else if (fine && o->kind == ALL_GATHER)
		memcpy(to, parts, part * c->ranks);
	else if (fine && o->kind == BROADCAST)
		memcpy(to, parts + o->root * part, part);
	free(parts);
	return fine;
}

// A group's ops are one piece of a stream's work: sends and receives that follow each
// other are done together.
typedef struct {
	uint32_t n;
	op ops[];
} group;

static unsigned char *buffer(uint64_t address, uint64_t bytes) { return bytes ? device_memory(address, bytes) : NULL; }

static bool run_transfers(const op *ops, uint32_t n) {
	message *messages = malloc(n * sizeof *messages);
	for (uint32_t i = 0; i < n; i++) {
		const op *o = &ops[i];
		const bool sends = o->kind == SEND;
		const uint64_t bytes = o->count * type_size(element_type(o->type));
		messages[i] = (message){o->root, sends, {SEND, o->type, NONE, 0, 0, bytes}, buffer(sends ? o->from : o->to, bytes), 0};
	}
	const bool fine = exchange(ops->comm, messages, n);
	free(messages);
	return fine;
}

static bool is_transfer(const op *o) { return o->kind == SEND || o->kind == RECV; }

static status run_group(void *data) {
	const group *g = data;
	for (uint32_t i = 0; i < g->n;) {
		const op *o = &g->ops[i];
		comm *c = object_find(o->comm, COMM);
		unsigned char *from = buffer(o->from, c ? bytes_from(o) : 0), *to = buffer(o->to, c ? bytes_to(o) : 0);
		if (!c || (!from && bytes_from(o)) || (!to && bytes_to(o))) {
			complain("a collective comes after its communicator or its memory was freed");
			return FAIL_HCCL;
		}
		uint32_t n = 1;
		while (is_transfer(o) && i + n < g->n && is_transfer(&o[n]) && o[n].comm == c)
			n++;
		if (!(is_transfer(o) ? run_transfers(o, n) : run_collective(o, from, to))) {
			c->error = HCCL_SOCKET;
			return FAIL_HCCL;
		}
		i += n;
	}
	return SUCCESS;
}

// What is called between hcclGroupStart and hcclGroupEnd, of one stream.
static int depth;
static void *group_stream;
static group *collected;

static result submit(group *g, void *stream) {
	return enqueue(stream, run_group, g, sizeof *g + g->n * sizeof *g->ops) ? HCCL_INVALID_ARGUMENT : HCCL_SUCCESS;
}

static bool overlaps(const op *o) {
	const uint64_t a = bytes_from(o), b = bytes_to(o);
	if (!a || !b || o->from + a <= o->to || o->to + b <= o->from)
		return false;
	const uint64_t part = o->count * type_size(element_type(o->type)) * o->comm->rank;
	switch (o->kind) { // in place, as in NCCL
	case REDUCE_SCATTER: return o->to != o->from + part;
	case ALL_GATHER: return o->from != o->to + part;
	default: return o->from != o->to;
	}
}

static result call_op(op o, void *handle, void *stream) {
	ENTER_HCCL();
	o.comm = object_find(handle, COMM);
	if (!o.comm || (o.root >= (uint32_t)o.comm->ranks) || (is_transfer(&o) && (int)o.root == o.comm->rank))
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	if (!element_type(o.type)) // neither FP8 nor any other byte, nor 8 bytes
		return leave_hccl(HCCL_UNSUPPORTED);
	const bool reduces = o.kind == ALL_REDUCE || o.kind == REDUCE_SCATTER;
	if (reduces && o.reduction != SUM && o.reduction != MIN && o.reduction != MAX)
		return leave_hccl(HCCL_UNSUPPORTED); // no products, no means
	if ((!o.count && o.kind != BARRIER) || (bytes_from(&o) && !buffer(o.from, bytes_from(&o))) || (bytes_to(&o) && !buffer(o.to, bytes_to(&o))) || overlaps(&o))
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	if (!object_find(stream, STREAM))
		return leave_hccl(HCCL_INVALID_ARGUMENT);
	if (!depth) {
		group *one = malloc(sizeof *one + sizeof o);
		one->n = 1;
		one->ops[0] = o;
		const result r = submit(one, stream);
		free(one);
		return leave_hccl(r);
	}
	if (!collected)
		collected = calloc(1, sizeof *collected + MAX_GROUP * sizeof(op));
	if ((collected->n && stream != group_stream) || collected->n == MAX_GROUP)
		return leave_hccl(HCCL_INVALID_USAGE);
	group_stream = stream;
	collected->ops[collected->n++] = o;
	return leave_hccl(HCCL_SUCCESS);
}

result hcclGroupStart(void) {
	ENTER_HCCL();
	depth++;
	return leave_hccl(HCCL_SUCCESS);
}

result hcclGroupEnd(void) {
	ENTER_HCCL();
	if (!depth)
		return leave_hccl(HCCL_INVALID_USAGE);
	if (--depth || !collected)
		return leave_hccl(HCCL_SUCCESS);
	const result r = collected->n ? submit(collected, group_stream) : HCCL_SUCCESS;
	free(collected);
	collected = NULL;
	return leave_hccl(r);
}

result hcclAllReduce(uint64_t from, uint64_t to, size_t count, uint32_t type, uint32_t reduction, void *c, void *stream) {
	return call_op((op){.kind = ALL_REDUCE, .from = from, .to = to, .count = count, .type = type, .reduction = reduction}, c, stream);
}

result hcclReduceScatter(uint64_t from, uint64_t to, size_t count, uint32_t type, uint32_t reduction, void *c, void *stream) {
	return call_op((op){.kind = REDUCE_SCATTER, .from = from, .to = to, .count = count, .type = type, .reduction = reduction}, c, stream);
}

result hcclAllGather(uint64_t from, uint64_t to, size_t count, uint32_t type, void *c, void *stream) {
	return call_op((op){.kind = ALL_GATHER, .from = from, .to = to, .count = count, .type = type, .reduction = NONE}, c, stream);
}

result hcclBroadcast(uint64_t from, uint64_t to, size_t count, uint32_t type, int root, void *c, void *stream) {
	return call_op((op){.kind = BROADCAST, .from = from, .to = to, .count = count, .type = type, .reduction = NONE, .root = root}, c, stream);
}

result hcclBarrier(void *c, void *stream) {
	return call_op((op){.kind = BARRIER, .type = HCCL_F32, .reduction = NONE}, c, stream);
}

result hcclSend(uint64_t from, size_t count, uint32_t type, int peer, void *c, void *stream) {
	return call_op((op){.kind = SEND, .from = from, .count = count, .type = type, .reduction = NONE, .root = peer}, c, stream);
}

result hcclRecv(uint64_t to, size_t count, uint32_t type, int peer, void *c, void *stream) {
	return call_op((op){.kind = RECV, .to = to, .count = count, .type = type, .reduction = NONE, .root = peer}, c, stream);
}
