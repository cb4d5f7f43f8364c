//go:build cuda && cgo && linux

package libcuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"octet/internal/disk"
)

// Cubin is Compile with a cache on disk: octet/cubin in the user's cache folder
// (os.UserCacheDir), one file for each combination of program, headers, options,
// architecture and NVRTC. A damaged file is compiled and written again. Without a
// writable cache, every call compiles.
func (c *Compiler) Cubin(src Source, arch string, options ...string) ([]byte, error) {
	path := c.cubinPath(src, arch, options)
	if cubin, ok := readCubin(path); ok {
		return cubin, nil
	}
	cubin, err := c.Compile(src, arch, options...)
	if err == nil && path != "" {
		sum := sha256.Sum256(cubin)
		_ = disk.WriteCache(path, append(sum[:], cubin...)) // without the file, the next process compiles
	}
	return cubin, err
}

// cubinPath returns an empty path if the user has no cache folder. NVRTC reports only two
// numbers of its version, so the hash includes the size of its file.
func (c *Compiler) cubinPath(src Source, arch string, options []string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	var size int64
	if info, err := os.Stat(c.Path); err == nil {
		size = info.Size()
	}
	h := sha256.New()
	field(h, c.Version, fmt.Sprint(size), src.Name, src.Text, arch, fmt.Sprint(len(options)))
	field(h, options...)
	for _, name := range sortedNames(src.Headers) {
		field(h, name, src.Headers[name])
	}
	return filepath.Join(dir, "octet", "cubin", hex.EncodeToString(h.Sum(nil)))
}

// field hashes texts with their lengths, so that different lists have different
// encodings.
func field(h hash.Hash, texts ...string) {
	for _, s := range texts {
		_, _ = fmt.Fprintf(h, "%d ", len(s)) // a hash does not fail
		_, _ = io.WriteString(h, s)
	}
}

func sortedNames(headers map[string]string) []string { return slices.Sorted(maps.Keys(headers)) }

// readCubin reads a cache file: the SHA-256 of the cubin, then the cubin.
func readCubin(path string) ([]byte, bool) {
	file, err := os.ReadFile(path)
	if err != nil || len(file) < sha256.Size {
		return nil, false
	}
	cubin := file[sha256.Size:]
	sum := sha256.Sum256(cubin)
	return cubin, bytes.Equal(sum[:], file[:sha256.Size])
}
