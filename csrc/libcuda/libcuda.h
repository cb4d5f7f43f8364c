// What the shim reports to Go. Every entry fills the whole struct and returns;
// reason is empty where all went well.
#ifndef OCTET_LIBCUDA_H
#define OCTET_LIBCUDA_H

#include <stddef.h>

enum { OCTET_CUDA_MAX_DEVICES = 64 };

typedef struct {
	char name[256];
	int major, minor; // compute capability
	size_t memory;    // bytes
} octet_cuda_device;

typedef struct {
	char path[1024]; // of the file that was loaded
	char reason[1024];
	int version; // 1000 major + 10 minor; known even where no device is
	int count;
	octet_cuda_device devices[OCTET_CUDA_MAX_DEVICES];
} octet_cuda_driver;

typedef struct {
	char path[1024];
	char reason[1024];
	int major, minor, patch;
} octet_cuda_library;

void octet_cuda_probe_driver(const char *path, octet_cuda_driver *out);
void octet_cuda_probe_cublaslt(const char *path, octet_cuda_library *out);
void octet_cuda_probe_nvrtc(const char *path, octet_cuda_library *out);

#endif
