package run

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/disk"
)

// node is a file or folder as a power cut leaves it: POSIX guarantees the bytes of a file at
// its last sync, and the names of a folder at its last sync.
type node struct {
	folder        bool
	names, synced map[string]*node // of a folder: now, and at its last sync
	text          []byte           // of a file, at its last sync
	length        int              // of a file, now
}

func newNode(folder bool) *node { return &node{folder: folder, names: map[string]*node{}} }

// powerDisk tracks the changes of a run to the folder home.
type powerDisk struct {
	home string
	root *node
}

// find returns the node of a path, its folder, and its name there.
func (d *powerDisk) find(path string) (n, parent *node, base string) {
	n = d.root
	rel, err := filepath.Rel(d.home, path)
	if err != nil || rel == "." {
		return n, nil, ""
	}
	for _, base = range strings.Split(rel, string(filepath.Separator)) {
		if parent = n; parent == nil {
			return nil, nil, base
		}
		n = parent.names[base]
	}
	return n, parent, base
}

// follow records a change that has happened.
func (d *powerDisk) follow(c disk.Change) error {
	n, parent, base := d.find(c.Path)
	switch c.Op {
	case disk.Mkdir, disk.Create:
		if n == nil {
			parent.names[base] = newNode(c.Op == disk.Mkdir)
		}
	case disk.Remove:
		delete(parent.names, base)
	case disk.Rename:
		entries, err := os.ReadDir(filepath.Dir(c.Path))
		if err != nil {
			return err
		}
		to := strings.TrimSuffix(strings.TrimPrefix(base, "."), ".partial") // the name if it replaces a file
		for _, e := range entries {
			if parent.names[e.Name()] == nil {
				to = e.Name()
			}
		}
		delete(parent.names, base)
		parent.names[to] = n
	case disk.Sync:
		if info, err := os.Stat(c.Path); err != nil {
			return err
		} else if info.IsDir() {
			n.synced = maps.Clone(n.names)
			return nil
		}
		text, err := os.ReadFile(c.Path)
		n.text = text
		return err
	case disk.Write, disk.Truncate:
		info, err := os.Stat(c.Path)
		if err != nil {
			return err
		}
		n.length = int(info.Size())
	}
	return nil
}

// leave writes the state after a power cut: the synced names and bytes or, if the file system
// wrote names quickly, all names, with zeros for bytes that were not synced.
func (n *node) leave(path string, quick bool) error {
	names := n.synced
	if quick {
		names = n.names
	}
	if !n.folder {
		text := n.text
		if quick && n.length > len(text) {
			text = append(text[:len(text):len(text)], make([]byte, n.length-len(text))...)
		}
		return os.WriteFile(path, text, 0o600)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for name, child := range names {
		if err := child.leave(filepath.Join(path, name), quick); err != nil {
			return err
		}
	}
	return nil
}

// After a power cut right after any change of a run to its folder, the run resumes and ends like
// one without a power cut. Before config.toml is on disk, no run remains.
func TestPowerCut(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	home, cuts := t.TempDir(), t.TempDir()
	d := &powerDisk{home, newNode(true)}
	every := 13
	if os.Getenv("OCTET_LONG") != "" {
		every = 1
	}
	var mu sync.Mutex
	n, left := 0, []string(nil)
	restore := disk.Intercept(func(c disk.Change) error {
		mu.Lock()
		defer mu.Unlock()
		err := errors.Join(c.Do(), d.follow(c))
		if n++; n%every == 0 || n < 5 { // the first ones are before config.toml
			for _, quick := range []bool{false, true} {
				cut := filepath.Join(cuts, fmt.Sprintf("%d-%t-%s-%s", n, quick, c.Op, filepath.Base(c.Path)))
				err = errors.Join(err, d.root.leave(cut, quick))
				left = append(left, filepath.Join(cut, "run"))
			}
		}
		return err
	})
	err := tryTrain(t.Context(), c, filepath.Join(home, "run"), func(Progress) {})
	restore()
	require.NoError(t, err)
	begun := 0
	for _, dir := range left {
		if _, err := os.Stat(configPath(dir)); err != nil {
			require.NoDirExists(t, filepath.Join(dir, checkpoint.Dir))
			continue
		}
		begun++
		trainIn(t, c, dir, func(Progress) {})
		got := files(t, dir)
		for name, text := range want { // an additional checkpoint is fine: the last removal is not synced
			require.True(t, text == got[name], "%s of %s", name, dir)
		}
	}
	t.Logf("%d power cuts, %d after config.toml", len(left), begun)
	require.Positive(t, begun)
	require.Less(t, begun, len(left))
}
