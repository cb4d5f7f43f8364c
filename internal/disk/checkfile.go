package disk

import (
	"fmt"
	"os"
	"path/filepath"
)

// CheckFile returns an error if WriteAtomic cannot write a file of this name, because its folder is
// missing or a folder has the name. A command calls it before the work whose result it writes.
func CheckFile(name string) error {
	if s, err := os.Stat(name); err == nil && s.IsDir() {
		return fmt.Errorf("%s is a folder: name a file", name)
	}
	dir := filepath.Dir(name)
	switch s, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("%s: the folder %s does not exist: make it, or name another file", name, dir)
	case !s.IsDir():
		return fmt.Errorf("%s: %s is not a folder", name, dir)
	}
	return nil
}
