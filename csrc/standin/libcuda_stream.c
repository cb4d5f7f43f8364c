//go:build ignore

// Stand-in for libcuda.so.1: streams and events. Work is deferred until a call waits for
// it, so that a caller without the wait finds no result.

#define _GNU_SOURCE
#include "libcuda_stream.h"

#include <stdlib.h>
#include <string.h>

void append(list *l, op_run run, const void *data, size_t bytes) {
	op *o = malloc(sizeof *o + bytes);
	*o = (op){.run = run, .bytes = bytes};
	memcpy(o->data, data, bytes);
	if (!l->first)
		l->end = &l->first;
	*l->end = o;
	l->end = &o->next;
}

void clear(list *l) {
	for (op *o = l->first; o;) {
		op *next = o->next;
		free(o);
		o = next;
	}
	l->first = NULL;
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
static int await(void *data);

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
	if (o->run != reach && o->run != await && !crosses(o->run))
		advance_clock(setting("STANDIN_GAP", 0));
	s->work.first = o->next;
	free(o);
	notify_all();
	return 1;
}

// step_others runs one operation of every stream of every device, but not of s, and returns
// how many ran.
static int step_others(const stream *s) {
	int done = 0;
	for (object *o = object_first(); o; o = o->next)
		if (o->kind == STREAM && (stream *)o != s && ((stream *)o)->work.first)
			done += step((stream *)o);
	return done;
}

// advance runs the oldest operation of a stream, or waits until it may run. Work that it
// depends on may be deferred too, or not be enqueued yet. Other streams are as late as the
// dependencies allow, with STANDIN_EARLY as early.
static void advance(stream *s) {
	while (setting("STANDIN_EARLY", 0) && step_others(s))
		;
	if (!step(s) && !step_others(s))
		wait_for_notify();
}

// drain runs all work of a stream.
static int drain(stream *s) {
	while (s->work.first)
		advance(s);
	return current->device->lost;
}

void drain_stream(stream *s) { drain(s); }

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
		if (o->kind == STREAM && s->capture && pthread_equal(s->capture->thread, pthread_self())) {
			s->capture->invalidated = 1;
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
	if (s->capture)
		s->seen[s->lane]++;
	append(s->capture ? &s->captured : &s->work, run, data, bytes);
	notify_all();
	return leave(SUCCESS);
}

int standin_capturing(void *handle) {
	if (enter())
		return 0;
	const stream *s = object_find(handle, STREAM);
	const int capturing = s && s->capture;
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
	if (s->capture) {
		s->capture->invalidated = 1;
		return leave(CAPTURE_UNSUPPORTED);
	}
	status = drain(s);
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
	if (!status && s->capture) {
		s->capture->invalidated = 1;
		status = CAPTURE_UNSUPPORTED;
	}
	if (!status && s->work.first) {
		if (!step(s))
			step_others(s);
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
	record *record;
} point;

static void drop(record *r) {
	if (r && --r->references == 0)
		free(r);
}

static int reach(void *data) {
	const point *p = data;
	event *e = object_find(p->event, EVENT);
	if (e && e->last == p->record) { // not destroyed or recorded again since
		e->state = REACHED;
		e->time = now();
	}
	p->record->reached = 1;
	drop(p->record);
	return SUCCESS;
}

// await is the operation of cuStreamWaitEvent.
static int await(void *data) {
	record *r = *(record **)data;
	if (!r->reached)
		return STANDIN_LATER;
	drop(r);
	return SUCCESS;
}

int cuEventCreate(void **out, unsigned flags) {
	const int status = enter();
	if (status)
		return status;
	if (flags > 7)
		return leave(INVALID_VALUE);
	event *e = object_new(EVENT, sizeof *e);
	e->untimed = flags & 2;
	*out = e;
	return leave(SUCCESS);
}

int cuEventDestroy_v2(void *handle) {
	const int status = enter();
	if (status)
		return status;
	event *e = object_find(handle, EVENT);
	if (!e)
		return leave(INVALID_HANDLE);
	drop(e->last);
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
	drop(e->last);
	e->last = NULL;
	e->on = on;
	e->state = on->capture ? CAPTURED : PENDING;
	if (on->capture) {
		record_captured(on, e);
		return leave(SUCCESS);
	}
	e->last = malloc(sizeof *e->last);
	*e->last = (record){.references = 2};
	const point p = {handle, e->last};
	append(&on->work, reach, &p, sizeof p);
	return leave(SUCCESS);
}

// The stream waits for the event's last record at the time of the call.
int cuStreamWaitEvent(void *on, void *handle, unsigned flags) {
	const int status = enter();
	if (status)
		return status;
	stream *s = object_find(on, STREAM);
	event *e = object_find(handle, EVENT);
	if (!s || !e)
		return leave(INVALID_HANDLE);
	if (flags)
		return leave(INVALID_VALUE);
	if (s->capture || e->state == CAPTURED)
		return leave(wait_captured(s, e));
	if (e->last) {
		e->last->references++;
		append(&s->work, await, &e->last, sizeof e->last);
	}
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
		advance(e->on);
	return leave(current->device->lost);
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
	const int status = enter();
	if (status)
		return status;
	const event *a = object_find(from, EVENT), *b = object_find(to, EVENT);
	if (!a || !b || a->state == NEVER || b->state == NEVER || a->untimed || b->untimed)
		return leave(INVALID_HANDLE);
	if (a->state == CAPTURED || b->state == CAPTURED)
		return leave(CAPTURED_EVENT);
	if (a->state == PENDING || b->state == PENDING)
		return leave(NOT_READY);
	*milliseconds = 1e3 * (b->time.tv_sec - a->time.tv_sec) + 1e-6 * (b->time.tv_nsec - a->time.tv_nsec);
	return leave(SUCCESS);
}
