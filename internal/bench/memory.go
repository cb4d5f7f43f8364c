package bench

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// anonymousMemory returns the resident bytes of the process that no file backs, after
// returning garbage to the system; 0 on systems without proc(5).
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
