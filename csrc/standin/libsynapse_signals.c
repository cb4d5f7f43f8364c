//go:build ignore

// Stand-in for libSynapse.so: what its logger does to a process that loads it
// (hllog_core.cpp). It handles signals before the process does, and SynapseAI,
// which hears of them from it, takes them for a failure of the device that was
// acquired, if one was (dfa_base.cpp).

#define _GNU_SOURCE
#include "libsynapse.h"

#include <signal.h>

static const int taken[] = {SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM, SIGBUS, SIGABRT, SIGHUP, SIGQUIT, SIGPIPE};

static struct sigaction before[NSIG];

static void handle(int number, siginfo_t *info, void *context) {
	if (device_type())
		lose(SYNAPSE_TERMINATED);
	const struct sigaction *was = &before[number];
	if (was->sa_handler == SIG_DFL) {
		sigaction(number, was, NULL);
		raise(number);
	} else if (was->sa_handler == SIG_IGN) {
		return;
	} else if (was->sa_flags & SA_SIGINFO) {
		was->sa_sigaction(number, info, context);
	} else {
		was->sa_handler(number);
	}
}

static void __attribute__((constructor)) take_signals(void) {
	static char memory[16 * 8192];
	const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
	sigaltstack(&stack, NULL);
	for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
		const struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
		sigaction(taken[i], &action, &before[taken[i]]);
	}
}
