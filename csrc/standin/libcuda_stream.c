//go:build ignore

// Stand-in for libcuda.so.1: streams, events, captures and graphs. Work is deferred until
// a call waits for it, so that a caller without the wait finds no result.

#define _GNU_SOURCE
#include "libcuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct op {
	struct op *next;
	op_run run;
	size_t bytes;
	max_align_t data[];
} op;

typedef struct {
	op *first, **end;
} list;

typedef struct {
	object object;
	int blocking; // copies without a stream wait for this one
	list work;
	int capturing, invalidated; // invalidated: by a call that a capture forbids
	pthread_t thread;           // the capturing thread
	list captured;
} stream;

typedef struct {
	object object;
	list work;
} graph;

typedef struct {
	object object;
	int state; // of the last record
	int records;
	stream *on;
	struct timespec time;
} event;

enum { NEVER, PENDING, REACHED, CAPTURED };

static void append(list *l, op_run run, const void *data, size_t bytes) {
	op *o = malloc(sizeof *o + bytes);
	*o = (op){.run = run, .bytes = bytes};
	memcpy(o->data, data, bytes);
	if (!l->first)
		l->end = &l->first;
	*l->end = o;
	l->end = &o->next;
}

static void clear(list *l) {
	for (op *o = l->first; o;) {
		op *next = o->next;
		free(o);
		o = next;
	}
	l->first = NULL;
}

static void append_all(list *to, const list *from) {
	for (op *o = from->first; o; o = o->next)
		append(to, o->run, o->data, o->bytes);
}

// The clock of STANDIN_GAP advances only when a device works, so every run measures the
// same time.
static int64_t clock_ns;

void advance_clock(int64_t nanoseconds) { clock_ns += nanoseconds; }

static struct timespec now(void) {
	struct timespec t;
	if (setting("STANDIN_GAP", 0))
		return (struct timespec){clock_ns / 1000000000, clock_ns % 1000000000};
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t;
}

static int reach(void *data);

// step runs the oldest operation of a stream in the stream's context. It returns 0 if the
// operation has to wait for another stream. A failed operation loses the device.
static int step(stream *s) {
	op *o = s->work.first;
	context *const caller = current;
	device *const d = s->object.context->device;
	current = s->object.context;
	const int status = d->lost ? SUCCESS : o->run(o->data);
	current = caller;
	if (status == STANDIN_LATER)
		return 0;
	d->lost = d->lost ? d->lost : status;
	if (o->run != reach)
		advance_clock(setting("STANDIN_GAP", 0));
	s->work.first = o->next;
	free(o);
	notify_all();
	return 1;
}

// step_all runs one operation of every stream of every device and returns how many ran.
static int step_all(void) {
	int done = 0;
	for (object *o = object_first(); o; o = o->next)
		if (o->kind == STREAM && ((stream *)o)->work.first)
			done += step((stream *)o);
	return done;
}

// drain runs all work of a stream. Work that it depends on may be deferred too, or not be
// enqueued yet.
static int drain(stream *s) {
	while (s->work.first)
		if (!step(s) && !step_all())
			wait_for_notify();
	return current->device->lost;
}

int drain_all(void) {
	for (object *o = object_first(); o; o = o->next)
		if (o->kind == STREAM && o->context == current)
			drain((stream *)o);
	return current->device->lost;
}

int unsafe_in_capture(void) {
	int status = SUCCESS;
	for (object *o = object_first(); o; o = o->next) {
		stream *s = (stream *)o;
		if (o->kind == STREAM && s->capturing && pthread_equal(s->thread, pthread_self())) {
			s->invalidated = 1;
			status = CAPTURE_UNSUPPORTED;
		}
	}
	return status;
}

// Stream 0 is an error: octet does not use it.
int standin_enqueue(void *handle, op_run run, const void *data, size_t bytes) {
	int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	append(s->capturing ? &s->captured : &s->work, run, data, bytes);
	notify_all();
	return leave(SUCCESS);
}

int standin_capturing(void *handle) {
	if (enter())
		return 0;
	const stream *s = object_find(handle, STREAM);
	const int capturing = s && s->capturing;
	leave(SUCCESS);
	return capturing;
}

