//go:build !unix

package sweep

import (
	"os"
	"syscall"
)

// attributes returns those of a child: the defaults.
func attributes() *syscall.SysProcAttr { return nil }

// stop does nothing: the console sends Ctrl-C to the children too.
func stop(*os.Process) error { return nil }

// lockFile locks nothing: the lock of the run folder decides.
func lockFile(*os.File) (locked bool, err error) { return true, nil }
