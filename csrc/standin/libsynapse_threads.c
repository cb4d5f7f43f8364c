//go:build ignore

// Stand-in for libSynapse.so: the threads that share a kernel's work. A kernel splits
// what it writes, never a sum, so that their number shows in no bit.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { MAX_THREADS = 64, PIECES = 4 }; // pieces of work for each thread, so that none waits long for another

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t begins, ends;
	pthread_t thread[MAX_THREADS];
	int threads; // beside the caller's
	bool stop;

	uint64_t round; // counts the jobs
	bool open;      // the job may still be joined
	int inside;     // threads that joined it
	int wanted;     // that may yet
	task run;
	void *data;
	uint64_t n, piece;
	atomic_ullong next;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .begins = PTHREAD_COND_INITIALIZER, .ends = PTHREAD_COND_INITIALIZER};

static void do_pieces(void) {
	uint64_t from;
	while ((from = atomic_fetch_add(&pool.next, pool.piece)) < pool.n)
		pool.run(pool.data, from, from + pool.piece < pool.n ? from + pool.piece : pool.n);
}

static void *help(void *unused) {
	uint64_t last = 0;
	pthread_mutex_lock(&pool.mutex);
	while (!pool.stop) {
		if (!pool.open || pool.round == last || !pool.wanted) {
			pthread_cond_wait(&pool.begins, &pool.mutex);
			continue;
		}
		last = pool.round;
		pool.wanted--;
		pool.inside++;
		pthread_mutex_unlock(&pool.mutex);
		do_pieces();
		pthread_mutex_lock(&pool.mutex);
		if (!--pool.inside)
			pthread_cond_signal(&pool.ends);
	}
	pthread_mutex_unlock(&pool.mutex);
	return NULL;
}

// processors are those that the process may run on.
static int processors(void) {
	cpu_set_t set;
	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

// start makes threads until there are n. Signals are for the program's own threads.
static void start(int n) {
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (pool.threads < n && !pthread_create(&pool.thread[pool.threads], NULL, help, NULL))
		pool.threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void parallel(uint64_t n, uint64_t least, task run, void *data) {
	int threads = 1;
	if (n > least) {
		threads = setting("STANDIN_THREADS", processors());
		threads = threads > MAX_THREADS ? MAX_THREADS : threads;
	}
	if (threads <= 1) {
		run(data, 0, n);
		return;
	}
	pthread_mutex_lock(&pool.mutex);
	start(threads - 1);
	const uint64_t piece = (n - 1) / (threads * PIECES) + 1;
	pool.run = run;
	pool.data = data;
	pool.n = n;
	pool.piece = piece > least ? piece : least;
	pool.next = 0;
	pool.wanted = threads - 1;
	pool.open = true;
	pool.round++;
	pthread_cond_broadcast(&pool.begins);
	pthread_mutex_unlock(&pool.mutex);
	do_pieces();
	pthread_mutex_lock(&pool.mutex);
	pool.open = false;
	while (pool.inside)
		pthread_cond_wait(&pool.ends, &pool.mutex);
	pthread_mutex_unlock(&pool.mutex);
}

// A library that is unloaded must not leave threads that would run its code.
static void __attribute__((destructor)) stop(void) {
	pthread_mutex_lock(&pool.mutex);
	pool.stop = true;
	pthread_cond_broadcast(&pool.begins);
	pthread_mutex_unlock(&pool.mutex);
	for (int i = 0; i < pool.threads; i++)
		pthread_join(pool.thread[i], NULL);
}
