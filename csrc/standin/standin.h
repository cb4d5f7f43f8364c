// Declarations that the stand-ins for NVIDIA's libraries share.
#ifndef STANDIN_H
#define STANDIN_H

#include "setting.h"

#include <stddef.h>
#include <stdint.h>

// GPU i of CUDA is on PCI bus FIRST_BUS + i.
enum { FIRST_BUS = 0x10 };

// op_run runs one operation of a stream. It returns a CUresult, or STANDIN_LATER if the
// operation depends on other streams; then it is called again.
typedef int (*op_run)(void *data);
#define STANDIN_LATER 600 // CUDA_ERROR_NOT_READY

// libcuda exports these functions; libcublasLt and libnccl look them up. Operations run
// one at a time.
//   - standin_enqueue copies the data and returns a CUresult.
//   - standin_device returns whether all of a range is in one live allocation of the
//     thread's context.
//   - standin_current returns whether the thread has a context, standin_ordinal the
//     ordinal of its GPU (-1: no context).
//   - standin_capturing returns whether a stream is capturing.
//   - standin_notify makes waiting operations run again.
//   - standin_load is called when a kernel is first loaded. While the thread captures, it
//     fails and invalidates the capture.
int standin_enqueue(void *stream, op_run run, const void *data, size_t bytes);
int standin_device(const void *p, size_t bytes);
int standin_current(void);
int standin_ordinal(void);
int standin_capturing(void *stream);
void standin_notify(void);
int standin_load(void);

// standin_image is the header of the stand-in NVRTC's output, which the stand-in driver
// loads; a shared object follows.
typedef struct {
	char magic[16];
	char arch[16]; // "sm_90a"
	uint64_t bytes;
} standin_image;

#define STANDIN_MAGIC "octet stand-in"

#endif
