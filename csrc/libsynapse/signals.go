//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import (
	"runtime"
	"sync"
)

// loading is held while signals are kept: who kept them meanwhile would give back
// what a library has just taken.
var loading sync.Mutex

// keepSignals loads a library of Habana's and leaves the process's signals as they
// were. Their logger, once loaded, handles SIGINT, SIGTERM, SIGHUP, SIGPIPE,
// SIGSEGV and some more itself (hllog_core.cpp of its source), and so SynapseAI
// takes each of them for a failure of the device (DFA_ON_SIGNAL): it examines the
// device for seconds and refuses every call from then on with
// synSynapseTerminated, before the handler that was there gets its turn. A Ctrl-C
// would take the device from a run that is about to save its state, and so would a
// pipe that nobody reads any more, or a nil pointer that Go recovers from.
//
// Go's handlers are enough: what crashes in C still ends the process, with a trace.
func keepSignals(load func()) {
	loading.Lock()
	defer loading.Unlock()
	runtime.LockOSThread() // the logger takes the thread's signal stack, too
	defer runtime.UnlockOSThread()
	kept := C.octet_syn_signals_keep()
	defer C.octet_syn_signals_restore(kept)
	load()
}
