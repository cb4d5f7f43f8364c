//go:build unix && !linux

package launch

import "syscall"

// ofRank returns the attributes of a rank's process: a process group of its own, so that signals
// of a terminal reach it once, through Run.
func ofRank() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
