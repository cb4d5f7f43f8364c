//go:build gaudi && cgo && linux

#include "libsynapse.h"
#include "api.h"

#include <stdio.h>
#include <stdlib.h>

octet_syn_status octet_syn_recipe_load(const octet_synapse *api, const char *path, octet_syn_handle *out) {
	synRecipeHandle r;
	TRY(api, synRecipeDeSerialize, &r, path);
	*out = (octet_syn_handle)r;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_recipe_save(const octet_synapse *api, octet_syn_handle r, const char *path) {
	TRY(api, synRecipeSerialize, (synRecipeHandle)r, path);
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_recipe_free(const octet_synapse *api, octet_syn_handle r) {
	TRY(api, synRecipeDestroy, (synRecipeHandle)r);
	return (octet_syn_status){0};
}

struct octet_syn_launch_info {
	uint32_t count;
	synLaunchTensorInfo *infos;
	struct {
		char name[OCTET_TENSOR_NAME]; // for SynapseAI's log
		uint32_t section;
		uint64_t offset;
	} *places;
};

void octet_syn_launch_info_free(octet_syn_launch_info *l) {
	if (!l)
		return;
	free(l->infos);
	free(l->places);
	free(l);
}

static octet_syn_launch_info *new_launch_info(uint32_t count) {
	octet_syn_launch_info *l = calloc(1, sizeof *l);
	if (!l)
		return NULL;
	l->infos = calloc(count, sizeof *l->infos);
	l->places = calloc(count, sizeof *l->places);
	if (count && (!l->infos || !l->places)) {
		octet_syn_launch_info_free(l);
		return NULL;
	}
	return l;
}

// add_info resolves the id of tensor t and appends it, if the recipe has it: the compiler
// may remove a node without readers, with its operands.
static octet_syn_status add_info(const octet_synapse *api, octet_syn_handle r, octet_syn_launch_info *l, uint32_t index, const octet_syn_tensor *t) {
	synLaunchTensorInfo *info = &l->infos[l->count];
	char *name = l->places[l->count].name;
	snprintf(name, OCTET_TENSOR_NAME, "t%u", index);
	const char *names[] = {name};
	info->tensorId = OCTET_INVALID_ID;
	TRY(api, synTensorRetrieveIds, (synRecipeHandle)r, names, &info->tensorId, 1);
	if (info->tensorId == OCTET_INVALID_ID)
		return (octet_syn_status){0};
	info->tensorName = name;
	info->tensorType = DATA_TENSOR;
	for (uint32_t i = 0; i < t->dims; i++)
		info->tensorSize[i] = t->sizes[i];
	l->places[l->count].section = (uint32_t)t->section;
	l->places[l->count].offset = t->offset;
	l->count++;
	return (octet_syn_status){0};
}

octet_syn_status octet_syn_recipe_info(const octet_synapse *api, octet_syn_handle r, uint32_t tensors, const octet_syn_tensor *tensor,
			       uint64_t *workspace, octet_syn_launch_info **out, uint32_t *known) {
	*out = NULL;
	TRY(api, synWorkspaceGetSize, workspace, (synRecipeHandle)r);
	octet_syn_launch_info *l = new_launch_info(tensors);
	if (!l)
		return (octet_syn_status){"calloc", -1};
	for (uint32_t i = 0; i < tensors; i++) {
		if (tensor[i].section < 0)
			continue;
		const octet_syn_status status = add_info(api, r, l, i, &tensor[i]);
		if (status.code) {
			octet_syn_launch_info_free(l);
			return status;
		}
	}
	*out = l;
	*known = l->count;
	return (octet_syn_status){0};
}

// Flags 0: SynapseAI matches tensors by id, not by name.
octet_syn_status octet_syn_launch(const octet_synapse *api, octet_syn_handle r, octet_syn_launch_info *l, octet_syn_handle s,
			  const uint64_t *sections, uint64_t workspace) {
	for (uint32_t i = 0; i < l->count; i++)
		l->infos[i].pTensorAddress = sections[l->places[i].section] + l->places[i].offset;
	TRY(api, synLaunch, (synStreamHandle)s, l->infos, l->count, workspace, (synRecipeHandle)r, 0);
	return (octet_syn_status){0};
}
