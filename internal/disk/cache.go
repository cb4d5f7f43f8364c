package disk

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteCache writes or replaces a file of a cache, and makes its folder. Other processes
// may read and write the file meanwhile: they find its old content or all of text. It is
// not synced, so a reader must detect a file that a power cut damaged.
func WriteCache(name string, text []byte) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
