package sweep

import "syscall"

// attributes returns those of a child: it gets SIGTERM when the sweep dies, by a kill too,
// and saves a checkpoint. It has a process group of its own, because a terminal sends Ctrl-C
// to a whole group, and a child that gets a second signal quits without saving.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
