package launch

import "syscall"

// ofRank returns the attributes of a rank's process: a process group of its own, so that signals
// of a terminal reach it once, through Run, and SIGTERM if this process ends without ending it.
func ofRank() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
