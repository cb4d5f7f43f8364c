// Package powercut is for tests: it computes what a power cut leaves of a folder, from the
// changes that package disk makes to it.
package powercut

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

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

// Disk tracks the changes to a folder.
type Disk struct {
	home string
	root *node
}

// New returns the Disk of an empty folder.
func New(home string) *Disk { return &Disk{home, newNode(true)} }

// find returns the node of a path, its folder, and its name there.
func (d *Disk) find(path string) (n, parent *node, base string) {
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

// Follow records a change that has happened. One goroutine at a time may call it.
func (d *Disk) Follow(c disk.Change) error {
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

// Leave writes the state after a power cut to a new folder: the synced names and bytes or,
// if the file system wrote names quickly, all names, with zeros for bytes that were not
// synced.
func (d *Disk) Leave(path string, quick bool) error { return d.root.leave(path, quick) }

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
