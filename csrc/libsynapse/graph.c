//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(OCTET_MAX_RANK <= HABANA_DIM_MAX, "a tensor's sizes fit");

// build holds the handles of a graph under construction. SynapseAI frees them with the
// graph.
typedef struct {
	const octet_synapse *api;
	synGraphHandle graph;
	synSectionHandle *sections;
	synTensor *tensors;
	synNodeId *nodes;
	synTensor *operands; // scratch for one node
	synNodeId *blocking; // scratch for one node
} build;

// Set all properties of a tensor before a node uses it, because then they are locked. The
// order is that of PyTorch's bridge (habana_tensor.cpp).
static octet_syn_status add_tensor(const build *b, uint32_t index, const octet_syn_tensor *t, const char *bytes) {
	char name[OCTET_TENSOR_NAME];
	snprintf(name, sizeof name, "t%u", index);
	synTensor tensor;
	TRY(b->api, synTensorHandleCreate, &tensor, b->graph, DATA_TENSOR, name);
	b->tensors[index] = tensor;

	synTensorGeometry geometry = {.dims = t->dims};
	for (uint32_t i = 0; i < t->dims; i++)
		geometry.sizes[i] = t->sizes[i];
	TRY(b->api, synTensorSetGeometry, tensor, &geometry, synGeometrySizes);
	TRY(b->api, synTensorSetDeviceDataType, tensor, (synDataType)t->type);
	if (t->data_bytes) // the last argument makes SynapseAI copy the data
		TRY(b->api, synTensorSetHostPtr, tensor, (void *)(bytes + t->data), t->data_bytes, (synDataType)t->type, true);
	else
		TRY(b->api, synTensorSetGeometry, tensor, &geometry, synGeometryMinSizes);
	if (t->section >= 0)
		TRY(b->api, synTensorAssignToSection, tensor, b->sections[t->section], t->offset);
	return (octet_syn_status){0};
}

static octet_syn_status add_node(const build *b, uint32_t index, const octet_syn_node *n, const int32_t *indexes, const char *bytes) {
	for (uint32_t i = 0; i < n->ins; i++) {
		const int32_t k = indexes[n->in + i];
		b->operands[i] = k < 0 ? NULL : b->tensors[k];
	}
	for (uint32_t i = 0; i < n->outs; i++) {
		const int32_t k = indexes[n->out + i];
		b->operands[n->ins + i] = k < 0 ? NULL : b->tensors[k];
	}
	TRY(b->api, synNodeCreateWithId, b->graph, n->ins ? b->operands : NULL, n->outs ? b->operands + n->ins : NULL, n->ins, n->outs,
	    n->params_bytes ? bytes + n->params : NULL, (unsigned)n->params_bytes, bytes + n->guid, bytes + n->name,
	    &b->nodes[index], NULL, NULL);
	// Otherwise the compiler may split a long sum over engines and add the parts in the
	// order of their completion, so that no two runs have the same bits.
	TRY(b->api, synNodeSetDeterministic, b->graph, b->nodes[index], true);
	if (!n->afters)
		return (octet_syn_status){0};
	for (uint32_t i = 0; i < n->afters; i++)
		b->blocking[i] = b->nodes[indexes[n->after + i]];
	TRY(b->api, synNodeDependencySet, b->graph, b->blocking, &b->nodes[index], n->afters, 1);
	return (octet_syn_status){0};
}

static octet_syn_status add_sections(const build *b, uint32_t sections) {
	for (uint32_t i = 0; i < sections; i++) {
		TRY(b->api, synSectionCreate, &b->sections[i], 0, b->graph);
		TRY(b->api, synSectionSetPersistent, b->sections[i], true);
	}
	return (octet_syn_status){0};
}

// Building and compiling is one call, and so on one thread, because the graph compiler
// keeps thread-local state while it works on a graph.
octet_syn_status octet_syn_compile(const octet_synapse *api, int type, const char *recipe, uint32_t sections, uint32_t tensors,
			   const octet_syn_tensor *tensor, uint32_t nodes, const octet_syn_node *node, const int32_t *indexes,
			   const char *bytes, octet_syn_place *where, octet_syn_handle *out) {
	*where = (octet_syn_place){-1, -1};
	size_t operands = 0, blocking = 0;
	for (uint32_t i = 0; i < nodes; i++) {
		const size_t all = (size_t)node[i].ins + node[i].outs;
		operands = all > operands ? all : operands;
		blocking = node[i].afters > blocking ? node[i].afters : blocking;
	}
	build b = {.api = api};
	const size_t total = (sections + tensors + operands) * sizeof(void *) + (nodes + blocking) * sizeof(synNodeId);
	void *memory = calloc(1, total);
	if (!memory)
		return (octet_syn_status){"calloc", -1};
	b.sections = memory;
	b.tensors = (synTensor *)(b.sections + sections);
	b.operands = b.tensors + tensors;
	b.nodes = (synNodeId *)(b.operands + operands);
	b.blocking = b.nodes + nodes;

	int code = api->synGraphCreate(&b.graph, type);
	if (code) {
		free(memory);
		return (octet_syn_status){"synGraphCreate", code};
	}
	octet_syn_status status = add_sections(&b, sections);
	for (uint32_t i = 0; i < tensors && !status.code; i++) {
		status = add_tensor(&b, i, &tensor[i], bytes);
		if (status.code)
			where->tensor = (int)i;
	}
	for (uint32_t i = 0; i < nodes && !status.code; i++) {
		status = add_node(&b, i, &node[i], indexes, bytes);
		if (status.code)
			where->node = (int)i;
	}
	synRecipeHandle compiled = NULL;
	if (!status.code && (code = api->synGraphCompile(&compiled, b.graph, recipe, NULL)))
		status = (octet_syn_status){"synGraphCompile", code};
	// The recipe no longer needs the graph. An error of destroying it does not affect the
	// recipe.
	api->synGraphDestroy(b.graph);
	free(memory);
	*out = (octet_syn_handle)compiled;
	return status;
}
