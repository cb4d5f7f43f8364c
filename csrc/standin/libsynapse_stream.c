//go:build ignore

// Stand-in for libSynapse.so: streams, events and copies. Work is deferred until a call
// waits for it, so that a caller without the wait finds no result.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct piece {
	struct piece *next;
	work run;
	max_align_t data[];
} piece;

typedef struct {
	object object;
	piece *first, **end;
} stream;

status enqueue(void *handle, work run, const void *data, size_t bytes) {
	stream *s = object_find(handle, STREAM);
	if (!s)
		return INVALID_ARGUMENT;
	piece *p = malloc(sizeof *p + bytes);
	*p = (piece){.run = run};
	memcpy(p->data, data, bytes);
	if (!s->first)
		s->end = &s->first;
	*s->end = p;
	s->end = &p->next;
	return SUCCESS;
}

// run_first runs the oldest piece of work. An error loses the device.
static void run_first(stream *s) {
	piece *p = s->first;
	s->first = p->next;
	if (!lost()) {
		const status result = p->run(p->data);
		if (result)
			lose(result);
	}
	free(p);
}

static void finish(void *object, void *data) {
	for (stream *s = object; s->first;)
		run_first(s);
}

void finish_all(void) { object_each(STREAM, finish, NULL); }

status synStreamCreateGeneric(void **out, const uint32_t id, const uint32_t flags) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	if (!out || flags)
		return leave(INVALID_ARGUMENT);
	*out = object_new(STREAM, sizeof(stream));
	return leave(SUCCESS);
}

status synStreamDestroy(void *handle) {
	ENTER();
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_ARGUMENT);
	finish(s, NULL);
	object_free(s);
	return leave(lost());
}

status synStreamSynchronize(void *handle) {
	ENTER();
	stream *s = object_find(handle, STREAM);
	if (!s)
		return leave(INVALID_ARGUMENT);
	finish(s, NULL);
	return leave(lost());
}

// Events.

typedef struct {
	object object;
	bool timed;
	stream *stream;            // of the last record
	uint64_t records, reached; // how many
	struct timespec time;
} event;

enum { COLLECT_TIME = 1 };

static status reach(void *data) {
	event *e = object_find(*(void **)data, EVENT);
	if (e) { // not destroyed since
		e->reached++;
		clock_gettime(CLOCK_MONOTONIC, &e->time);
	}
	return SUCCESS;
}

// await runs work of the event's stream until it reaches the given record.
static status await(event *e, uint64_t record) {
	stream *s = object_find(e->stream, STREAM);
	while (e->reached < record && s && s->first)
		run_first(s);
	return lost();
}

status synEventCreate(void **out, const uint32_t id, const uint32_t flags) {
	ENTER();
	if (!is_device(id))
		return leave(NO_DEVICE_FOUND);
	if (!out || flags & ~COLLECT_TIME)
		return leave(INVALID_ARGUMENT);
	event *e = object_new(EVENT, sizeof *e);
	e->timed = flags & COLLECT_TIME;
	*out = e;
	return leave(SUCCESS);
}

status synEventDestroy(void *handle) {
	ENTER();
	event *e = object_find(handle, EVENT);
	if (!e)
		return leave(INVALID_EVENT_HANDLE);
	object_free(e);
	return leave(SUCCESS);
}

status synEventRecord(void *handle, void *on) {
	ENTER();
	event *e = object_find(handle, EVENT);
	stream *s = object_find(on, STREAM);
	if (!e)
		return leave(INVALID_EVENT_HANDLE);
	if (!s)
		return leave(INVALID_ARGUMENT);
	if (e->stream != s)
		await(e, e->records); // complete records of another stream first
	e->stream = s;
	e->records++;
	return leave(enqueue(s, reach, &e, sizeof e));
}

status synEventSynchronize(void *handle) {
	ENTER();
	event *e = object_find(handle, EVENT);
	return leave(e ? await(e, e->records) : INVALID_EVENT_HANDLE);
}

status synEventElapsedTime(uint64_t *nanoseconds, void *from, void *to) {
	ENTER();
	const event *a = object_find(from, EVENT), *b = object_find(to, EVENT);
	if (!a || !b)
		return leave(INVALID_EVENT_HANDLE);
	if (!a->timed || !b->timed || !a->reached || !b->reached)
		return leave(FAILED_TO_COLLECT_TIME);
	if (a->reached < a->records || b->reached < b->records)
		return leave(BUSY);
	*nanoseconds = (b->time.tv_sec - a->time.tv_sec) * 1000000000ll + (b->time.tv_nsec - a->time.tv_nsec);
	return leave(SUCCESS);
}

