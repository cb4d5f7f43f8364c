package standin

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
)

// cache keeps compiled libraries for the next process, one file for each: a sum over
// what the library was made from and its code, then the code. Whatever is wrong with
// the file or its folder, the library is compiled.
type cache struct{ dir string } // empty: there is none

// kept is the user's, whatever a test puts in its place.
var kept = func() cache {
	dir, err := os.UserCacheDir()
	if err != nil {
		return cache{}
	}
	return cache{filepath.Join(dir, "octet", "standin")}
}()

func sum(from, code []byte) []byte {
	h := sha256.New()
	h.Write(from) // of a fixed length
	h.Write(code)
	return h.Sum(nil)
}

// load is the library that was made from that; nil if it is not kept.
func (c cache) load(name string, from [sha256.Size]byte) []byte {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if c.dir == "" || err != nil || len(text) < sha256.Size {
		return nil
	}
	was, code := text[:sha256.Size], text[sha256.Size:]
	if !bytes.Equal(was, sum(from[:], code)) {
		return nil
	}
	return code
}

// store keeps it instead of another that has its name. Processes that do so at once
// do not meet: each renames a file of its own.
func (c cache) store(name string, from [sha256.Size]byte, code []byte) {
	if c.dir == "" || os.MkdirAll(c.dir, 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, "."+name+"-")
	if err != nil {
		return
	}
	_, err = f.Write(append(sum(from[:], code), code...))
	if f.Close() != nil || err != nil || os.Rename(f.Name(), filepath.Join(c.dir, name)) != nil {
		_ = os.Remove(f.Name()) // the next process tries again
	}
}
