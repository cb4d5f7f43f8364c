// What the files of the stand-in for the driver share.
#ifndef STANDIN_LIBCUDA_H
#define STANDIN_LIBCUDA_H

#include "standin.h"

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	STUB_LIBRARY = 34,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_IMAGE = 200,
	INVALID_CONTEXT = 201,
	NO_BINARY_FOR_GPU = 209,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_FOUND = 500,
	NOT_READY = STANDIN_LATER,
	ILLEGAL_ADDRESS = 700,
	PRIMARY_CONTEXT_ACTIVE = 708,
	LAUNCH_FAILED = 719,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURED_EVENT = 907,
	CAPTURE_WRONG_THREAD = 908,
};

// Every object that was made and not destroyed is in one list, by which handles
// are checked and leaks are found. It belongs to the context in which it was
// made, and is found in no other.
enum kind { MEMORY, HOST_MEMORY, STREAM, EVENT, MODULE, FUNCTION, GRAPH, GRAPH_EXEC, CONTEXT };

typedef struct object {
	struct object *next;
	enum kind kind;
	struct context *context; // NULL of a context
} object;

typedef struct context {
	object object;
	struct device *device;
} context;

// A device is what its contexts have in common.
typedef struct device {
	context primary;
	int retained; // how often the primary context is
	int lost;     // the code of every further call, once the device is lost
	size_t live;  // bytes of memory that are taken
} device;

extern __thread context *current; // the thread's

void *object_new(enum kind kind, size_t bytes);
void *object_find(const void *handle, enum kind kind); // NULL: the current context has none
void object_free(void *o);
object *object_first(void);

// enter locks the driver and says what stands against the call: no context, a
// device that is lost. Every call that got SUCCESS leaves with leave.
int enter(void);
int leave(int status);

// wait_for_news lets others in until one of them calls tell.
void wait_for_news(void);
void tell(void);

// Of streams.

// spend has the clock of STANDIN_GAP go on.
void spend(int64_t nanoseconds);

int drain_all(void);         // does everything that is left to do in the current context
int unsafe_in_capture(void); // what a call that waits or allocates returns while this thread captures

#endif
