//go:build ignore

// Stand-in for libSynapse.so: the thread pool of kernels. A kernel splits its outputs,
// never a sum, so results do not depend on the number of threads.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { MAX_THREADS = 64, PIECES = 4 }; // pieces of work per thread, for balance

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t begins, ends;
	pthread_t thread[MAX_THREADS];
	int threads; // in addition to the caller's
	bool stop;

	uint64_t round; // counts the jobs
	bool open;      // threads may join the job
	int inside;     // threads that joined it
	int wanted;     // threads that may still join
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

// processors returns the number of processors that the process may use.
static int processors(void) {
	cpu_set_t set;
	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

// start starts threads up to n, with all signals blocked.
static void start(int n) {
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (pool.threads < n && !pthread_create(&pool.thread[pool.threads], NULL, help, NULL))
		pool.threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void parallel(uint64_t n, uint64_t min_range, task run, void *data) {
	int threads = 1;
	if (n > min_range) {
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
	pool.piece = piece > min_range ? piece : min_range;
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

// stop ends the threads before dlclose unmaps their code.
static void __attribute__((destructor)) stop(void) {
	pthread_mutex_lock(&pool.mutex);
	pool.stop = true;
	pthread_cond_broadcast(&pool.begins);
	pthread_mutex_unlock(&pool.mutex);
	for (int i = 0; i < pool.threads; i++)
		pthread_join(pool.thread[i], NULL);
}
