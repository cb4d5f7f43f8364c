//go:build ignore

// Stand-in for libSynapse.so: kernels that copy, look up or create data. They take any type
// and keep its bits.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <stdlib.h>
#include <string.h>

// A view is an operand or a part of it, with any order of dimensions.
typedef struct {
	unsigned char *data;
	uint64_t strides[MAX_DIMS]; // bytes
} view;

static view view_of(const operand *o) {
	view v = {.data = o->data};
	uint64_t stride = type_size(o->type);
	for (int d = 0; d < MAX_DIMS; d++) {
		v.strides[d] = stride;
		stride *= o->sizes[d];
	}
	return v;
}

// copy moves sizes[0] × sizes[1] × … elements.
static void copy(view to, view from, const uint64_t *sizes, uint64_t size) {
	const uint64_t *s = sizes;
	for (uint64_t row = 0; row < s[1] * s[2] * s[3] * s[4]; row++) {
		const uint64_t index[] = {0, row % s[1], row / s[1] % s[2], row / s[1] / s[2] % s[3], row / s[1] / s[2] / s[3]};
		unsigned char *t = to.data, *f = from.data;
		for (int d = 1; d < MAX_DIMS; d++) {
			t += index[d] * to.strides[d];
			f += index[d] * from.strides[d];
		}
		if (to.strides[0] == size && from.strides[0] == size) {
			memmove(t, f, s[0] * size);
			continue;
		}
		for (uint64_t i = 0; i < s[0]; i++)
			memcpy(t + i * to.strides[0], f + i * from.strides[0], size);
	}
}

static void copy_all(const call *c) { memmove(c->out[0]->data, c->in[0]->data, bytes_of(c->out[0])); }

static const char *check_same(const call *c) { return same_sizes(c->in[0], c->out[0]) ? NULL : "the sizes of output and input differ"; }

static const char *check_elements(const call *c) {
	return elements(c->in[0]) == elements(c->out[0]) ? NULL : "the output and the input differ in the number of elements";
}

static const char *check_bytes(const call *c) {
	return bytes_of(c->in[0]) == bytes_of(c->out[0]) ? NULL : "the output and the input differ in the number of bytes";
}

// transpose: synTransposeParamsNDims. Dimension d of the output is dimension
// permutation[d] of the input.
typedef struct {
	uint32_t dims, permutation[MAX_SIZES];
} transpose_params;

static const char *check_transpose(const call *c) {
	const transpose_params *p = c->params;
	const operand *a = c->in[0], *o = c->out[0];
	uint32_t seen = 0;
	if (p->dims != a->dims || o->dims != a->dims)
		return "the numbers of dimensions of the permutation and the operands differ";
	for (uint32_t d = 0; d < p->dims; d++) {
		if (p->permutation[d] >= p->dims || seen >> p->permutation[d] & 1)
			return "not a permutation";
		seen |= 1u << p->permutation[d];
		if (o->sizes[d] != a->sizes[p->permutation[d]])
			return "the sizes of output and permuted input differ";
	}
	return NULL;
}

static void run_transpose(const call *c) {
	const transpose_params *p = c->params;
	const view whole = view_of(c->in[0]);
	view from = whole;
	for (uint32_t d = 0; d < p->dims; d++)
		from.strides[d] = whole.strides[p->permutation[d]];
	copy(view_of(c->out[0]), from, c->out[0]->sizes, type_size(c->out[0]->type));
}

// slice: synSliceParamsV2. An entry with axis, start and end 0 is unused.
typedef struct {
	uint32_t axes[MAX_SIZES];
	uint64_t starts[MAX_SIZES], ends[MAX_SIZES], steps[MAX_SIZES];
} slice_params;

_Static_assert(sizeof(slice_params) == 704 && sizeof(transpose_params) == 104, "vendor's structures");

typedef struct {
	uint64_t start[MAX_DIMS], step[MAX_DIMS];
} part;

static const char *part_of(part *p, const slice_params *s, const operand *whole, const operand *sliced) {
	uint64_t sizes[MAX_DIMS];
	for (int d = 0; d < MAX_DIMS; d++) {
		p->start[d] = 0;
		p->step[d] = 1;
		sizes[d] = whole->sizes[d];
	}
	for (uint32_t i = 0; i < whole->dims; i++) {
		const uint32_t d = s->axes[i];
		if (!d && !s->starts[i] && !s->ends[i])
			continue;
		if (d >= whole->dims || s->starts[i] >= s->ends[i] || s->ends[i] > whole->sizes[d] || !s->steps[i])
			return "a range is outside its dimension";
		p->start[d] = s->starts[i];
		p->step[d] = s->steps[i];
		sizes[d] = (s->ends[i] - s->starts[i] + s->steps[i] - 1) / s->steps[i];
	}
	return whole->dims == sliced->dims && !memcmp(sizes, sliced->sizes, sizeof sizes) ? NULL : "the sizes of the output and the ranges differ";
}

static view view_of_part(const operand *whole, const part *p) {
	view v = view_of(whole);
	for (int d = 0; d < MAX_DIMS; d++) {
		v.data += p->start[d] * v.strides[d];
		v.strides[d] *= p->step[d];
	}
	return v;
}

static const char *check_slice(const call *c) {
	part p;
	return part_of(&p, c->params, c->in[0], c->out[0]);
}

static void run_slice(const call *c) {
	part p;
	part_of(&p, c->params, c->in[0], c->out[0]);
	copy(view_of(c->out[0]), view_of_part(c->in[0], &p), c->out[0]->sizes, type_size(c->out[0]->type));
}

// concat: synAxisParams.

static uint32_t axis_of(const call *c) { return *(const uint32_t *)c->params; }

