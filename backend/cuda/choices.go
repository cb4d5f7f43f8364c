package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// choices remembers on disk which algorithm was chosen for each kind of product:
// its place in the list of cuBLASLt's heuristics, which is the same for the same
// GPU and library. Timings are not: a run that is resumed would choose others,
// and end in other bits.
type choices struct {
	path   string // empty where nothing can be kept
	places map[string]int
	fresh  bool // places has what the file lacks
}

// openChoices reads what was chosen on a GPU with a library, both named with
// everything that the list of algorithms may depend on.
func openChoices(names ...string) *choices {
	c := &choices{places: map[string]int{}}
	if dir, err := os.UserCacheDir(); err == nil {
		sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
		c.path = filepath.Join(dir, "octet", "gemm", hex.EncodeToString(sum[:8])+".json")
	}
	c.places = c.read()
	return c
}

// read is what the file says; a damaged one says nothing.
func (c *choices) read() map[string]int {
	places := map[string]int{}
	if text, err := os.ReadFile(c.path); err != nil || json.Unmarshal(text, &places) != nil {
		return map[string]int{}
	}
	return places
}

// of is the place of the algorithm that was chosen for a product, among so many.
func (c *choices) of(product string, among int) (place int, ok bool) {
	place, ok = c.places[product]
	return place, ok && place >= 0 && place < among
}

func (c *choices) set(product string, place int) { c.places[product], c.fresh = place, true }

// save puts a whole file in place or none, with what other processes have chosen
// meanwhile. Where it cannot be written, the next process chooses anew.
func (c *choices) save() {
	if !c.fresh || c.path == "" {
		return
	}
	places := c.read()
	maps.Copy(places, c.places)
	text, err := json.Marshal(places)
	if err != nil || os.MkdirAll(filepath.Dir(c.path), 0o777) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(c.path), "new-*")
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if f.Close() != nil || err != nil || os.Rename(f.Name(), c.path) != nil {
		_ = os.Remove(f.Name())
		return
	}
	c.fresh = false
}
