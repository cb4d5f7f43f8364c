//go:build ignore

// Stand-in for libSynapse.so: compilation of graphs to recipes, and recipe files. A
// compiler may run nodes in any order that data and control edges allow, so this one
// shuffles them. It places tensors without a section in the workspace, and reuses their
// memory after the last reader.

#define _GNU_SOURCE
#include "libsynapse_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The edges of a graph as a bit matrix: row i of before has the nodes that must run before
// node i, directly or transitively.
typedef struct {
	node **node;
	uint32_t n, words;
	uint64_t *before;
} edges;

static bool is_before(const edges *e, uint32_t first, uint32_t second) {
	return e->before[(uint64_t)second * e->words + first / 64] >> first % 64 & 1;
}

static void put_before(const edges *e, uint32_t first, uint32_t second) {
	uint64_t *row = e->before + (uint64_t)second * e->words;
	const uint64_t *other = e->before + (uint64_t)first * e->words;
	row[first / 64] |= 1ull << first % 64;
	for (uint32_t w = 0; w < e->words; w++)
		row[w] |= other[w];
}

static edges edges_of(const graph *g) {
	edges e = {.n = g->nodes, .words = (g->nodes + 63) / 64};
	e.node = malloc(e.n * sizeof *e.node);
	e.before = calloc((uint64_t)e.n * e.words, sizeof *e.before);
	for (node *n = g->first; n; n = n->next)
		e.node[n->id - 1] = n;
	return e;
}

static void edges_free(edges *e) {
	free(e->node);
	free(e->before);
}

// order sorts the nodes topologically. A seeded generator chooses among the ready nodes. It
// returns false if the graph has a cycle.
static bool order(edges *e, uint32_t *sorted) {
	uint32_t *waits = calloc(e->n, sizeof *waits), *ready = malloc(e->n * sizeof *ready), readies = 0, done = 0;
	bool *direct = calloc((uint64_t)e->n * e->n, sizeof *direct); // [first][second]
	for (uint32_t i = 0; i < e->n; i++) {
		const node *n = e->node[i];
		for (uint32_t j = 0; j < n->call.ins; j++)
			if (n->in[j] && n->in[j]->producer)
				direct[(n->in[j]->producer->id - 1) * e->n + i] = true;
		for (uint32_t j = 0; j < n->afters; j++)
			direct[(n->after[j] - 1) * e->n + i] = true;
	}
	for (uint32_t i = 0; i < e->n; i++)
		for (uint32_t j = 0; j < e->n; j++)
			waits[j] += direct[i * e->n + j];
	for (uint32_t i = 0; i < e->n; i++)
		if (!waits[i])
			ready[readies++] = i;
	uint64_t random = setting("STANDIN_SEED", 1);
	while (readies) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		const uint32_t chosen = (random >> 33) % readies, first = ready[chosen];
		ready[chosen] = ready[--readies];
		sorted[done++] = first;
		for (uint32_t second = 0; second < e->n; second++)
			if (direct[(uint64_t)first * e->n + second]) {
				put_before(e, first, second);
				if (!--waits[second])
					ready[readies++] = second;
			}
	}
	free(waits);
	free(ready);
	free(direct);
	return done == e->n;
}

// Sections.

static bool overlap(const tensor *a, const tensor *b) {
	return a->section == b->section && a->offset < b->offset + bytes_of(&b->shape) && b->offset < a->offset + bytes_of(&a->shape);
}

static bool ordered(const edges *e, const node *a, const node *b) {
	return a == b || is_before(e, a->id - 1, b->id - 1) || is_before(e, b->id - 1, a->id - 1);
}

static bool reads(const node *n, const tensor *t) {
	for (uint32_t i = 0; i < n->call.ins; i++)
		if (n->in[i] == t)
			return true;
	return false;
}

// unordered returns whether the writer of a is unordered with a writer or reader of b, and
// complains. SynapseAI rejects such a graph (handle_memory_section_tensors.cpp).
static bool unordered(const edges *e, const tensor *a, const tensor *b) {
	for (uint32_t i = 0; a->producer && i < e->n; i++) {
		const node *n = e->node[i];
		if ((b->producer == n || reads(n, b)) && !ordered(e, a->producer, n)) {
			complain("tensors %s and %s share memory, but no explicit order between nodes %s and %s", a->name, b->name, a->producer->name, n->name);
			return true;
		}
	}
	return false;
}

static bool is_persistent(const tensor *t) { return t->section && t->section->persistent; }

