package gaudi

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// cache keeps recipes on disk, since to compile a large model takes minutes. A
// file's name has the hash of its contents: one that is damaged is never given to
// SynapseAI, which would trust it. What was used least recently makes room for what is
// new, of whichever version.
type cache struct {
	dir   string // empty where nothing can be kept
	limit int64  // bytes, of all versions together
}

// cacheBytes is room for some dozen models of some dozen recipes each, if a recipe,
// which has its kernels' code and its constants in it, takes some tens of megabytes.
const cacheBytes = 8 << 30

// openCache is for recipes of one version and model: everything beside the graph
// that they depend on, so far as anybody can tell.
func openCache(driver, model string) *cache {
	dir, err := os.UserCacheDir()
	if err != nil {
		return &cache{}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{driver, model, os.Getenv("GC_KERNEL_PATH"), "deterministic"}, "\n")))
	return &cache{filepath.Join(dir, "octet", "gaudi", hex.EncodeToString(sum[:8])), cacheBytes}
}

// find is a whole file that keep has put there.
func (c *cache) find(key string) (path string, ok bool) {
	if c.dir == "" {
		return "", false
	}
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return "", false
	}
	for _, entry := range list {
		if !strings.HasPrefix(entry.Name(), key+"-") {
			continue
		}
		path := filepath.Join(c.dir, entry.Name())
		if sum, err := hashOf(path); err == nil && path == c.path(key, sum) {
			now := time.Now()
			_ = os.Chtimes(path, now, now) // what trim goes by
			return path, true
		}
		_ = os.Remove(path) // it would be found damaged every time
	}
	return "", false
}

// keep puts a whole file in place or none. Where it cannot be written, the next
// process compiles anew.
func (c *cache) keep(key string, save func(path string) error) {
	if c.dir == "" || os.MkdirAll(c.dir, 0o777) != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return
	}
	defer func() { _ = os.Remove(f.Name()) }() // where it was not renamed
	if f.Close() != nil || save(f.Name()) != nil {
		return
	}
	if sum, err := hashOf(f.Name()); err == nil && os.Rename(f.Name(), c.path(key, sum)) == nil {
		c.trim()
	}
}

// trim removes the files that were not used for the longest time, until the others are
// within the limit. Another process that is about to read one compiles anew.
func (c *cache) trim() {
	type file struct {
		path  string
		bytes int64
		used  time.Time
	}
	var files []file
	versions := filepath.Dir(c.dir)
	names, _ := fs.Glob(os.DirFS(versions), "*/*")
	for _, name := range names {
		path := filepath.Join(versions, name)
		if info, err := os.Stat(path); err == nil {
			files = append(files, file{path, info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return b.used.Compare(a.used) })
	room := c.limit
	for _, f := range files {
		if f.bytes > room { // one that fits nowhere leaves the others theirs
			_ = os.Remove(f.path)
			continue
		}
		room -= f.bytes
	}
}

func (c *cache) path(key, sum string) string {
	return filepath.Join(c.dir, key+"-"+sum+".recipe")
}

func hashOf(path string) (string, error) {
	raw, err := os.ReadFile(path)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16]), err
}
