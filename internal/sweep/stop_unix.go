//go:build unix

package sweep

import (
	"errors"
	"os"
	"syscall"
)

// stop makes a child save a checkpoint and end.
func stop(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// lockFile locks an open file without waiting. Children that inherit the file hold the lock
// as long as they live.
func lockFile(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	case errors.Is(err, errors.ErrUnsupported): // the lock of the run folder decides
		return true, nil
	}
	return false, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
}
