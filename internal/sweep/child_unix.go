//go:build unix && !linux

package sweep

import "syscall"

// attributes returns those of a child: a process group of its own, because a terminal sends
// Ctrl-C to a whole group, and a child that gets a second signal quits without saving.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