int standin_load(void) {
	const int status = enter();
	return status ? status : leave(unsafe_in_capture());
}

int cuStreamCreate(void **out, unsigned flags) {
	const int status = enter();
	if (status)
		return status;
	if (flags > 1)
		return leave(INVALID_VALUE);
	stream *s = object_new(STREAM, sizeof *s);
	s->blocking = !flags;
	*out = s;
	return leave(SUCCESS);
}

int cuStreamDestroy_v2(void *handle) {
	int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	status = drain(s);
	clear(&s->captured);
	object_free(s);
	return leave(status);
}

int cuStreamSynchronize(void *handle) {
	int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	status = s ? unsafe_in_capture() : INVALID_HANDLE;
	return leave(status ? status : drain(s));
}

// Each query completes one more operation. A query of a capturing stream invalidates the
// capture, from any thread.
int cuStreamQuery(void *handle) {
	int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	status = s ? unsafe_in_capture() : INVALID_HANDLE;
	if (!status && s->capturing) {
		s->invalidated = 1;
		status = CAPTURE_UNSUPPORTED;
	}
	if (!status && s->work.first) {
		step(s);
		const int lost = current->device->lost;
		status = lost ? lost : s->work.first ? NOT_READY : SUCCESS;
	}
	return leave(status);
}

// Copies and fills.

typedef struct {
	void *to;
	const void *from;
	size_t bytes;
	int on_device; // 1: to, 2: from, 3: both
	unsigned char value;
} transfer;

static int copy(void *data) {
	const transfer *t = data;
	if (t->on_device & 1 && !standin_device(t->to, t->bytes))
		return ILLEGAL_ADDRESS;
	if (t->on_device & 2 && !standin_device(t->from, t->bytes))
		return ILLEGAL_ADDRESS;
	if (t->from)
		memmove(t->to, t->from, t->bytes);
	else
		memset(t->to, t->value, t->bytes);
	return SUCCESS;
}

// A transfer of 0 bytes is an error: the driver's documentation does not say whether it is
// allowed.
static int enqueue_transfer(transfer t, void *s) {
	if (!t.bytes)
		return INVALID_VALUE;
	if (t.on_device & 1 && !standin_device(t.to, t.bytes))
		return INVALID_VALUE;
	if (t.on_device & 2 && !standin_device(t.from, t.bytes))
		return INVALID_VALUE;
	return standin_enqueue(s, copy, &t, sizeof t);
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *s) {
	return enqueue_transfer((transfer){(void *)(uintptr_t)to, from, bytes, 1, 0}, s);
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *s) {
	return enqueue_transfer((transfer){to, (void *)(uintptr_t)from, bytes, 2, 0}, s);
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *s) {
	return enqueue_transfer((transfer){(void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, 3, 0}, s);
}

int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *s) {
	return enqueue_transfer((transfer){(void *)(uintptr_t)to, NULL, bytes, 1, value}, s);
}

// transfer_now copies without a stream: synchronously, after the work of blocking streams
// only.
static int transfer_now(transfer t) {
	int status = enter();
	if (status)
		return status;
	status = unsafe_in_capture();
	for (object *o = object_first(); o && !status; o = o->next)
		if (o->kind == STREAM && o->context == current && ((stream *)o)->blocking)
			status = drain((stream *)o);
	if (!status && copy(&t))
		status = INVALID_VALUE;
	return leave(status);
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
	return transfer_now((transfer){(void *)(uintptr_t)to, from, bytes, 1, 0});
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
	return transfer_now((transfer){to, (void *)(uintptr_t)from, bytes, 2, 0});
}

// Events.

typedef struct {
	void *event;
	int record;
} point;

static int reach(void *data) {
	const point *p = data;
	event *e = object_find(p->event, EVENT);
	if (e && e->records == p->record) { // not destroyed or recorded again since
		e->state = REACHED;
		e->time = now();
	}
	return SUCCESS;
}