// overwrites_input returns whether a node's output overlaps one of its inputs although its
// kernel cannot work in place, and complains.
static bool overwrites_input(const node *n) {
	for (uint32_t o = 0; o < n->call.outs; o++)
		for (uint32_t i = 0; i < n->call.ins; i++) {
			const tensor *a = n->in[i], *b = n->out[o];
			if (!a || !b || !is_persistent(a) || !is_persistent(b) || !overlap(a, b))
				continue;
			const bool same = a->offset == b->offset && bytes_of(&a->shape) == bytes_of(&b->shape);
			if (!same || !n->call.kernel->in_place) {
				complain("node %s (%s): input %s overlaps output %s", n->name, n->guid, a->name, b->name);
				return true;
			}
		}
	return false;
}

static bool check_sections(const graph *g, const edges *e) {
	for (tensor *a = g->tensors; a; a = a->next) {
		if (!is_persistent(a) || !a->locked)
			continue;
		if (a->offset % alignment(g->device_type)) {
			complain("tensor %s: offset %lu in its section is not a multiple of %lu", a->name, (unsigned long)a->offset, (unsigned long)alignment(g->device_type));
			return false;
		}
		for (tensor *b = g->tensors; b; b = b->next)
			if (b != a && b->locked && is_persistent(b) && overlap(a, b) && unordered(e, a, b))
				return false;
	}
	for (uint32_t i = 0; i < e->n; i++)
		if (overwrites_input(e->node[i]))
			return false;
	return true;
}

// check_contents returns false, and complains, if a node reads a tensor without contents.
static bool check_contents(const edges *e) {
	for (uint32_t i = 0; i < e->n; i++)
		for (uint32_t j = 0; j < e->node[i]->call.ins; j++) {
			const tensor *t = e->node[i]->in[j];
			if (t && !t->producer && !t->host && !is_persistent(t)) {
				complain("node %s reads tensor %s, which has no producer and no contents", e->node[i]->name, t->name);
				return false;
			}
		}
	return true;
}

// Placement.

enum { WORKSPACE_ALIGNMENT = 256 };

typedef struct {
	uint64_t from, to;
	uint32_t last; // step of the last access
} block;

static uint64_t rounded(uint64_t bytes) { return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT; }

// place inserts a block at the first gap of the blocks, sorted by from, and returns its
// offset.
static uint64_t place(block *blocks, uint32_t *n, uint64_t bytes, uint32_t last) {
	uint64_t at = 0;
	uint32_t i = 0;
	while (i < *n && blocks[i].from < at + bytes) {
		at = blocks[i].to;
		i++;
	}
	memmove(blocks + i + 1, blocks + i, (*n - i) * sizeof *blocks);
	blocks[i] = (block){at, at + bytes, last};
	++*n;
	return at;
}

static void place_all(recipe *r) {
	uint32_t *last = calloc(r->operands, sizeof *last), n = 0;
	block *blocks = malloc((r->operands + 1) * sizeof *blocks);
	for (uint32_t i = 0; i < r->steps; i++) {
		for (uint32_t j = 0; j < r->step[i].ins; j++)
			if (r->step[i].in[j] >= 0)
				last[r->step[i].in[j]] = i;
		for (uint32_t j = 0; j < r->step[i].outs; j++)
			if (r->step[i].out[j] >= 0)
				last[r->step[i].out[j]] = i;
	}
	for (uint32_t i = 0; i < r->steps; i++) {
		for (uint32_t j = 0; j < r->step[i].outs; j++) {
			const int32_t o = r->step[i].out[j];
			if (o < 0 || r->operand[o].section != WORKSPACE)
				continue;
			const uint64_t bytes = rounded(bytes_of(&r->operand[o]));
			r->operand[o].offset = place(blocks, &n, bytes, last[o]);
			if (r->operand[o].offset + bytes > r->workspace)
				r->workspace = r->operand[o].offset + bytes;
		}
		uint32_t left = 0;
		for (uint32_t j = 0; j < n; j++)
			if (blocks[j].last > i)
				blocks[left++] = blocks[j];
		n = left;
	}
	free(last);
	free(blocks);
}

// Recipes.

static void add_operands(recipe *r, graph *g) {
	uint32_t n = 0;
	for (tensor *t = g->tensors; t; t = t->next)
		n += t->locked;
	r->operand = calloc(n, sizeof *r->operand);
	r->operand_name = calloc(n, sizeof *r->operand_name);
	for (section *s = g->sections; s; s = s->next)
		s->number = -1;
	for (tensor *t = g->tensors; t; t = t->next) {
		if (!t->locked)
			continue;
		operand *o = &r->operand[r->operands];
		t->number = r->operands;
		r->operand_name[r->operands++] = strdup(t->name);
		*o = t->shape;
		if (is_persistent(t)) {
			if (t->section->number < 0)
				t->section->number = r->sections++;
			o->section = t->section->number;
			o->offset = t->offset;
		} else if (t->host) {
			o->offset = r->constants;
			const uint64_t bytes = bytes_of(o);
			r->constant = realloc(r->constant, r->constants + rounded(bytes));
			memcpy((char *)r->constant + r->constants, t->host, bytes);
			r->constants += rounded(bytes);
		}
	}
}

