// The settings of all stand-ins.
#ifndef SETTING_H
#define SETTING_H

#include <stdlib.h>

// setting returns the value of an environment variable. It reads it at each call, so that
// a test can change it.
static inline long setting(const char *name, long fallback) {
	const char *value = getenv(name);
	return value ? atol(value) : fallback;
}

#endif