static const char *check_concat(const call *c) {
	const operand *whole = c->out[0];
	const uint32_t axis = axis_of(c);
	uint64_t size = 0;
	if (axis >= whole->dims)
		return "the axis is out of range";
	for (uint32_t i = 0; i < c->ins; i++) {
		for (uint32_t d = 0; d < MAX_DIMS; d++)
			if (d != axis && c->in[i]->sizes[d] != whole->sizes[d])
				return "sizes outside the axis differ";
		size += c->in[i]->sizes[axis];
	}
	return size == whole->sizes[axis] ? NULL : "the inputs' sizes do not add up to the output's";
}

static void run_concat(const call *c) {
	view to = view_of(c->out[0]);
	for (uint32_t i = 0; i < c->ins; i++) {
		copy(to, view_of(c->in[i]), c->in[i]->sizes, type_size(c->out[0]->type));
		to.data += c->in[i]->sizes[axis_of(c)] * to.strides[axis_of(c)];
	}
}

// constant_f32: ns_ConstantKernel::Params.

static void run_constant(const call *c) {
	const operand *o = c->out[0];
	float *to = o->data;
	for (uint64_t i = 0; i < elements(o); i++)
		memcpy(&to[i], c->params, sizeof *to);
}

// gather_fwd: [data, indices], ns_GatherKernel::Params. In the output, the indices'
// dimensions replace the axis.

static const char *check_gather(const call *c) {
	const operand *a = c->in[0], *index = c->in[1], *o = c->out[0];
	const uint32_t axis = axis_of(c);
	if (axis >= a->dims || a->dims - 1 + index->dims != o->dims)
		return "the output must have the data's dimensions, with the indices' for the axis";
	for (uint32_t d = 0; d < o->dims; d++) {
		const uint64_t size = d < axis ? a->sizes[d] : d < axis + index->dims ? index->sizes[d - axis] : a->sizes[d - index->dims + 1];
		if (o->sizes[d] != size)
			return "the sizes of the output and the gathered data differ";
	}
	return NULL;
}

static void run_gather(const call *c) {
	const operand *a = c->in[0], *index = c->in[1];
	const uint32_t axis = axis_of(c);
	uint64_t inner = type_size(a->type), outer = 1;
	for (uint32_t d = 0; d < a->dims; d++)
		*(d < axis ? &inner : &outer) *= d == axis ? 1 : a->sizes[d];
	const uint64_t rows = a->sizes[axis], n = elements(index);
	const int32_t *at = index->data;
	for (uint64_t i = 0; i < outer; i++)
		for (uint64_t j = 0; j < n; j++) {
			unsigned char *to = (unsigned char *)c->out[0]->data + (i * n + j) * inner;
			if (at[j] >= 0 && (uint64_t)at[j] < rows) {
				memcpy(to, (unsigned char *)a->data + (i * rows + at[j]) * inner, inner);
				continue;
			}
			complain("gather_fwd: index %d is outside [0, %lu)", at[j], (unsigned long)rows);
			memset(to, 0xff, inner);
		}
}

// embedding_dense_pt_bwd: [gradient, indices], ns_EmbeddingDensePtBwdKernel::Params.
typedef struct {
	int32_t rows, padding;
	bool by_frequency;
} embedding_params;

static const char *check_embedding(const call *c) {
	const embedding_params *p = c->params;
	const operand *grad = c->in[0], *index = c->in[1], *o = c->out[0];
	if (elements(index) * grad->sizes[0] != elements(grad))
		return "the gradient must have one row per index";
	if (o->dims != 2 || o->sizes[0] != grad->sizes[0] || o->sizes[1] != (uint64_t)p->rows)
		return "the sizes of the output and the table differ";
	return p->by_frequency ? "scaling by frequency is not implemented" : NULL;
}

static void run_embedding(const call *c) {
	const embedding_params *p = c->params;
	const operand *grad = c->in[0], *o = c->out[0];
	const int32_t *index = c->in[1]->data;
	const uint64_t width = o->sizes[0];
	float *table = calloc(width * p->rows, sizeof *table), *row = malloc(width * sizeof *row);
	for (uint64_t i = 0; i < elements(c->in[1]); i++) {
		if (index[i] == p->padding)
			continue;
		if (index[i] < 0 || index[i] >= p->rows) {
			complain("embedding_dense_pt_bwd: index %d is outside [0, %d)", index[i], p->rows);
			continue;
		}
		load(row, grad, i * width, width, c->gaudi3);
		for (uint64_t j = 0; j < width; j++)
			table[index[i] * width + j] += row[j];
	}
	store(o, 0, table, width * p->rows, c->gaudi3);
	free(table);
	free(row);
}

const kernel data_kernels[] = {
	{"identity", 0, "A", "A", {0}, check_same, copy_all, NULL, true},
	{"reshape", 0, "A", "A", {0}, check_elements, copy_all, NULL, true},
	{"reinterpret_cast", 0, "N", "N", {0}, check_bytes, copy_all, NULL, true},
	{"transpose", 0, "A", "A", {sizeof(transpose_params)}, check_transpose, run_transpose, NULL},
	{"slice", 0, "A", "A", {sizeof(slice_params)}, check_slice, run_slice, NULL},
	{"concat", 0, "A*", "A", {4}, check_concat, run_concat, NULL},
	{"constant", F32, "", "T", {4}, NULL, run_constant, NULL},
	{"gather_fwd", F32 | BF16 | I32, "TI", "T", {4}, check_gather, run_gather, NULL},
	{"embedding_dense_pt_bwd", F32 | BF16, "TI", "T", {sizeof(embedding_params)}, check_embedding, run_embedding, NULL},
	{0},
};