static void add_steps(recipe *r, const edges *e, const uint32_t *sorted) {
	r->step = calloc(e->n, sizeof *r->step);
	r->steps = e->n;
	for (uint32_t i = 0; i < e->n; i++) {
		const node *n = e->node[sorted[i]];
		step *s = &r->step[i];
		*s = (step){.kernel = n->call.kernel, .guid = strdup(n->guid), .name = strdup(n->name), .type = n->call.type, .from = n->call.from,
		            .deterministic = n->deterministic, .ins = n->call.ins, .outs = n->call.outs, .params_size = n->call.params_size};
		for (uint32_t j = 0; j < s->ins; j++)
			s->in[j] = n->in[j] ? n->in[j]->number : -1;
		for (uint32_t j = 0; j < s->outs; j++)
			s->out[j] = n->out[j] ? n->out[j]->number : -1;
		if (s->params_size)
			s->params = memcpy(malloc(s->params_size), n->params, s->params_size);
	}
}

static bool told_to_fail(const graph *g) {
	const char *guid = getenv("STANDIN_COMPILE_FAIL");
	for (const node *n = g->first; guid && n; n = n->next)
		if (!strcmp(n->guid, guid)) {
			complain("node %s (%s): STANDIN_COMPILE_FAIL", n->name, guid);
			return true;
		}
	return false;
}

static recipe *compile(graph *g, const edges *e, const uint32_t *sorted, const char *name) {
	recipe *r = object_new(RECIPE, sizeof *r);
	r->device_type = g->device_type;
	r->name = strdup(name);
	add_operands(r, g);
	add_steps(r, e, sorted);
	place_all(r);
	return r;
}

status synGraphCompile(recipe **out, graph *handle, const char *name, const char *log) {
	ENTER();
	graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(FAIL);
	if (!out || !name)
		return leave(INVALID_ARGUMENT);
	if (!g->nodes || told_to_fail(g))
		return leave(FAIL);
	edges e = edges_of(g);
	uint32_t *sorted = malloc(e.n * sizeof *sorted);
	const bool acyclic = order(&e, sorted);
	if (!acyclic)
		complain("recipe %s: the nodes have a cycle", name);
	const bool ok = acyclic && check_sections(g, &e) && check_contents(&e);
	if (ok)
		*out = compile(g, &e, sorted, name);
	free(sorted);
	edges_free(&e);
	return leave(ok ? SUCCESS : FAIL);
}

static void recipe_clear(recipe *r) {
	for (uint32_t i = 0; i < r->operands; i++)
		free(r->operand_name[i]);
	for (uint32_t i = 0; i < r->steps; i++) {
		free(r->step[i].guid);
		free(r->step[i].name);
		free(r->step[i].params);
	}
	free(r->name);
	free(r->operand);
	free(r->operand_name);
	free(r->step);
	free(r->constant);
	object_free(r);
}

status synRecipeDestroy(recipe *handle) {
	ENTER();
	recipe *r = object_find(handle, RECIPE);
	if (!r)
		return leave(INVALID_ARGUMENT);
	recipe_clear(r);
	return leave(SUCCESS);
}

// Files, in the stand-in's own format. A file is valid only for the version that wrote it.

static const char magic[32] = "octet stand-in recipe 1";

// The same functions write or read an archive.
typedef struct {
	FILE *file;
	bool writes, failed;
} archive;

static void raw(archive *a, void *p, uint64_t bytes) {
	if (bytes && !a->failed && (a->writes ? fwrite(p, bytes, 1, a->file) : fread(p, bytes, 1, a->file)) != 1)
		a->failed = true;
}

enum { MAX_BYTES = 1 << 30 }; // limit of a length that is read

// sized writes or reads a length and bytes. It terminates bytes that it reads with a 0.
static void sized(archive *a, void **p, uint64_t *bytes) {
	raw(a, bytes, sizeof *bytes);
	if (!a->writes) {
		a->failed |= *bytes > MAX_BYTES;
		*bytes = a->failed ? 0 : *bytes;
		*p = calloc(*bytes + 1, 1);
	}
	raw(a, *p, *bytes);
}

