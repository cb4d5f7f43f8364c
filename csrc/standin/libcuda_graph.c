//go:build ignore

// Stand-in for libcuda.so.1: captures and graphs. A graph has a lane for each captured
// stream. A launch runs the first lane on the stream of the launch, the others on streams
// of the graph.

#define _GNU_SOURCE
#include "libcuda_stream.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
	object object;
	int lanes, points;
	list work[LANES];

	// Of an executable graph.
	stream *streams[LANES]; // of the lanes, but for the first
	uint64_t launches;
	uint64_t *reached; // of each point: the last launch that has reached it
} graph;

// A crossing is the record of an event in a capture, or a wait for one.
typedef struct {
	graph *of;
	uint64_t launch;
	int point;
} crossing;

static int reach_point(void *data) {
	const crossing *c = data;
	if (object_find(c->of, GRAPH_EXEC))
		c->of->reached[c->point] = c->launch;
	return SUCCESS;
}

static int await_point(void *data) {
	const crossing *c = data;
	return object_find(c->of, GRAPH_EXEC) && c->of->reached[c->point] < c->launch ? STANDIN_LATER : SUCCESS;
}

int crosses(op_run run) { return run == reach_point || run == await_point; }

void record_captured(stream *on, event *e) {
	const crossing c = {.point = on->capture->points++};
	append(&on->captured, reach_point, &c, sizeof c);
	e->capture = on->capture->number;
	e->point = c.point;
	memcpy(e->seen, on->seen, sizeof e->seen);
}

static capture *capture_of(const event *e) {
	for (object *o = object_first(); o; o = o->next) {
		capture *c = o->kind == STREAM ? ((stream *)o)->capture : NULL;
		if (c && c->number == e->capture)
			return c;
	}
	return NULL;
}

static int invalidate(capture *c, int status) {
	if (c)
		c->invalidated = 1;
	return status;
}

// A stream that waits for an event of a capture joins it. A stream that captures must not wait
// for other events; and no stream for an event of a capture that has ended (CUDA programming
// guide, Cross-stream Dependencies and Events; CUresult).
int wait_captured(stream *s, const event *e) {
	if (e->state != CAPTURED)
		return invalidate(s->capture, CAPTURE_ISOLATION);
	capture *c = capture_of(e);
	if (!c)
		return invalidate(s->capture, CAPTURED_EVENT);
	if (s->capture && s->capture != c) {
		invalidate(c, 0);
		return invalidate(s->capture, CAPTURE_MERGE);
	}
	if (!s->capture) {
		if (c->count == LANES)
			return invalidate(c, NOT_SUPPORTED);
		s->capture = c;
		s->lane = c->count;
		memset(s->seen, 0, sizeof s->seen);
		c->lanes[c->count++] = s;
	}
	for (int l = 0; l < LANES; l++)
		s->seen[l] = s->seen[l] > e->seen[l] ? s->seen[l] : e->seen[l];
	const crossing w = {.point = e->point};
	append(&s->captured, await_point, &w, sizeof w);
	return SUCCESS;
}

int cuStreamBeginCapture_v2(void *handle, int mode) {
	static uint64_t captures;
	const int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	if (s->capture)
		return leave(ILLEGAL_STATE);
	if (mode != 1) // only thread-local captures are implemented
		return leave(INVALID_VALUE);
	s->capture = malloc(sizeof *s->capture);
	*s->capture = (capture){.lanes = {s}, .count = 1, .number = ++captures, .thread = pthread_self()};
	s->lane = 0;
	memset(s->seen, 0, sizeof s->seen);
	return leave(SUCCESS);
}

// end takes all streams out of the capture, and returns an error if a lane has work that does
// not come before the end of the first.
static int end(capture *c, graph *g) {
	int status = c->invalidated ? CAPTURE_INVALIDATED : SUCCESS;
	for (int l = 0; l < c->count; l++) {
		if (!status && c->lanes[0]->seen[l] != c->lanes[l]->seen[l])
			status = CAPTURE_UNJOINED;
		g->work[l] = c->lanes[l]->captured;
		c->lanes[l]->captured.first = NULL;
		c->lanes[l]->capture = NULL;
	}
	g->lanes = c->count;
	g->points = c->points;
	free(c);
	return status;
}

static void free_graph(graph *g) {
	for (int l = 0; l < g->lanes; l++)
		clear(&g->work[l]);
	for (int l = 1; l < g->lanes; l++)
		if (g->streams[l]) {
			drain_stream(g->streams[l]);
			object_free(g->streams[l]);
		}
	free(g->reached);
	object_free(g);
}

int cuStreamEndCapture(void *handle, void **out) {
	*out = NULL;
	int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	if (!s->capture)
		return leave(ILLEGAL_STATE);
	if (s->lane)
		return leave(CAPTURE_UNMATCHED);
	if (!pthread_equal(s->capture->thread, pthread_self()))
		return leave(CAPTURE_WRONG_THREAD);
	graph *g = object_new(GRAPH, sizeof *g);
	status = end(s->capture, g);
	if (status)
		free_graph(g);
	else
		*out = g;
	return leave(status);
}

// append_lane appends a lane of a graph to a list, as part of a launch of g.
static void append_lane(list *to, const list *lane, graph *g) {
	for (op *o = lane->first; o; o = o->next) {
		if (!crosses(o->run)) {
			append(to, o->run, o->data, o->bytes);
			continue;
		}
		crossing c;
		memcpy(&c, o->data, sizeof c);
		c.of = g;
		c.launch = g->launches;
		append(to, o->run, &c, sizeof c);
	}
}

int cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags) {
	const int status = enter();
	if (status)
		return status;
	const graph *g = object_find(handle, GRAPH);
	if (!g)
		return leave(INVALID_HANDLE);
	if (flags)
		return leave(INVALID_VALUE);
	graph *exec = object_new(GRAPH_EXEC, sizeof *exec);
	exec->lanes = g->lanes;
	exec->points = g->points;
	exec->reached = calloc(g->points + 1, sizeof *exec->reached);
	for (int l = 0; l < g->lanes; l++) {
		append_lane(&exec->work[l], &g->work[l], exec);
		if (l)
			exec->streams[l] = object_new(STREAM, sizeof(stream));
	}
	*out = exec;
	return leave(SUCCESS);
}

static int destroy(void *handle, enum kind kind) {
	const int status = enter();
	if (status)
		return status;
	graph *g = object_find(handle, kind);
	if (!g)
		return leave(INVALID_HANDLE);
	free_graph(g);
	return leave(SUCCESS);
}

int cuGraphDestroy(void *g) { return destroy(g, GRAPH); }
int cuGraphExecDestroy(void *g) { return destroy(g, GRAPH_EXEC); }

int cuGraphLaunch(void *handle, void *on) {
	int status = enter();
	if (status)
		return status;
	graph *g = object_find(handle, GRAPH_EXEC);
	stream *s = object_find(on, STREAM);
	if (!g || !s)
		return leave(INVALID_HANDLE);
	if (s->capture)
		return leave(invalidate(s->capture, CAPTURE_UNSUPPORTED));
	g->launches++;
	for (int l = 0; l < g->lanes; l++)
		append_lane(l ? &g->streams[l]->work : &s->work, &g->work[l], g);
	notify_all();
	return leave(SUCCESS);
}
