package run

import (
	"fmt"

	"octet/internal/writers"
)

// checkHostMemory refuses what does not fit into this machine: running out of
// memory later would end the process without a word of advice.
func checkHostMemory(need int64) error {
	free, ok := hostMemory()
	if !ok || need <= free {
		return nil
	}
	return fmt.Errorf("the run needs %s of memory and this machine has %s free: use a smaller model or train.micro_batch, or train.recompute=block (octet plan shows what the memory is for)",
		writers.Bytes(need), writers.Bytes(free))
}
