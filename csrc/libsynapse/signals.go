//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import (
	"runtime"
	"sync"
)

// loading serializes keepSignals: a concurrent call would save and restore the handlers
// that a library has just installed.
var loading sync.Mutex

// keepSignals calls load, which loads a library of Habana's, and restores the process's
// signal handlers afterwards. Once loaded, Habana's logger handles SIGINT, SIGTERM,
// SIGHUP, SIGPIPE, SIGSEGV and others (hllog_core.cpp of its source), and SynapseAI
// treats each of them as a device failure (DFA_ON_SIGNAL): it examines the device for
// seconds and fails every later call with synSynapseTerminated, before the previous
// handler runs. So a Ctrl-C would take the device from a run that is about to save its
// state, and so would a broken pipe, or a nil dereference from which Go recovers.
//
// Go's handlers suffice: a crash in C still ends the process, with a trace.
func keepSignals(load func()) {
	loading.Lock()
	defer loading.Unlock()
	runtime.LockOSThread() // the logger also replaces the thread's signal stack
	defer runtime.UnlockOSThread()
	kept := C.octet_syn_signals_keep()
	defer C.octet_syn_signals_restore(kept)
	load()
}
