//go:build ignore

// Stand-in for libSynapse.so: launches of recipes. The checks and their status codes are
// those of recipe_patch_processor.cpp in SynapseAI's published runtime.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <stdlib.h>
#include <string.h>

// Tensor ids differ from indices, so that confusing them fails.
enum { FIRST_ID = 0x1000 };
static const uint64_t invalid_id = ~0ull;

static uint64_t recipe_id(const recipe *r, int index) { return FIRST_ID + index; }

// recipe_tensor returns the index of a persistent operand, or -1.
static int recipe_tensor(const recipe *r, uint64_t id) {
	const uint64_t index = id - FIRST_ID;
	return index < r->operands && r->operand[index].section >= 0 ? (int)index : -1;
}

static int recipe_named(const recipe *r, const char *name) {
	for (uint32_t i = 0; i < r->operands; i++)
		if (r->operand[i].section >= 0 && !strcmp(r->operand_name[i], name))
			return i;
	return -1;
}

// Queries.

status synWorkspaceGetSize(uint64_t *size, recipe *handle) {
	ENTER();
	const recipe *r = object_find(handle, RECIPE);
	if (!r || !size)
		return leave(INVALID_ARGUMENT);
	*size = r->workspace;
	return leave(SUCCESS);
}

// An unknown name gets an invalid id, without an error.
status synTensorRetrieveIds(recipe *handle, const char **names, uint64_t *ids, const uint32_t n) {
	ENTER();
	const recipe *r = object_find(handle, RECIPE);
	if (!r || !names || !ids)
		return leave(INVALID_ARGUMENT);
	for (uint32_t i = 0; i < n; i++) {
		const int index = recipe_named(r, names[i]);
		ids[i] = index < 0 ? invalid_id : recipe_id(r, index);
	}
	return leave(SUCCESS);
}

// Launches.

// synLaunchTensorInfo.
typedef struct {
	const char *name;
	uint64_t address;
	uint32_t kind;
	uint64_t sizes[MAX_SIZES];
	uint64_t id;
} launch_tensor;

_Static_assert(sizeof(launch_tensor) == 232, "synLaunchTensorInfo");

typedef struct {
	recipe *recipe;
	uint64_t workspace;
	uint64_t *sections; // addresses
} launch;

// section_bytes returns, for each section, the end of its last tensor.
static uint64_t *section_bytes(const recipe *r) {
	uint64_t *bytes = calloc(r->sections + 1, sizeof *bytes);
	for (uint32_t i = 0; i < r->operands; i++) {
		const operand *o = &r->operand[i];
		if (o->section >= 0 && o->offset + bytes_of(o) > bytes[o->section])
			bytes[o->section] = o->offset + bytes_of(o);
	}
	return bytes;
}

// take_tensor checks a tensor of a launch and sets its section's address.
static status take_tensor(const recipe *r, const launch_tensor *t, bool *given, uint64_t *sections) {
	if (t->id == invalid_id)
		return SUCCESS; // ignored
	const int index = recipe_tensor(r, t->id);
	if (index < 0)
		return INVALID_TENSOR_PROPERTIES;
	const operand *o = &r->operand[index];
	if (t->kind != DATA_TENSOR)
		return INVALID_TENSOR_PROPERTIES;
	for (uint32_t d = 0; d < o->dims; d++)
		if (t->sizes[d] && t->sizes[d] != o->sizes[d])
			return INVALID_TENSOR_PROPERTIES;
	given[index] = true;
	if (!t->address)
		return SUCCESS; // another tensor gives the section's address
	const uint64_t address = t->address - o->offset;
	if (sections[o->section] && sections[o->section] != address) {
		complain("tensor %s gives its section another address than an earlier tensor", r->operand_name[index]);
		return FAILED_SECTION_VALIDATION;
	}
	sections[o->section] = address;
	return SUCCESS;
}

static const char *check_section(const recipe *r, const launch *l, const uint64_t *bytes, uint32_t i) {
	const uint64_t from = l->sections[i], to = from + bytes[i];
	if (!from)
		return "has no address";
	if (from % alignment(r->device_type))
		return "is not aligned";
	if (!device_memory(from, bytes[i]))
		return "is not in one block of device memory";
	for (uint32_t j = 0; j < i; j++)
		if (from < l->sections[j] + bytes[j] && l->sections[j] < to)
			return "overlaps another section";
	return l->workspace && from < l->workspace + r->workspace && l->workspace < to ? "overlaps the workspace" : NULL;
}