static void text(archive *a, char **s) {
	uint64_t bytes = a->writes ? strlen(*s) : 0;
	sized(a, (void **)s, &bytes);
}

static void array(archive *a, void **p, uint32_t *n, size_t size) {
	raw(a, n, sizeof *n);
	if (!a->writes) {
		a->failed |= (uint64_t)*n * size > MAX_BYTES;
		*n = a->failed ? 0 : *n;
		*p = calloc(*n + 1, size);
	}
}

static void archive_step(archive *a, step *s) {
	text(a, &s->guid);
	text(a, &s->name);
	raw(a, &s->deterministic, sizeof s->deterministic);
	raw(a, &s->ins, sizeof s->ins);
	raw(a, &s->outs, sizeof s->outs);
	a->failed |= s->ins > MAX_OPERANDS || s->outs > MAX_OPERANDS;
	if (a->failed)
		return;
	raw(a, s->in, s->ins * sizeof *s->in);
	raw(a, s->out, s->outs * sizeof *s->out);
	uint64_t bytes = s->params_size;
	sized(a, &s->params, &bytes);
	s->params_size = bytes;
	if (!a->writes)
		s->kernel = kernel_find(s->guid, &s->type, &s->from);
	a->failed |= !s->kernel;
}

static void archive_recipe(archive *a, recipe *r) {
	char head[sizeof magic];
	memcpy(head, magic, sizeof head);
	raw(a, head, sizeof head);
	a->failed |= memcmp(head, magic, sizeof head) != 0;
	raw(a, &r->device_type, sizeof r->device_type);
	text(a, &r->name);
	raw(a, &r->sections, sizeof r->sections);
	raw(a, &r->workspace, sizeof r->workspace);
	sized(a, &r->constant, &r->constants);
	array(a, (void **)&r->operand, &r->operands, sizeof *r->operand);
	raw(a, r->operand, r->operands * sizeof *r->operand);
	if (!a->writes)
		r->operand_name = calloc(r->operands + 1, sizeof *r->operand_name);
	for (uint32_t i = 0; i < r->operands && !a->failed; i++)
		text(a, &r->operand_name[i]);
	array(a, (void **)&r->step, &r->steps, sizeof *r->step);
	for (uint32_t i = 0; i < r->steps && !a->failed; i++)
		archive_step(a, &r->step[i]);
}

static bool valid_operand(const recipe *r, const operand *o) {
	if (!type_size(o->type) || o->dims > MAX_DIMS || o->section < CONSTANTS || o->section >= (int64_t)r->sections)
		return false;
	const uint64_t limit = o->section == WORKSPACE ? r->workspace : o->section == CONSTANTS ? r->constants : ~0ull;
	return o->offset <= limit && bytes_of(o) <= limit - o->offset;
}

// valid checks a recipe that was read as thoroughly as compilation does.
static bool valid(recipe *r) {
	for (uint32_t i = 0; i < r->operands; i++)
		if (!valid_operand(r, &r->operand[i]))
			return false;
	for (uint32_t i = 0; i < r->steps; i++) {
		const step *s = &r->step[i];
		for (uint32_t j = 0; j < s->ins; j++)
			if (s->in[j] >= (int64_t)r->operands)
				return false;
		for (uint32_t j = 0; j < s->outs; j++)
			if (s->out[j] >= (int64_t)r->operands)
				return false;
		const call c = call_of(r, s);
		if (kernel_check(&c))
			return false;
	}
	return r->device_type == GAUDI2 || r->device_type == GAUDI3;
}

status synRecipeSerialize(recipe *handle, const char *path) {
	ENTER();
	recipe *r = object_find(handle, RECIPE);
	if (!r || !path)
		return leave(INVALID_ARGUMENT);
	archive a = {fopen(path, "wb"), true, false};
	if (!a.file)
		return leave(FAIL);
	archive_recipe(&a, r);
	a.failed |= fclose(a.file) != 0;
	return leave(a.failed ? FAIL : SUCCESS);
}

status synRecipeDeSerialize(recipe **out, const char *path) {
	ENTER();
	if (!out || !path)
		return leave(INVALID_ARGUMENT);
	archive a = {fopen(path, "rb"), false, false};
	if (!a.file)
		return leave(FAIL);
	recipe *r = object_new(RECIPE, sizeof *r);
	archive_recipe(&a, r);
	fclose(a.file);
	if (a.failed || !valid(r)) {
		complain("%s is not a recipe of this version", path);
		recipe_clear(r);
		return leave(FAIL);
	}
	*out = r;
	return leave(SUCCESS);
}
