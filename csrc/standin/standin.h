// What the stand-ins for NVIDIA's libraries share.
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>
#include <stdint.h>

// setting reads an environment variable at each call, so that a test can change
// its mind.
long setting(const char *name, long otherwise);

// GPU i, as CUDA counts, is on PCI bus FIRST_BUS + i.
enum { FIRST_BUS = 0x10 };

// An op is one piece of a stream's work: run returns a CUresult.
typedef int (*op_run)(void *data);

// Exported by libcuda, looked up by libcublasLt: the stand-in for a driver that
// both share. standin_enqueue copies the data; what it returns is a CUresult.
// standin_device tells whether all of a range is in one live allocation.
int standin_enqueue(void *stream, op_run run, const void *data, size_t bytes);
int standin_device(const void *p, size_t bytes);
int standin_current(void);

// What the stand-in for NVRTC makes and the one for the driver loads: a header
// and a shared object.
typedef struct {
	char magic[16];
	char arch[16]; // "sm_90a"
	uint64_t bytes;
} standin_image;

#define STANDIN_MAGIC "octet stand-in"

#endif
