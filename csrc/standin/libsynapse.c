//go:build ignore

// Stand-in for libSynapse.so: see standin.go. As in SynapseAI, a call
// before synInitialize returns 28 (synUninitialized). It is stricter about
// pairs: starting twice is an error, and stopping what did not start ends the
// process, where the real one may hang.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int setting(const char *name, int otherwise) {
	const char *value = getenv(name);
	return value ? atoi(value) : otherwise;
}

static int started;

int synInitialize(void) {
	if (started)
		return 29; // synAlreadyInitialized
	const int status = setting("STANDIN_SYNAPSE", 0);
	started = status == 0;
	return status;
}

int synDestroy(void) {
	if (!started)
		abort();
	started = 0;
	return 0;
}

int synDriverGetVersion(char *version, const int size) {
	if (!started)
		return 28;
	snprintf(version, size, "1.24.0-standin");
	return 0;
}

int synDeviceGetCount(uint32_t *count) {
	if (!started)
		return 28;
	*count = setting("STANDIN_GAUDI2", 1) + setting("STANDIN_GAUDI3", 0);
	return *count ? 0 : 8; // synNoDeviceFound
}

int synDeviceGetCountByDeviceType(uint32_t *count, const int type) {
	if (!started)
		return 28;
	*count = type == 4 ? setting("STANDIN_GAUDI2", 1) : type == 5 ? setting("STANDIN_GAUDI3", 0) : 0;
	return 0;
}

int synStatusGetBriefDescription(const int status, char *text, const size_t size) {
	snprintf(text, size, status == 26 ? "synFail" : "stand-in status");
	return 0;
}
