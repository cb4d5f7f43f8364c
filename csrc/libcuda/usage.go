package libcuda

import (
	"regexp"
	"strconv"
	"strings"
)

// Usage is what a kernel takes of a multiprocessor.
type Usage struct {
	Kernel      string
	Registers   int // of a thread
	Shared      int // bytes that the kernel declares
	Stack       int // bytes of a thread, as the next two
	SpillStores int // registers that did not fit go to memory,
	SpillLoads  int // and come back
}

// Lines of ptxas, of CUDA 12 and 13.
var (
	entryLine = regexp.MustCompile(`Compiling entry function '(\S+)'`)
	ownerLine = regexp.MustCompile(`Function properties for (\S+)`)
	stackLine = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine  = regexp.MustCompile(`Used (\d+) registers(?:.* (\d+) bytes smem)?`)
)

// serialized is what ptxas says where it makes each product of wgmma wait for the one
// before, because it does not understand which registers are whose.
func serialized(log string) string {
	at := strings.Index(log, "Potential Performance Loss: wgmma")
	if at < 0 {
		return ""
	}
	text, _, _ := strings.Cut(log[at:], "\n")
	return text
}

// parseUsage reads the report of ptxas -v, in its order of kernels. Functions that
// kernels call have stacks of their own, which are theirs.
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

// number is 0 for what is not said.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
