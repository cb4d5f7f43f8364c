package hostmem

import (
	"io/fs"
	"iter"
	"os"
	"path"
	"strconv"
	"strings"
)

// Free returns how many bytes a process can still allocate, and the name of what sets
// that bound: the machine, by MemAvailable of proc(5) and the free swap, or a container
// whose memory limit leaves less.
func Free() (free int64, bound string, ok bool) { return freeMemory(os.DirFS("/")) }

func freeMemory(root fs.FS) (free int64, bound string, ok bool) {
	available, ok := keyed(root, "proc/meminfo", "MemAvailable:")
	if !ok {
		return 0, "", false
	}
	swap, _ := keyed(root, "proc/meminfo", "SwapFree:")
	free, bound = (available+swap)<<10, "this machine"
	for _, h := range hierarchies {
		if left, file, ok := h.left(root); ok && left < free {
			free, bound = left, "this container (limit: /"+file+")"
		}
	}
	return free, bound, true
}

// hierarchy is one of the two kinds of control groups, cgroups(7). A limit holds for
// a group and all groups below it.
type hierarchy struct {
	fstype, controller string // in /proc/self/mountinfo; in /proc/self/cgroup
	limit, used        string // files of a group: bytes
	// Lines of memory.stat: cached files, which the kernel reclaims before it kills a
	// process; MemAvailable counts them too. The swap of a group is left out: containers
	// seldom have any.
	files [2]string
}

var hierarchies = []hierarchy{
	{"cgroup2", "", "memory.max", "memory.current", [2]string{"inactive_file", "active_file"}},
	{"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", [2]string{"total_inactive_file", "total_active_file"}},
}

// left returns the bytes that the limits of this process's group and those above it leave,
// and the file of the limit that decides; ok is false without a limit.
func (h hierarchy) left(root fs.FS) (smallest int64, file string, ok bool) {
	top, group, found := h.group(root)
	if !found {
		return 0, "", false
	}
	for dir := path.Join(top, group); ; dir = path.Dir(dir) {
		limit, limited := number(root, path.Join(dir, h.limit)) // the topmost group has no such file
		used, known := number(root, path.Join(dir, h.used))
		if limited && known {
			for _, line := range h.files {
				cached, _ := keyed(root, path.Join(dir, "memory.stat"), line)
				used -= cached
			}
			if left := max(0, limit-max(0, used)); !ok || left < smallest {
				smallest, file, ok = left, path.Join(dir, h.limit), true
			}
		}
		if dir == top || dir == "." {
			return smallest, file, ok
		}
	}
}

// group returns the mount point of the hierarchy and this process's group below it. A
// container may see its own group as the topmost one; the path of the group then lies
// outside the mount.
func (h hierarchy) group(root fs.FS) (top, group string, ok bool) {
	for line := range lines(root, "proc/self/cgroup") { // hierarchy-ID:controller-list:path
		parts := strings.SplitN(line, ":", 3)
		if len(parts) == 3 && (parts[1] == h.controller || h.controller != "" && contains(parts[1], h.controller)) {
			group = parts[2]
		}
	}
	// 36 35 98:0 /root /mount/point options - fstype source options, see proc(5).
	for line := range lines(root, "proc/self/mountinfo") {
		mount, kind, _ := strings.Cut(line, " - ")
		m, k := strings.Fields(mount), strings.Fields(kind)
		if group == "" || len(m) < 5 || len(k) < 3 || k[0] != h.fstype || h.controller != "" && !contains(k[2], h.controller) {
			continue
		}
		below, inside := strings.CutPrefix(group, strings.TrimSuffix(m[3], "/"))
		if !inside || strings.HasPrefix(below, "/..") {
			below = ""
		}
		return strings.TrimPrefix(path.Clean(m[4]), "/"), below, true
	}
	return "", "", false
}

// contains reports whether a comma-separated list has a name.
func contains(list, name string) bool { return strings.Contains(","+list+",", ","+name+",") }

// keyed returns the number after a name at the beginning of a line: "MemAvailable: 1234 kB".
func keyed(root fs.FS, file, name string) (n int64, ok bool) {
	for line := range lines(root, file) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// number returns the number in a file; ok is false for "max".
func number(root fs.FS, file string) (n int64, ok bool) {
	for line := range lines(root, file) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		return n, err == nil
	}
	return 0, false
}

// lines returns the lines of a file; none if it cannot be read.
func lines(root fs.FS, file string) iter.Seq[string] {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(string(text), "\n")
}
