package run

import (
	"os"
	"strconv"
	"strings"
)

// HostMemory is how many bytes a process can still get: what proc(5) calls
// MemAvailable, and the free swap.
func HostMemory() (bytes int64, ok bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // "MemAvailable:   1234 kB"
		if len(fields) < 2 || fields[0] != "MemAvailable:" && fields[0] != "SwapFree:" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, false
		}
		bytes, ok = bytes+kib<<10, true
	}
	return bytes, ok
}
