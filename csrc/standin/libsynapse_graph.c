//go:build ignore

// Stand-in for libSynapse.so: graphs of sections, tensors and nodes. The first node that
// uses a tensor locks its attributes. A node is checked completely when it is created.

#define _GNU_SOURCE
#include "libsynapse_graph.h"

#include <stdlib.h>
#include <string.h>

// Graphs.

status synGraphCreate(graph **out, const uint32_t type) {
	ENTER();
	if (!out)
		return leave(INVALID_ARGUMENT);
	if (type != GAUDI2 && type != GAUDI3)
		return leave(UNSUPPORTED);
	graph *g = object_new(GRAPH, sizeof *g);
	g->device_type = type;
	g->end = &g->first;
	*out = g;
	return leave(SUCCESS);
}

static void node_free(node *n) {
	free(n->guid);
	free(n->name);
	free(n->params);
	free(n->after);
	free(n);
}

static void tensor_free(tensor *t) {
	for (tensor **o = &t->graph->tensors; *o; o = &(*o)->next)
		if (*o == t) {
			*o = t->next;
			break;
		}
	free(t->name);
	if (t->owned)
		free(t->host);
	object_free(t);
}

static void section_free(section *s) {
	for (section **o = &s->graph->sections; *o; o = &(*o)->next)
		if (*o == s) {
			*o = s->next;
			break;
		}
	object_free(s);
}

status synGraphDestroy(graph *handle) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	for (node *n = g->first, *next; n; n = next) {
		next = n->next;
		node_free(n);
	}
	while (g->tensors)
		tensor_free(g->tensors);
	while (g->sections)
		section_free(g->sections);
	object_free(g);
	return leave(SUCCESS);
}

// Sections.

status synSectionCreate(section **out, uint64_t descriptor, graph *handle) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	if (!out || descriptor)
		return leave(INVALID_ARGUMENT);
	section *s = object_new(SECTION, sizeof *s);
	s->graph = g;
	s->next = g->sections;
	g->sections = s;
	*out = s;
	return leave(SUCCESS);
}

status synSectionSetPersistent(section *handle, bool value) {
	ENTER();
	section *s = object_find(handle, SECTION);
	if (!s)
		return leave(INVALID_ARGUMENT);
	if (s->used)
		return leave(OBJECT_ALREADY_INITIALIZED);
	s->persistent = value;
	return leave(SUCCESS);
}

// Tensors.

status synTensorHandleCreate(tensor **out, graph *handle, const uint32_t kind, const char *name) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	if (!out || !name || strlen(name) >= MAX_NAME || kind != DATA_TENSOR)
		return leave(INVALID_ARGUMENT);
	for (tensor *t = g->tensors; t; t = t->next)
		if (!strcmp(t->name, name))
			return leave(NAME_IS_ALREADY_USED);
	tensor *t = object_new(TENSOR, sizeof *t);
	t->graph = g;
	t->name = strdup(name);
	t->shape.section = WORKSPACE;
	t->next = g->tensors;
	g->tensors = t;
	*out = t;
	return leave(SUCCESS);
}

// set is enter for calls that change a tensor. It fails if a node has locked the tensor.
static status set(tensor *handle) {
	ENTER();
	const tensor *t = object_find(handle, TENSOR);
	if (!t)
		return leave(INVALID_ARGUMENT);
	return t->locked ? leave(OBJECT_ALREADY_INITIALIZED) : SUCCESS;
}
#define SET(t)                       \
	do {                         \
		const status refused = set(t); \
		if (refused)         \
			return refused; \
	} while (0)

// synTensorGeometry.
typedef struct {
	uint64_t sizes[MAX_SIZES];
	uint32_t dims;
} geometry;

_Static_assert(sizeof(geometry) == 208, "vendor's structure");

enum { MIN_SIZES, SIZES, DIMS }; // synGeometryType

