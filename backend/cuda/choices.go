package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"octet/internal/disk"
)

// choices are the algorithms of GEMMs, by kind. Algorithms sum in different orders, so a
// run repeats bit for bit only with the same ones; and they are chosen by time, which
// varies. So they are stored: with the run (backend.Chooser) and, for later runs, on disk
// (algorithmCache).
type choices struct {
	Library    string               `json:"cublaslt"` // version; other versions read an algorithm's code differently
	Algorithms map[string]algorithm `json:"products"` // by kind
}

// algorithm is cuBLASLt's opaque code of an algorithm.
type algorithm [64]byte

// MarshalText implements encoding.TextMarshaler.
func (a algorithm) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, a[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *algorithm) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(a)) {
		return fmt.Errorf("the hex code of an algorithm has %d digits, got %d", hex.EncodedLen(len(a)), len(text))
	}
	_, err := hex.Decode(a[:], text)
	return err
}

// parseChoices reads the choices for a library's version. Damaged text, or that of
// another version, yields none.
func parseChoices(text []byte, library string) choices {
	var c choices
	if json.Unmarshal(text, &c) != nil || c.Library != library || c.Algorithms == nil {
		return noChoices(library)
	}
	return c
}

func noChoices(library string) choices { return choices{library, map[string]algorithm{}} }

func (c choices) text() []byte {
	text, _ := json.MarshalIndent(c, "", "  ") // cannot fail for these types
	return append(text, '\n')
}

// fingerprint identifies choices; empty for none.
func (c choices) fingerprint() string {
	if len(c.Algorithms) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(c.Algorithms)) {
		_, _ = fmt.Fprintf(sum, "%s %x\n", name, c.Algorithms[name]) // a hash does not fail
	}
	return hex.EncodeToString(sum.Sum(nil)[:4])
}

// algorithmCache holds the algorithms chosen on a kind of GPU: by this process and, from
// a file in the user's cache folder, by earlier ones. Its lock is held while an algorithm
// is chosen, so that GPUs of a kind agree.
type algorithmCache struct {
	sync.Mutex
	choices
	path  string // empty without a cache folder
	dirty bool   // some choices are not in the file yet
}

// newAlgorithmCache reads the choices for a library's version on a kind of GPU.
func newAlgorithmCache(library, kind string) *algorithmCache {
	r := &algorithmCache{choices: choices{Library: library}}
	if dir, err := os.UserCacheDir(); err == nil {
		sum := sha256.Sum256([]byte(kind + "\n" + library))
		r.path = filepath.Join(dir, "octet", "gemm", hex.EncodeToString(sum[:8])+".json")
	}
	r.choices = r.read()
	return r
}

func (r *algorithmCache) read() choices {
	text, _ := os.ReadFile(r.path) // no file, no choices
	return parseChoices(text, r.Library)
}

func (r *algorithmCache) set(kind string, a algorithm) { r.Algorithms[kind], r.dirty = a, true }

// save replaces the file atomically, merging choices that other processes have written
// meanwhile. If that fails, the next process chooses again.
func (r *algorithmCache) save() {
	if !r.dirty || r.path == "" {
		return
	}
	all := r.read()
	maps.Copy(all.Algorithms, r.Algorithms)
	r.dirty = disk.WriteCache(r.path, all.text()) != nil
}
