//go:build ignore

// Stand-in for libSynapse.so: HCCL's communicators. Every pair of ranks has a socket.

#define _GNU_SOURCE
#include "libsynapse_hccl.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct {
	char name[1024];
	uint64_t length;
} unique_id;

_Static_assert(sizeof(unique_id) == 1032, "hcclUniqueId");

result hcclGetUniqueId(unique_id *id) {
	static unsigned made;
	struct timespec t;
	ENTER_HCCL();
	const char *interface = getenv("HCCL_SOCKET_IFNAME");
	if (!setting("STANDIN_NETWORK", 1) && (!interface || strcmp(interface, "lo")))
		return leave_hccl(HCCL_SOCKET);
	clock_gettime(CLOCK_REALTIME, &t);
	memset(id, 0, sizeof *id);
	id->length = snprintf(id->name, sizeof id->name, "standin-hccl-%d-%lx-%lx-%u", getpid(), (long)t.tv_sec, (long)t.tv_nsec, made++);
	return leave_hccl(HCCL_SUCCESS);
}

// address_of sets the abstract socket address at which a rank listens.
static socklen_t address_of(struct sockaddr_un *a, const unique_id *id, int rank) {
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.80s-%d", id->name, rank);
	return offsetof(struct sockaddr_un, sun_path) + 1 + n;
}

// transfer_all sends or receives all of a few bytes.
static bool transfer_all(int fd, void *p, size_t bytes, bool sends, double until) {
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

static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }

static bool connect_to(comm *c, const unique_id *id, int peer, double until) {
	struct sockaddr_un a;
	const socklen_t bytes = address_of(&a, id, peer);
	hello h = {c->rank, c->ranks}, other;
	for (; now() < until; nap()) {
		const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, (struct sockaddr *)&a, bytes) == 0) {
			c->peers[peer] = fd;
			return transfer_all(fd, &h, sizeof h, true, until) && transfer_all(fd, &other, sizeof other, false, until) && other.rank == peer && other.ranks == c->ranks;
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
			if (fd < 0 || !transfer_all(fd, &h, sizeof h, false, until) || h.ranks != c->ranks || h.rank <= c->rank || h.rank >= c->ranks || c->peers[h.rank] >= 0) {
				close(fd);
				return false;
			}
			c->peers[h.rank] = fd;
			return transfer_all(fd, &mine, sizeof mine, true, until);
		}
	return false;
}

static bool rendezvous(comm *c, const unique_id *id) {
	const double until = deadline();
	struct sockaddr_un a;
	const socklen_t bytes = address_of(&a, id, c->rank);
	const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool connected = listener >= 0 && bind(listener, (struct sockaddr *)&a, bytes) == 0 && listen(listener, MAX_RANKS) == 0;
	for (int peer = 0; peer < c->rank && connected; peer++)
		connected = connect_to(c, id, peer, until);
	for (int peer = c->rank + 1; peer < c->ranks && connected; peer++)
		connected = accept_from(c, listener, until);
	close(listener);
	return connected;
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
	if (!rendezvous(c, &id)) {
		complain("rank %d of %d could not connect to all other ranks", rank, ranks);
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