// Copies.

enum { HOST_TO_DRAM, DRAM_TO_HOST, DRAM_TO_DRAM, FILL }; // the first three of synDmaDir

typedef struct {
	uint64_t to, from, bytes;
	uint32_t kind, value;
} transfer;

// A landing is a delayed copy: a DMA engine writes to host memory after the stream reported
// completion. Each has its own thread; landings happen in order.
typedef struct landing {
	struct landing *next;
	void *to;
	uint64_t bytes, number;
	unsigned char data[];
} landing;

static struct {
	landing *first, **end;
	uint64_t made, landed;
} landings;

typedef struct {
	uint64_t number;
	long milliseconds;
} flight;

static void *land(void *data) {
	const flight f = *(flight *)data;
	free(data);
	const struct timespec time = {f.milliseconds / 1000, f.milliseconds % 1000 * 1000000};
	nanosleep(&time, NULL);
	if (enter())
		return NULL; // the device was lost
	while (landings.landed < f.number) {
		landing *l = landings.first;
		if (host_memory(l->to, l->bytes))
			memcpy(l->to, l->data, l->bytes);
		landings.first = l->next;
		landings.landed = l->number;
		free(l);
	}
	leave(SUCCESS);
	return NULL;
}

static void copy_late(void *to, const void *from, uint64_t bytes, long milliseconds) {
	landing *l = malloc(sizeof *l + bytes);
	*l = (landing){.to = to, .bytes = bytes, .number = ++landings.made};
	memcpy(l->data, from, bytes);
	if (!landings.first)
		landings.end = &landings.first;
	*landings.end = l;
	landings.end = &l->next;
	flight *f = malloc(sizeof *f);
	*f = (flight){l->number, milliseconds};
	pthread_t thread;
	if (pthread_create(&thread, NULL, land, f) == 0)
		pthread_detach(thread);
}

static void *host_address(uint64_t address, uint64_t bytes) {
	void *p = (void *)(uintptr_t)address;
	return host_memory(p, bytes) ? p : NULL;
}

static status run_transfer(void *data) {
	const transfer *t = data;
	void *to = t->kind == DRAM_TO_HOST ? host_address(t->to, t->bytes) : device_memory(t->to, t->bytes);
	void *from = t->kind == FILL ? to : t->kind == HOST_TO_DRAM ? host_address(t->from, t->bytes) : device_memory(t->from, t->bytes);
	if (!to || !from) {
		complain("a copy runs after its memory was freed");
		return FAIL;
	}
	const long late = setting("STANDIN_LATE", 0);
	if (t->kind == FILL)
		memset(to, t->value, t->bytes);
	else if (t->kind == DRAM_TO_HOST && late > 0)
		copy_late(to, from, t->bytes, late);
	else
		memmove(to, from, t->bytes);
	return SUCCESS;
}

// check returns the error of a transfer.
static status check(const transfer *t) {
	const bool to_host = t->kind == DRAM_TO_HOST, from_host = t->kind == HOST_TO_DRAM;
	if (t->kind > FILL || !t->bytes)
		return INVALID_ARGUMENT;
	if ((to_host && !host_address(t->to, t->bytes)) || (from_host && !host_address(t->from, t->bytes)))
		return MAPPING_NOT_FOUND;
	if ((!to_host && !device_memory(t->to, t->bytes)) || (t->kind != FILL && !from_host && !device_memory(t->from, t->bytes)))
		return MAPPING_NOT_FOUND;
	return SUCCESS;
}

static status enqueue_transfer(const transfer *t, void *on) {
	const status s = check(t);
	return s ? s : enqueue(on, run_transfer, t, sizeof *t);
}

status synMemCopyAsync(void *on, const uint64_t from, const uint64_t bytes, const uint64_t to, const uint32_t direction) {
	ENTER();
	if (direction > DRAM_TO_DRAM)
		return leave(INVALID_ARGUMENT);
	return leave(enqueue_transfer(&(transfer){to, from, bytes, direction, 0}, on));
}

status synMemsetD8Async(uint64_t to, const unsigned char value, const size_t n, void *on) {
	ENTER();
	return leave(enqueue_transfer(&(transfer){to, 0, n, FILL, value}, on));
}
