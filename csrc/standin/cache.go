package standin

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"

	"octet/internal/disk"
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

// store writes a library, in place of any with the same name.
func (c cache) store(name string, from [sha256.Size]byte, code []byte) {
	if c.dir != "" {
		_ = disk.WriteCache(filepath.Join(c.dir, name), append(sum(from[:], code), code...)) // else the next process compiles
	}
}
