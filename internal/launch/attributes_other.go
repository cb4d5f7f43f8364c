//go:build !unix

package launch

import "syscall"

// ofRank returns the default attributes of a process.
func ofRank() *syscall.SysProcAttr { return nil }
