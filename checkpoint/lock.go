package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// LockFile is the file in a run folder that Lock locks.
const LockFile = ".lock"

// ErrLocked is the error of Lock if another process has locked the run folder.
var ErrLocked = errors.New("in use by another octet process")

// Lock locks the run folder for this process until unlock is called or the process
// ends, by a kill too. It does not wait: if another process has the lock, the error is
// ErrLocked. The LockFile stays in the folder; its existence alone locks nothing. To
// remove it, do so before unlock: otherwise you could remove the file that another
// process has locked by then.
func Lock(runDir string) (unlock func() error, err error) {
	name := filepath.Join(runDir, LockFile)
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() { // opening a pipe blocks
		return nil, fmt.Errorf("locking the run folder %s: %s is not a regular file: remove it", runDir, name)
	}
	lock := flock.New(name, flock.SetPermissions(0o666))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking the run folder %s: %w", runDir, err)
	}
	if locked {
		mine, err := lock.Stat()
		if there, thereErr := os.Lstat(name); err == nil && thereErr == nil && os.SameFile(mine, there) {
			return lock.Unlock, nil
		}
		if err := lock.Unlock(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the run folder %s is %w: wait for it, or choose another folder", runDir, ErrLocked)
}
