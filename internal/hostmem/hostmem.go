// Package hostmem tells how much memory this machine or container has left, and keeps a
// process within it.
package hostmem

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"octet/internal/writers"
)

// Check returns an error if need bytes do not fit into this machine or container:
// running out of memory later would kill the process without a message. The error begins
// with what and ends with instead, the advice.
func Check(what string, need int64, instead string) error {
	free, bound, ok := Free()
	if !ok || need <= free {
		return nil
	}
	return fmt.Errorf("%s needs %s of memory and %s has %s free: %s", what, writers.Bytes(need), bound, writers.Bytes(free), instead)
}

// LimitGo sets Go's memory limit, of the whole process, to the memory that the
// process uses plus the memory that is free now. SetMemoryLimit makes the garbage collector
// keep to it. Without a limit, the heap may double before a collection, and loading weights
// leaves garbage of several times their size. LimitGo never raises the limit: a lower
// GOMEMLIMIT of the user stays.
func LimitGo() {
	free, _, ok := Free()
	if !ok {
		return
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if limit := int64(m.Sys-m.HeapReleased) + free; limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
	}
}

// SmallerRun is the advice for a step that does not fit into memory.
const SmallerRun = "use a smaller model or train.micro_batch, or train.recompute=block (octet plan shows what the memory is for)"
