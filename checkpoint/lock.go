package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// LockFile is the file in a run's folder that Lock locks.
const LockFile = ".lock"

// ErrLocked says that another process has the run folder.
var ErrLocked = errors.New("in use by another octet process")

// Lock takes the run folder for this process, until unlock is called or the
// process ends, however it ends. It does not wait: a folder in use is an
// error, ErrLocked. The LockFile that it leaves in the folder means nothing by itself.
// Who removes it does so before unlocking: a lock on a file that is gone is none.
func Lock(runDir string) (unlock func() error, err error) {
	name := filepath.Join(runDir, LockFile)
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() { // to open a pipe is to wait for ever
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
