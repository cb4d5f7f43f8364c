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
)

// choices are the algorithms with which kinds of products are computed. They add
// up in different orders, so that a run repeats bit for bit only with the same
// ones; and they are chosen by time, which does not repeat. So they are kept: with
// the run (backend.Chooser) and, for the next one, on disk (remembered).
type choices struct {
	Library  string               `json:"cublaslt"` // version; an algorithm means nothing to others
	Products map[string]algorithm `json:"products"` // by kind
}

// algorithm is what cuBLASLt knows one by.
type algorithm [64]byte

// MarshalText implements encoding.TextMarshaler.
func (a algorithm) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, a[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *algorithm) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(a)) {
		return fmt.Errorf("an algorithm has %d digits, got %d", hex.EncodedLen(len(a)), len(text))
	}
	_, err := hex.Decode(a[:], text)
	return err
}

// parseChoices reads what was chosen for a library. Text that is damaged, or of
// another library, says nothing.
func parseChoices(text []byte, library string) choices {
	var c choices
	if json.Unmarshal(text, &c) != nil || c.Library != library || c.Products == nil {
		return noChoices(library)
	}
	return c
}

func noChoices(library string) choices { return choices{library, map[string]algorithm{}} }

func (c choices) text() []byte {
	text, _ := json.MarshalIndent(c, "", "  ") // nothing in it can fail
	return append(text, '\n')
}

// fingerprint tells choices apart; empty where there are none.
func (c choices) fingerprint() string {
	if len(c.Products) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(c.Products)) {
		_, _ = fmt.Fprintf(sum, "%s %x\n", name, c.Products[name]) // a hash does not fail
	}
	return hex.EncodeToString(sum.Sum(nil)[:4])
}

// remembered is what was chosen on a kind of GPU, in this process and, from a file
// in the user's cache folder, before. The lock is held while one is chosen, so
// that GPUs of a kind agree.
type remembered struct {
	sync.Mutex
	choices
	path  string // empty where nothing can be kept
	fresh bool   // there are choices that the file lacks
}

// remember reads what was chosen for a library on a kind of GPU.
func remember(library, kind string) *remembered {
	r := &remembered{choices: choices{Library: library}}
	if dir, err := os.UserCacheDir(); err == nil {
		sum := sha256.Sum256([]byte(kind + "\n" + library))
		r.path = filepath.Join(dir, "octet", "gemm", hex.EncodeToString(sum[:8])+".json")
	}
	r.choices = r.read()
	return r
}

func (r *remembered) read() choices {
	text, _ := os.ReadFile(r.path) // no file, no choices
	return parseChoices(text, r.Library)
}

func (r *remembered) set(product string, a algorithm) { r.Products[product], r.fresh = a, true }

// save puts a whole file in place or none, with what other processes have chosen
// meanwhile. Where it cannot be written, the next process chooses anew.
func (r *remembered) save() {
	if !r.fresh || r.path == "" || os.MkdirAll(filepath.Dir(r.path), 0o777) != nil {
		return
	}
	all := r.read()
	maps.Copy(all.Products, r.Products)
	f, err := os.CreateTemp(filepath.Dir(r.path), "new-*")
	if err != nil {
		return
	}
	_, err = f.Write(all.text())
	if f.Close() != nil || err != nil || os.Rename(f.Name(), r.path) != nil {
		_ = os.Remove(f.Name())
		return
	}
	r.fresh = false
}
