package run

import (
	"fmt"

	"octet/internal/writers"
)

// CheckHostMemory refuses what does not fit into this machine or container: running
// out of memory later would end the process without a word of advice. The error says
// what needs it and ends with instead.
func CheckHostMemory(what string, need int64, instead string) error {
	free, bound, ok := HostMemory()
	if !ok || need <= free {
		return nil
	}
	return fmt.Errorf("%s needs %s of memory and %s has %s free: %s", what, writers.Bytes(need), bound, writers.Bytes(free), instead)
}

// SmallerRun is what to do about a step that does not fit.
const SmallerRun = "use a smaller model or train.micro_batch, or train.recompute=block (octet plan shows what the memory is for)"
