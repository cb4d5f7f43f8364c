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

// An op is one piece of a stream's work: run returns a CUresult, or STANDIN_LATER
// where it has to wait for what other streams do. It is called again then.
typedef int (*op_run)(void *data);
#define STANDIN_LATER 600 // CUDA_ERROR_NOT_READY

// Exported by libcuda, looked up by libcublasLt and libnccl: the stand-in for a
// driver that they share. standin_enqueue copies the data; what it returns is a
// CUresult. Ops run one at a time. standin_device tells whether all of a range
// is in one live allocation of the thread's context, standin_current whether
// there is one, and standin_ordinal of which GPU (-1: there is none).
// standin_capturing tells whether a stream records. standin_news has ops that
// wait tried again. standin_load is what a kernel takes that is first loaded:
// refused, with the capture spoilt, while the thread captures.
int standin_enqueue(void *stream, op_run run, const void *data, size_t bytes);
int standin_device(const void *p, size_t bytes);
int standin_current(void);
int standin_ordinal(void);
int standin_capturing(void *stream);
void standin_news(void);
int standin_load(void);

// What the stand-in for NVRTC makes and the one for the driver loads: a header
// and a shared object.
typedef struct {
	char magic[16];
	char arch[16]; // "sm_90a"
	uint64_t bytes;
} standin_image;

#define STANDIN_MAGIC "octet stand-in"

#endif
