// Declarations that the files about streams and graphs share.
#ifndef STANDIN_LIBCUDA_STREAM_H
#define STANDIN_LIBCUDA_STREAM_H

#include "libcuda.h"

#include <pthread.h>
#include <stddef.h>
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

void append(list *l, op_run run, const void *data, size_t bytes);
void clear(list *l);

// A capture has lanes: the stream where it began, and the streams that waited for its events.
enum { LANES = 8 };

typedef struct capture capture;

typedef struct {
	object object;
	int blocking; // copies without a stream wait for this one
	list work;

	capture *capture; // NULL: does not capture
	int lane;
	list captured;
	size_t seen[LANES]; // captured operations of each lane that come before the next one
} stream;

struct capture {
	stream *lanes[LANES]; // that of the origin first
	int count;
	int points;      // records of events
	int invalidated; // by a call that a capture forbids
	uint64_t number;
	pthread_t thread; // the capturing one
};

// A record is a call of cuEventRecord outside of captures.
typedef struct {
	int reached;
	int references; // of the event, and of operations
} record;

typedef struct {
	object object;
	int untimed;
	int state; // of the last record
	record *last;
	stream *on;
	struct timespec time;

	// Of a last record in a capture.
	uint64_t capture; // its number
	int point;
	size_t seen[LANES];
} event;

enum { NEVER, PENDING, REACHED, CAPTURED };

// record_captured and wait_captured are cuEventRecord on a stream that captures, and
// cuStreamWaitEvent if the stream captures or the event was recorded in a capture.
void record_captured(stream *on, event *e);
int wait_captured(stream *s, const event *e);

int crosses(op_run run); // whether an operation of a graph orders its lanes
void drain_stream(stream *s);

#endif