status synTensorSetGeometry(tensor *t, const geometry *g, const uint32_t type) {
	SET(t);
	if (!g || type > DIMS || !g->dims || g->dims > MAX_SIZES)
		return leave(INVALID_ARGUMENT);
	if (g->dims > MAX_DIMS) {
		complain("tensor %s has %u dimensions", t->name, g->dims);
		return leave(INVALID_ARGUMENT);
	}
	t->shape.dims = g->dims;
	for (uint32_t d = 0; d < MAX_DIMS && type != DIMS; d++) {
		if (d < g->dims && !g->sizes[d])
			return leave(INVALID_ARGUMENT);
		const uint64_t size = d < g->dims ? g->sizes[d] : 1;
		if (t->sized && size != t->shape.sizes[d]) // dynamic shapes are not implemented
			return leave(UNSUPPORTED);
		t->shape.sizes[d] = size;
	}
	t->sized |= type != DIMS;
	return leave(SUCCESS);
}

status synTensorSetDeviceDataType(tensor *t, const uint32_t type) {
	SET(t);
	if (!type_size(type))
		return leave(INVALID_ARGUMENT);
	t->shape.type = type;
	t->typed = true;
	return leave(SUCCESS);
}

status synTensorAssignToSection(tensor *t, section *handle, uint64_t offset) {
	SET(t);
	section *s = object_find(handle, SECTION);
	if (!s || s->graph != t->graph)
		return leave(INVALID_ARGUMENT);
	if (t->section)
		return leave(OBJECT_ALREADY_INITIALIZED);
	t->section = s;
	t->offset = offset;
	s->used = true;
	return leave(SUCCESS);
}

status synTensorSetHostPtr(tensor *t, void *data, uint64_t bytes, const uint32_t type, bool copy) {
	SET(t);
	if (!data || !bytes)
		return leave(INVALID_ARGUMENT);
	if (t->host)
		return leave(OBJECT_ALREADY_INITIALIZED);
	if (!t->sized || !t->typed || type != t->shape.type || bytes != bytes_of(&t->shape)) {
		complain("tensor %s: a constant of %lu bytes for a tensor of %lu bytes", t->name, (unsigned long)bytes, (unsigned long)bytes_of(&t->shape));
		return leave(INVALID_ARGUMENT);
	}
	t->host = copy ? memcpy(malloc(bytes), data, bytes) : data;
	t->owned = copy;
	t->shape.section = CONSTANTS;
	return leave(SUCCESS);
}

// Nodes.

// operand_of checks and locks a tensor of a new node.
static status operand_of(graph *g, tensor *handle, bool output, const char *name) {
	tensor *t = object_find(handle, TENSOR);
	if (!t || t->graph != g)
		return INVALID_ARGUMENT;
	t->locked = true; // even if the node fails
	const char *reason = NULL;
	if (!t->sized)
		reason = "no sizes";
	else if (!t->typed)
		reason = "no type";
	else if (bytes_of(&t->shape) > 1ull << 32)
		reason = "more than 2^32 bytes";
	else if (output && t->producer)
		reason = "another producer";
	else if (output && t->host)
		reason = "constant contents and a producer";
	else if (t->host && t->section)
		reason = "constant contents and a section";
	else if (t->section && !t->section->persistent)
		reason = "a non-persistent section";
	if (reason)
		complain("node %s: tensor %s has %s", name, t->name, reason);
	return reason ? INVALID_ARGUMENT : SUCCESS;
}

static status operands_of(graph *g, tensor *const *list, uint32_t n, bool output, const char *name) {
	status s = n && !list ? INVALID_ARGUMENT : SUCCESS;
	for (uint32_t i = 0; i < n && !s; i++)
		if (list[i])
			s = operand_of(g, list[i], output, name);
	return s;
}

// gc_kernels returns whether a kernel is available: built into the graph compiler, or in
// the kernel library that GC_KERNEL_PATH names.
static bool gc_kernels(const kernel *k) {
	const char *path = getenv("GC_KERNEL_PATH");
	return !k->types || !setting("STANDIN_KERNELS", 0) || (path && strstr(path, "libtpc_kernels.so"));
}

