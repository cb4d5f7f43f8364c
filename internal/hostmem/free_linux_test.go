package hostmem

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// freeMemory reads the files that kernels and container engines write.
func TestFreeMemory(t *testing.T) {
	const (
		meminfo = "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:    8000 kB\nSwapFree:        2000 kB\n"
		all     = 10000 << 10
		v2      = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup rw,nsdelegate\n"
		v1      = "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,hugetlb,memory\n"
		v1Group = "9:cpu:/other\n4:hugetlb,memory:/docker/abc\n0::/\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		free  int64
		bound string
	}{
		"no groups": {nil, all, "this machine"},
		"nothing limited": {map[string]string{
			"proc/self/cgroup": "0::/user.slice\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/user.slice/memory.max": "max\n", "sys/fs/cgroup/user.slice/memory.current": "5000\n",
		}, all, "this machine"},
		"a limit above the free memory": {map[string]string{
			"proc/self/cgroup": "0::/user.slice\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/user.slice/memory.max": "20000000000\n", "sys/fs/cgroup/user.slice/memory.current": "5000\n",
		}, all, "this machine"},
		// docker run --memory 4m, with its own view of the groups.
		"a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "1 2 0:3 / /proc rw - proc proc rw\n" + v2,
			"sys/fs/cgroup/memory.max": "4000000\n", "sys/fs/cgroup/memory.current": "3000000\n",
			"sys/fs/cgroup/memory.stat": "anon 1000000\nfile 2000000\ninactive_file 1500000\nactive_file 400000\n",
		}, 2900000, "this container (limit: /sys/fs/cgroup/memory.max)"},
		// The limit of a pod is above that of its containers.
		"the group above": {map[string]string{
			"proc/self/cgroup": "0::/pod/one\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/pod/memory.max": "4000000\n", "sys/fs/cgroup/pod/memory.current": "3500000\n",
			"sys/fs/cgroup/pod/one/memory.max": "3000000\n", "sys/fs/cgroup/pod/one/memory.current": "1000000\n",
		}, 500000, "this container (limit: /sys/fs/cgroup/pod/memory.max)"},
		"nothing left": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "2000\n",
		}, 0, "this container (limit: /sys/fs/cgroup/a/memory.max)"},
		"a group outside the mount": {map[string]string{
			"proc/self/cgroup": "0::/../sibling\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/memory.max": "7000\n", "sys/fs/cgroup/memory.current": "0\n",
		}, 7000, "this container (limit: /sys/fs/cgroup/memory.max)"},
		"version 1": {map[string]string{
			"proc/self/cgroup": v1Group, "proc/self/mountinfo": v1,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "4000\n",
			"sys/fs/cgroup/memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n",
		}, 1120, "this container (limit: /sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes)"},
		// A container without a view of its own: its group is what is mounted.
		"version 1, bound": {map[string]string{
			"proc/self/cgroup":                           v1Group,
			"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
		}, 4000, "this container (limit: /sys/fs/cgroup/memory/memory.limit_in_bytes)"},
		"damaged": {map[string]string{
			"proc/self/cgroup": "0:\n\x00", "proc/self/mountinfo": " - \n30 23\n" + v2,
		}, all, "this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}
			for file, text := range c.files {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			free, bound, ok := freeMemory(root)
			require.True(t, ok)
			require.Equal(t, c.free, free)
			require.Equal(t, c.bound, bound)
		})
	}
	_, _, ok := freeMemory(fstest.MapFS{})
	require.False(t, ok)
}

// LimitGo limits Go's memory to the free memory, unless the user's limit is lower.
// Check does not change the limit.
func TestLimitGoMemory(t *testing.T) {
	old := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(old)
	require.ErrorContains(t, Check("it", math.MaxInt64, "use less"), "it needs 9.2 EB of memory and ")
	require.NoError(t, Check("it", 1, "use less"))
	require.EqualValues(t, math.MaxInt64, debug.SetMemoryLimit(-1), "a check has no effect")
	LimitGo()
	limit := debug.SetMemoryLimit(-1)
	free, _, ok := Free()
	require.True(t, ok)
	require.Less(t, limit, 2*free+1<<30)
	debug.SetMemoryLimit(limit / 2)
	LimitGo()
	require.Equal(t, limit/2, debug.SetMemoryLimit(-1))
}
