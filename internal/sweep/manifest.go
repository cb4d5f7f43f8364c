package sweep

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/BurntSushi/toml"

	"octet/internal/disk"
	"octet/internal/runs"
)

// manifestFile is the name of the manifest in a sweep's folder.
const manifestFile = "sweep.toml"

// manifest says which runs a sweep has. It is independent of the sweep file, which may
// change or be elsewhere.
type manifest struct {
	Variants []entry `toml:"variants"`
}

// entry is a variant of a manifest.
type entry struct {
	Name     string  `toml:"name"`
	Folder   string  `toml:"folder"`
	Backend  string  `toml:"backend"`
	Baseline string  `toml:"baseline,omitempty"` // name; empty: this variant is one
	Seeds    []int64 `toml:"seeds"`
}

// readManifest reads the manifest of the sweep in dir. The error wraps fs.ErrNotExist if
// there is none.
func readManifest(dir string) (m manifest, err error) {
	name := filepath.Join(dir, manifestFile)
	text, err := runs.ReadText(name, maxManifest)
	if err == nil {
		m, err = parseManifest(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w; octet sweep writes it anew if it is removed", name, err)
	}
	return m, err
}

// maxManifest is the number of bytes of the largest manifest: a variant has at most 1 KiB
// without its seeds.
const maxManifest = 16 << 20

func parseManifest(text string) (m manifest, err error) {
	if _, err := toml.Decode(text, &m); err != nil {
		return m, err
	}
	names := map[string]bool{}
	for _, e := range m.Variants {
		if !safeFolder.MatchString(e.Folder) || names[e.Name] {
			return m, fmt.Errorf("the variant %q with the folder %q is damaged", e.Name, e.Folder)
		}
		names[e.Name] = true
	}
	return m, nil
}

func writeManifest(dir string, variants []*Variant) error {
	var m manifest
	for _, v := range variants {
		e := entry{Name: v.Name, Folder: v.Folder, Backend: v.device, Seeds: v.Seeds}
		if v.Baseline != nil {
			e.Baseline = v.Baseline.Name
		}
		m.Variants = append(m.Variants, e)
	}
	var text bytes.Buffer
	text.WriteString("# octet sweep writes this file; octet report reads it.\n")
	if err := toml.NewEncoder(&text).Encode(m); err != nil {
		return err
	}
	return disk.WriteAtomic(filepath.Join(dir, manifestFile), text.Bytes())
}

// Groups returns the runs of the sweep in dir that have begun to train, by variant. Each
// group has the name and the baseline of its variant; no baseline if none of its runs has
// begun. The error wraps fs.ErrNotExist if dir holds no sweep.
func Groups(dir string) (groups []*runs.Group, err error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	byName := map[string]*runs.Group{}
	for _, e := range m.Variants {
		g := &runs.Group{Name: e.Name}
		for _, seed := range e.Seeds {
			name := filepath.Join(dir, runFolder(e.Folder, seed))
			if !runs.IsRun(name) {
				continue
			}
			r, err := runs.Open(name)
			if err != nil {
				return nil, err
			}
			r.Name = fmt.Sprintf("%s, seed %d", e.Name, seed)
			g.Runs = append(g.Runs, r)
		}
		if len(g.Runs) > 0 {
			byName[e.Name] = g
			groups = append(groups, g)
		}
	}
	for _, e := range m.Variants {
		if g := byName[e.Name]; g != nil && e.Baseline != "" {
			g.Baseline = byName[e.Baseline]
		}
	}
	return groups, nil
}

// Complete is [Groups] for a sweep whose runs are all done. The runs of a group are in the order of
// its seeds.
func Complete(dir string) ([]*runs.Group, error) {
	m, err := readManifest(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no sweep: octet sweep FILE.toml -o %[1]s makes it", dir)
	}
	if err != nil {
		return nil, err
	}
	groups, err := Groups(dir)
	if err != nil {
		return nil, err
	}
	done := map[string]bool{}
	for _, g := range groups {
		for _, r := range g.Runs {
			done[r.Dir] = r.Done()
		}
	}
	for _, e := range m.Variants {
		for _, seed := range e.Seeds {
			if name := filepath.Join(dir, runFolder(e.Folder, seed)); !done[name] {
				return nil, fmt.Errorf("%s is not done: octet sweep with the same file and folder finishes it", name)
			}
		}
	}
	return groups, nil
}

// runFolder returns the folder of a run, relative to that of the sweep.
func runFolder(variant string, seed int64) string {
	return filepath.Join("runs", variant, "seed-"+strconv.FormatInt(seed, 10))
}
