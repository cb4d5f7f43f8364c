//go:build gaudi && cgo && linux

#include "libsynapse.h"

#include <signal.h>
#include <stdlib.h>

struct octet_syn_signals {
	stack_t stack; // of the calling thread
	struct sigaction actions[NSIG];
};

octet_syn_signals *octet_syn_signals_keep(void) {
	octet_syn_signals *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	sigaltstack(NULL, &s->stack);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &s->actions[i]); // the C library refuses its own signals, here and below
	return s;
}

void octet_syn_signals_restore(octet_syn_signals *s) {
	if (!s)
		return;
	for (int i = 1; i < NSIG; i++) {
		struct sigaction now;
		if (!sigaction(i, NULL, &now) && now.sa_sigaction != s->actions[i].sa_sigaction)
			sigaction(i, &s->actions[i], NULL);
	}
	sigaltstack(&s->stack, NULL);
	free(s);
}
