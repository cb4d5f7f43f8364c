// Declarations that the files of the stand-in for the driver share.
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
	CAPTURE_MERGE = 902,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
	CAPTURE_WRONG_THREAD = 908,
};

// One list has every live object, to check handles and find leaks. An object is valid
// only in the context that created it.
enum kind { MEMORY, HOST_MEMORY, STREAM, EVENT, MODULE, FUNCTION, GRAPH, GRAPH_EXEC, CONTEXT };

typedef struct object {
	struct object *next;
	enum kind kind;
	struct context *context; // NULL for a context
} object;

typedef struct context {
	object object;
	struct device *device;
} context;

// device is the state that the contexts of a GPU share.
typedef struct device {
	context primary;
	int retained; // references to the primary context
	int lost;     // error code of every further call, once the device is lost
	size_t live;  // allocated bytes
} device;

extern __thread context *current; // of the thread

void *object_new(enum kind kind, size_t bytes);
void *object_find(const void *handle, enum kind kind); // NULL: not in the current context
void object_free(void *o);
object *object_first(void);

// enter locks the driver. It fails, without the lock, if there is no context or the device
// is lost. After SUCCESS the call must end with leave.
int enter(void);
int leave(int status);

// wait_for_notify releases the lock until another thread calls notify_all.
void wait_for_notify(void);
void notify_all(void);

// Streams.

// advance_clock advances the clock of STANDIN_GAP.
void advance_clock(int64_t nanoseconds);

int drain_all(void);         // runs all pending work of the current context
int unsafe_in_capture(void); // invalidates this thread's captures; the error of a call that waits or allocates, SUCCESS without a capture

#endif
