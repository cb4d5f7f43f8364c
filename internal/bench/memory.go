package bench

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// anonymousMemory is what the process holds and no file backs, in bytes, after
// garbage was given back; 0 where there is no proc(5) to read it from.
func anonymousMemory() int64 {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
