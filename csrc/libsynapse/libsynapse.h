// What the shim reports to Go; reason is empty where all went well.
#ifndef OCTET_LIBSYNAPSE_H
#define OCTET_LIBSYNAPSE_H

#include <stdint.h>

typedef struct {
	char path[1024]; // of the file that was loaded
	char reason[1024];
	char version[256];
	uint32_t devices, gaudi2, gaudi3;
} octet_synapse_report;

void octet_synapse_probe(const char *path, octet_synapse_report *out);

#endif
