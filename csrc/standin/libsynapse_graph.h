// Declarations that libsynapse_graph.c and libsynapse_compile.c share.
#ifndef STANDIN_LIBSYNAPSE_GRAPH_H
#define STANDIN_LIBSYNAPSE_GRAPH_H

#include "libsynapse.h"

typedef struct graph graph;

typedef struct section {
	object object;
	graph *graph;
	struct section *next;
	bool persistent, used; // used: it has a tensor
	int32_t number; // of a persistent one, during compilation
} section;

typedef struct node node;

typedef struct tensor {
	object object;
	graph *graph;
	struct tensor *next;
	char *name;
	operand shape;
	bool sized, typed, locked; // locked: used by a node
	section *section;
	uint64_t offset;
	void *host; // contents of a constant
	bool owned; // host is a copy
	node *producer;
	int32_t number; // in the recipe, during compilation
} tensor;

struct node {
	node *next;
	uint64_t id; // from 1, in order of creation
	char *guid, *name;
	call call; // with the tensors' operands
	bool deterministic;
	tensor *in[MAX_OPERANDS], *out[MAX_OPERANDS];
	void *params;
	uint64_t *after; // ids of nodes that must run before this one
	uint32_t afters;
};

struct graph {
	object object;
	uint32_t device_type;
	tensor *tensors;
	section *sections;
	node *first, **end;
	uint64_t nodes;
};

#endif
