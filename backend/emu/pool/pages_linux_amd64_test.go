package pool

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Linux has recorded the advice for huge pages, whether or not any are free.
func TestHugePageAdviceIsRecorded(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("this system has no transparent huge pages")
	}
	raw := Bytes(4 * hugePage)
	middle := uintptr(unsafe.Pointer(&raw[2*hugePage]))
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside, found := false, false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= middle && middle < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			found = true
			require.Contains(t, strings.Fields(flags), "hg")
		}
	}
	require.True(t, found)
	runtime.KeepAlive(raw)
}