int cuEventCreate(void **out, unsigned flags) {
	const int status = enter();
	if (status)
		return status;
	if (flags > 7)
		return leave(INVALID_VALUE);
	*out = object_new(EVENT, sizeof(event));
	return leave(SUCCESS);
}

int cuEventDestroy_v2(void *handle) {
	const int status = enter();
	if (status)
		return status;
	event *e = object_find(handle, EVENT);
	if (!e)
		return leave(INVALID_HANDLE);
	object_free(e);
	return leave(SUCCESS);
}

int cuEventRecord(void *handle, void *s) {
	const int status = enter();
	if (status)
		return status;
	event *e = object_find(handle, EVENT);
	stream *on = object_find(s, STREAM);
	if (!e || !on)
		return leave(INVALID_HANDLE);
	e->state = on->capturing ? CAPTURED : PENDING;
	e->on = on;
	const point p = {handle, ++e->records};
	if (!on->capturing)
		append(&on->work, reach, &p, sizeof p);
	return leave(SUCCESS);
}

// Operations enqueued after the event do not run.
int cuEventSynchronize(void *handle) {
	int status = enter();
	if (status)
		return status;
	event *e = object_find(handle, EVENT);
	status = e ? unsafe_in_capture() : INVALID_HANDLE;
	if (!status && e->state == CAPTURED)
		status = CAPTURED_EVENT;
	if (status)
		return leave(status);
	// A lost device never reaches an event.
	while (e->state == PENDING && object_find(e->on, STREAM) && e->on->work.first)
		if (!step(e->on) && !step_all())
			wait_for_notify();
	return leave(current->device->lost);
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
	const int status = enter();
	if (status)
		return status;
	const event *a = object_find(from, EVENT), *b = object_find(to, EVENT);
	if (!a || !b || a->state == NEVER || b->state == NEVER)
		return leave(INVALID_HANDLE);
	if (a->state == CAPTURED || b->state == CAPTURED)
		return leave(CAPTURED_EVENT);
	if (a->state == PENDING || b->state == PENDING)
		return leave(NOT_READY);
	*milliseconds = 1e3 * (b->time.tv_sec - a->time.tv_sec) + 1e-6 * (b->time.tv_nsec - a->time.tv_nsec);
	return leave(SUCCESS);
}

// Captures and graphs.

int cuStreamBeginCapture_v2(void *handle, int mode) {
	const int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	if (s->capturing)
		return leave(ILLEGAL_STATE);
	if (mode != 1) // only thread-local captures are implemented
		return leave(INVALID_VALUE);
	s->capturing = 1;
	s->invalidated = 0;
	s->thread = pthread_self();
	return leave(SUCCESS);
}

int cuStreamEndCapture(void *handle, void **out) {
	*out = NULL;
	const int status = enter();
	if (status)
		return status;
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_HANDLE);
	if (!s->capturing)
		return leave(ILLEGAL_STATE);
	if (!pthread_equal(s->thread, pthread_self()))
		return leave(CAPTURE_WRONG_THREAD);
	s->capturing = 0;
	if (s->invalidated) {
		clear(&s->captured);
		return leave(CAPTURE_INVALIDATED);
	}
	graph *g = object_new(GRAPH, sizeof *g);
	append_all(&g->work, &s->captured);
	clear(&s->captured);
	*out = g;
	return leave(SUCCESS);
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
	append_all(&exec->work, &g->work);
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
	clear(&g->work);
	object_free(g);
	return leave(SUCCESS);
}

int cuGraphDestroy(void *g) { return destroy(g, GRAPH); }
int cuGraphExecDestroy(void *g) { return destroy(g, GRAPH_EXEC); }

int cuGraphLaunch(void *handle, void *on) {
	int status = enter();
	if (status)
		return status;
	const graph *g = object_find(handle, GRAPH_EXEC);
	stream *s = object_find(on, STREAM);
	if (!g || !s)
		return leave(INVALID_HANDLE);
	if (s->capturing) {
		s->invalidated = 1;
		return leave(CAPTURE_UNSUPPORTED);
	}
	append_all(&s->work, &g->work);
	notify_all();
	return leave(SUCCESS);
}
