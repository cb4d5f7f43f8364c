package standin

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
)

// cache stores compiled libraries for later processes, one file each: a checksum of the
// sources and the code, then the code. After any error of the file or its folder, the
// library is compiled.
type cache struct{ dir string } // empty: no cache

// userCache is in the user's cache folder; a test may replace it.
var userCache = func() cache {
	dir, err := os.UserCacheDir()
	if err != nil {
		return cache{}
	}
	return cache{filepath.Join(dir, "octet", "standin")}
}()

func sum(from, code []byte) []byte {
	h := sha256.New()
	h.Write(from) // of a fixed length, so the concatenation is unambiguous
	h.Write(code)
	return h.Sum(nil)
}

// load returns the library compiled from the sources with checksum from, or nil.
func (c cache) load(name string, from [sha256.Size]byte) []byte {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if c.dir == "" || err != nil || len(text) < sha256.Size {
		return nil
	}
	stored, code := text[:sha256.Size], text[sha256.Size:]
	if !bytes.Equal(stored, sum(from[:], code)) {
		return nil
	}
	return code
}

// store writes a library, in place of any with the same name. It is safe in concurrent
// processes: each renames a temporary file of its own.
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
