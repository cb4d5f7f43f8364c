package world

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// SharingProcessors returns the number of ranks that share the processors of this process: the
// ranks of this machine, unless the launcher has bound each to processors of its own.
func (g *Group) SharingProcessors() int {
	local := g.Place().LocalSize
	if g.InProcess() {
		return g.Size()
	}
	if local == 0 || runtime.NumCPU() < processors() {
		return 1
	}
	return local
}

// processors returns the number of processors of the machine; 0 if it is unknown.
func processors() (n int) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online") // "0-3,8"
	if err != nil {
		return 0
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return 0
		}
		last, err := strconv.Atoi(to)
		if err != nil {
			return 0
		}
		n += last - first + 1
	}
	return n
}
