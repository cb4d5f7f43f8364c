//go:build ignore

// Stand-in for libSynapse.so: signal handlers. When it is loaded, SynapseAI's logger
// replaces the process's handlers (hllog_core.cpp). SynapseAI treats a signal as a failure
// of the acquired device, if there is one (dfa_base.cpp).

#define _GNU_SOURCE
#include "libsynapse.h"

#include <signal.h>

static const int signals[] = {SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM, SIGBUS, SIGABRT, SIGHUP, SIGQUIT, SIGPIPE};

static struct sigaction handlers[NSIG];

static void handle(int number, siginfo_t *info, void *context) {
	if (device_type())
		lose(SYNAPSE_TERMINATED);
	const struct sigaction *previous = &handlers[number];
	if (previous->sa_handler == SIG_DFL) {
		sigaction(number, previous, NULL);
		raise(number);
	} else if (previous->sa_handler == SIG_IGN) {
		return;
	} else if (previous->sa_flags & SA_SIGINFO) {
		previous->sa_sigaction(number, info, context);
	} else {
		previous->sa_handler(number);
	}
}

static void __attribute__((constructor)) take_signals(void) {
	static char memory[16 * 8192];
	const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
	sigaltstack(&stack, NULL);
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		const struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
		sigaction(signals[i], &action, &handlers[signals[i]]);
	}
}
