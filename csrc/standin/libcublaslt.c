//go:build ignore

// Stand-in for libcublasLt.so: see standin.go.

#include <stddef.h>

size_t cublasLtGetVersion(void) { return 130102; }
