package emu

import (
	"context"
	"os"
	"strings"

	"octet/backend/world"
)

// sharingProcessors returns the number of ranks that divide the processors of this process. Ranks
// that are processes divide them if they have the same ones: launchers that bind each rank to
// processors of its own leave nothing to divide.
func sharingProcessors(w *world.Group) (int, error) {
	if w.InProcess() {
		return w.Size(), nil
	}
	mine := allowedProcessors()
	all, err := w.Exchange(context.Background(), "the processors of the ranks", []byte(mine))
	n := 0
	for _, other := range all {
		if string(other) == mine {
			n++
		}
	}
	return n, err
}

// allowedProcessors returns a text that names the processors on which this process may run, and
// their machine. Containers have names of their own, and often an own share of the processors.
func allowedProcessors() string {
	host, _ := os.Hostname() // without a name, the boot tells machines apart
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	status, _ := os.ReadFile("/proc/self/status")
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	return host + " " + strings.TrimSpace(string(boot)) + " " + strings.TrimSpace(list)
}