static status make(graph *g, node *n, const char *guid) {
	n->guid = strdup(guid);
	n->call.kernel = kernel_find(guid, &n->call.type, &n->call.from);
	if (!n->call.kernel) {
		complain("node %s: no kernel %s", n->name, guid);
		return FAIL;
	}
	if (!gc_kernels(n->call.kernel)) {
		complain("node %s: no kernel library for %s: GC_KERNEL_PATH names none", n->name, guid);
		return FAIL;
	}
	for (uint32_t i = 0; i < n->call.ins; i++)
		n->call.in[i] = n->in[i] ? &n->in[i]->shape : NULL;
	for (uint32_t i = 0; i < n->call.outs; i++)
		n->call.out[i] = n->out[i] ? &n->out[i]->shape : NULL;
	n->call.gaudi3 = is_gaudi3(g->device_type);
	n->call.params = n->params;
	const char *reason = kernel_check(&n->call);
	if (reason) {
		complain("node %s (%s): %s", n->name, guid, reason);
		return FAIL;
	}
	return SUCCESS;
}

status synNodeCreateWithId(graph *handle, tensor *const *in, tensor *const *out, const uint32_t ins, const uint32_t outs, const void *params,
                           const unsigned params_size, const char *guid, const char *name, uint64_t *id, const char **in_layouts, const char **out_layouts) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	if (!guid || !name || ins > MAX_OPERANDS || outs > MAX_OPERANDS || params_size > MAX_PARAMS || (params_size && !params))
		return leave(INVALID_ARGUMENT);
	status s = operands_of(g, in, ins, false, name);
	if (!s)
		s = operands_of(g, out, outs, true, name);
	if (s)
		return leave(s);
	node *n = calloc(1, sizeof *n);
	n->name = strdup(name);
	if (ins)
		memcpy(n->in, in, ins * sizeof *in);
	if (outs)
		memcpy(n->out, out, outs * sizeof *out);
	n->call.ins = ins;
	n->call.outs = outs;
	n->params = params_size ? memcpy(malloc(params_size), params, params_size) : NULL;
	n->call.params_size = params_size;
	s = make(g, n, guid);
	if (s) {
		node_free(n);
		return leave(s);
	}
	for (uint32_t i = 0; i < outs; i++)
		if (out[i])
			out[i]->producer = n;
	n->id = ++g->nodes;
	*g->end = n;
	g->end = &n->next;
	if (id)
		*id = n->id;
	return leave(SUCCESS);
}

static node *node_find(const graph *g, uint64_t id) {
	for (node *n = g->first; n; n = n->next)
		if (n->id == id)
			return n;
	return NULL;
}

status synNodeDependencySet(graph *handle, const uint64_t *blocking, const uint64_t *blocked, const uint32_t blockings, const uint32_t blockeds) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	if (!blocking || !blocked || !blockings || !blockeds)
		return leave(INVALID_ARGUMENT);
	for (uint32_t i = 0; i < blockings; i++)
		if (!node_find(g, blocking[i]))
			return leave(INVALID_ARGUMENT);
	for (uint32_t i = 0; i < blockeds; i++) {
		node *n = node_find(g, blocked[i]);
		if (!n)
			return leave(INVALID_ARGUMENT);
		n->after = realloc(n->after, (n->afters + blockings) * sizeof *n->after);
		memcpy(n->after + n->afters, blocking, blockings * sizeof *blocking);
		n->afters += blockings;
	}
	return leave(SUCCESS);
}

status synNodeSetDeterministic(graph *handle, const uint64_t id, const bool value) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	node *n = node_find(g, id);
	if (!n)
		return leave(INVALID_ARGUMENT);
	n->deterministic = value;
	return leave(SUCCESS);
}
