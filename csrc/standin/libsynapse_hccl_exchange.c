//go:build ignore

// Stand-in for libSynapse.so: messages between HCCL's ranks. Ranks compare their
// operations: a mismatch, or a dead rank, is an error instead of a hang.

#define _GNU_SOURCE
#include "libsynapse_hccl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

double deadline(void) { return now() + setting("STANDIN_HCCL_SECONDS", 20); }

// move transfers as much of a message as possible without waiting. It returns false after an
// error.
static bool move(int fd, message *m, const head *expected) {
	for (;;) {
		const bool in_head = m->at < sizeof m->head;
		char *p = in_head ? (char *)&m->head + m->at : (char *)m->data + (m->at - sizeof m->head);
		const uint64_t end = in_head ? sizeof m->head : sizeof m->head + m->head.bytes;
		if (!in_head && !m->sends && memcmp(&m->head, expected, sizeof m->head)) {
			complain("rank %d runs another operation: kind %u, type %u, reduction %u, %lu bytes, not kind %u, type %u, reduction %u, %lu bytes", m->peer, m->head.kind, m->head.type,
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

bool exchange(comm *c, message *messages, uint32_t n) {
	head *expected = malloc((n + 1) * sizeof *expected);
	bool *done = calloc(n + 1, sizeof *done);
	for (uint32_t i = 0; i < n; i++) {
		expected[i] = messages[i].head;
		if (!messages[i].sends)
			memset(&messages[i].head, 0, sizeof(head));
	}
	double until = deadline();
	bool ok = true;
	for (uint32_t left = n; left && ok;) {
		struct pollfd polls[2 * MAX_RANKS];
		uint32_t active[2 * MAX_RANKS], actives = 0;
		for (uint32_t i = 0; i < n; i++) {
			const message *m = &messages[i];
			if (done[i])
				continue;
			polls[actives] = (struct pollfd){c->peers[m->peer], m->sends ? POLLOUT : POLLIN, 0};
			active[actives++] = i;
		}
		if (poll(polls, actives, 100) < 0 && errno != EINTR)
			ok = false;
		for (uint32_t i = 0; i < actives && ok; i++) {
			message *m = &messages[active[i]];
			const uint64_t before = m->at;
			if (!polls[i].revents)
				continue;
			ok = move(c->peers[m->peer], m, &expected[active[i]]);
			if (m->at != before)
				until = deadline();
			if (ok && is_done(m)) {
				done[active[i]] = true;
				left--;
			}
		}
		if (ok && now() > until) {
			complain("timeout: a collective waits for rank %d", messages[active[0]].peer);
			ok = false;
		}
	}
	free(expected);
	free(done);
	return ok;
}