// check_launch checks all sections and the workspace, after take_tensor of all tensors.
static status check_launch(const recipe *r, const launch *l, const bool *given) {
	for (uint32_t i = 0; i < r->operands; i++)
		if (r->operand[i].section >= 0 && !given[i]) {
			complain("recipe %s: tensor %s is missing", r->name, r->operand_name[i]);
			return FAILED_SECTION_VALIDATION;
		}
	uint64_t *bytes = section_bytes(r);
	const char *reason = NULL;
	for (uint32_t i = 0; i < r->sections && !reason; i++) {
		reason = check_section(r, l, bytes, i);
		if (reason)
			complain("recipe %s: section %u %s", r->name, i, reason);
	}
	free(bytes);
	if (reason)
		return FAILED_SECTION_VALIDATION;
	if (r->workspace && (!l->workspace || l->workspace % alignment(r->device_type) || !device_memory(l->workspace, r->workspace))) {
		complain("recipe %s: the workspace of %lu bytes is not in device memory, or not aligned", r->name, (unsigned long)r->workspace);
		return INVALID_ARGUMENT;
	}
	return SUCCESS;
}

// One generator serves all launches: stochastic rounding does not repeat.
static uint32_t random_lanes[RANDOM_LANES];

__attribute__((constructor)) static void seed_lanes(void) {
	uint64_t state = 0x2545f491;
	for (int i = 0; i < RANDOM_LANES; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		random_lanes[i] = state >> 32 | 1; // never 0
	}
}

call call_of(recipe *r, const step *s) {
	const char *nan = getenv("STANDIN_NAN");
	call c = {.kernel = s->kernel, .type = s->type, .from = s->from, .gaudi3 = is_gaudi3(r->device_type),
	          .drop_nan = nan && !strcmp(nan, "drop"), .ins = s->ins, .outs = s->outs, .params = s->params, .params_size = s->params_size, .random = random_lanes};
	for (uint32_t i = 0; i < s->ins; i++)
		c.in[i] = s->in[i] < 0 ? NULL : &r->operand[s->in[i]];
	for (uint32_t i = 0; i < s->outs; i++)
		c.out[i] = s->out[i] < 0 ? NULL : &r->operand[s->out[i]];
	return c;
}

static status run_launch(void *data) {
	launch *l = data;
	static long launches;
	recipe *r = object_find(l->recipe, RECIPE);
	status s = ++launches == setting("STANDIN_LOST", 0) ? SYNAPSE_TERMINATED : SUCCESS;
	if (!r) {
		complain("a launch runs after its recipe was destroyed");
		s = FAIL;
	}
	unsigned char *workspace = r && r->workspace ? device_memory(l->workspace, r->workspace) : NULL;
	if (!s && r->workspace && !workspace)
		s = FAIL;
	for (uint32_t i = 0; !s && i < r->operands; i++) {
		operand *o = &r->operand[i];
		o->data = NULL;
		if (o->section >= 0)
			o->data = device_memory(l->sections[o->section] + o->offset, bytes_of(o));
		else if (o->section == WORKSPACE)
			o->data = workspace + o->offset;
		else if (o->section == CONSTANTS)
			o->data = (char *)r->constant + o->offset;
		if (!o->data) {
			complain("a launch of %s runs after its memory was freed", r->name);
			s = FAIL;
		}
	}
	if (!s && workspace)
		memset(workspace, 0xff, r->workspace); // a workspace keeps no data between launches
	for (uint32_t i = 0; !s && i < r->steps; i++) {
		call c = call_of(r, &r->step[i]);
		c.backwards = !r->step[i].deterministic && launches % 2 == 0; // as if partial sums arrived in another order
		c.kernel->run(&c);
	}
	free(l->sections);
	return s;
}

status synLaunch(void *stream, const launch_tensor *tensors, const uint32_t n, uint64_t workspace, recipe *handle, uint32_t flags) {
	ENTER();
	recipe *r = object_find(handle, RECIPE);
	if (!r || (n && !tensors) || flags || !object_find(stream, STREAM)) // the stand-in identifies tensors by id only
		return leave(INVALID_ARGUMENT);
	if (r->device_type != device_type())
		return leave(DEVICE_TYPE_MISMATCH);
	launch l = {r, workspace, calloc(r->sections + 1, sizeof *l.sections)};
	bool *given = calloc(r->operands + 1, sizeof *given);
	status s = SUCCESS;
	for (uint32_t i = 0; i < n && !s; i++)
		s = take_tensor(r, &tensors[i], given, l.sections);
	if (!s)
		s = check_launch(r, &l, given);
	if (!s)
		s = enqueue(stream, run_launch, &l, sizeof l);
	if (s)
		free(l.sections);
	free(given);
	return leave(s);
}
