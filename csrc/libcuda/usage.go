package libcuda

import (
	"regexp"
	"strconv"
	"strings"
)

// Usage is a kernel's use of a multiprocessor's resources.
type Usage struct {
	Kernel      string
	Registers   int // per thread
	Shared      int // bytes of static shared memory
	Stack       int // bytes per thread
	SpillStores int // bytes of spilled registers per thread, stored
	SpillLoads  int // and loaded
}

// Lines of ptxas -v, of CUDA 12 and 13.
var (
	entryLine = regexp.MustCompile(`Compiling entry function '(\S+)'`)
	ownerLine = regexp.MustCompile(`Function properties for (\S+)`)
	stackLine = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine  = regexp.MustCompile(`Used (\d+) registers(?:.* (\d+) bytes smem)?`)
)

// serialized returns the warning of ptxas that it serialized wgmma instructions, because
// it cannot prove which registers they use; empty if there is none.
func serialized(log string) string {
	at := strings.Index(log, "Potential Performance Loss: wgmma")
	if at < 0 {
		return ""
	}
	text, _, _ := strings.Cut(log[at:], "\n")
	return text
}

// parseUsage parses the report of ptxas -v, in its order of kernels. It ignores the
// stacks of functions that kernels call.
func parseUsage(log string) (list []Usage) {
	owner := ""
	for line := range strings.Lines(log) {
		if m := entryLine.FindStringSubmatch(line); m != nil {
			list = append(list, Usage{Kernel: m[1]})
			continue
		}
		if m := ownerLine.FindStringSubmatch(line); m != nil {
			owner = m[1]
			continue
		}
		if len(list) == 0 {
			continue
		}
		last := &list[len(list)-1]
		if m := stackLine.FindStringSubmatch(line); m != nil && owner == last.Kernel {
			last.Stack, last.SpillStores, last.SpillLoads = number(m[1]), number(m[2]), number(m[3])
		}
		if m := usedLine.FindStringSubmatch(line); m != nil {
			last.Registers, last.Shared = number(m[1]), number(m[2])
		}
	}
	return list
}

// number returns 0 for a missing value.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
