package checkpoint

import (
	"fmt"
	"path/filepath"

	"github.com/gofrs/flock"
)

// Lock takes the run folder for this process, until unlock is called or the
// process ends, however it ends. It does not wait: a folder in use is an
// error. The file .lock that it leaves in the folder means nothing by itself.
func Lock(runDir string) (unlock func() error, err error) {
	lock := flock.New(filepath.Join(runDir, ".lock"), flock.SetPermissions(0o666))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking the run folder %s: %w", runDir, err)
	}
	if !locked {
		return nil, fmt.Errorf("the run folder %s is in use by another octet process: wait for it, or choose another folder", runDir)
	}
	return lock.Unlock, nil
}
