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

// cache keeps recipes on disk, because compiling a large model takes minutes. A file name
// contains the hash of the contents, so that a damaged file never reaches SynapseAI,
// which would trust it. The least recently used files, of any version, are deleted first.
type cache struct {
	dir   string // empty: no cache
	limit int64  // bytes, all versions together
}

// cacheBytes holds some dozens of models with some dozens of recipes each, assuming some
// tens of megabytes per recipe, which contains its kernels' code and its constants.
const cacheBytes = 8 << 30

// openCache returns the cache for one version and model. With GC_KERNEL_PATH they are
// everything besides the graph that a recipe is known to depend on.
func openCache(driver, model string) *cache {
	dir, err := os.UserCacheDir()
	if err != nil {
		return &cache{}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{driver, model, os.Getenv("GC_KERNEL_PATH"), "deterministic"}, "\n")))
	return &cache{filepath.Join(dir, "octet", "gaudi", hex.EncodeToString(sum[:8])), cacheBytes}
}

// find returns the path of an undamaged file that keep stored.
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
			_ = os.Chtimes(path, now, now) // trim sorts by this time
			return path, true
		}
		_ = os.Remove(path) // damaged
	}
	return "", false
}

// keep stores a file atomically. On an error it stores nothing, and the next process
// compiles again.
func (c *cache) keep(key string, save func(path string) error) {
	if c.dir == "" || os.MkdirAll(c.dir, 0o777) != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return
	}
	defer func() { _ = os.Remove(f.Name()) }() // if not renamed
	if f.Close() != nil || save(f.Name()) != nil {
		return
	}
	if sum, err := hashOf(f.Name()); err == nil && os.Rename(f.Name(), c.path(key, sum)) == nil {
		c.trim()
	}
}

// trim deletes the least recently used files until the others are within the limit.
// Another process that is about to read such a file compiles again.
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
	left := c.limit
	for _, f := range files {
		if f.bytes > left { // a file that does not fit leaves the space to the others
			_ = os.Remove(f.path)
			continue
		}
		left -= f.bytes
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
