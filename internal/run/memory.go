package run

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"octet/internal/writers"
)

// CheckHostMemory refuses what does not fit into this machine or container: running
// out of memory later would end the process without a word of advice. The error says
// what needs it and ends with instead.
//
// What fits keeps to that memory: without a limit, Go lets garbage grow to the size of
// what is in use, and loading weights makes several times their size of it.
func CheckHostMemory(what string, need int64, instead string) error {
	free, bound, ok := HostMemory()
	if !ok {
		return nil
	}
	if need <= free {
		limitGarbage(free)
		return nil
	}
	return fmt.Errorf("%s needs %s of memory and %s has %s free: %s", what, writers.Bytes(need), bound, writers.Bytes(free), instead)
}

// limitGarbage has the garbage collector keep this process within what it uses already
// and what is free. A lower limit of the user's, GOMEMLIMIT, stays.
func limitGarbage(free int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if limit := int64(m.Sys-m.HeapReleased) + free; limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
	}
}

// SmallerRun is what to do about a step that does not fit.
const SmallerRun = "use a smaller model or train.micro_batch, or train.recompute=block (octet plan shows what the memory is for)"
