package checkpoint

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"octet/internal/disk"
	"octet/tokenizer"
)

// Contents is the data of a checkpoint.
type Contents struct {
	Config    Config
	Model     []Tensor // under Hugging Face's names
	Optimizer []Tensor
	State     any // encoded as state.json
	Tokenizer []tokenizer.File
}

// partialMark is part of the name of every folder that is being written or
// deleted. Such names begin with a dot.
const partialMark = ".partial-"

// Save writes a checkpoint to a new folder in dir and returns its path. dir is the
// run's folder of checkpoints; Save creates it if necessary. If Save succeeds, the
// checkpoint survives a power cut. If Save fails, older checkpoints are unchanged and
// the new one is absent, or complete if only the final sync of dir failed. Save
// replaces a damaged checkpoint of the same step; a valid one is an error.
func Save(dir string, step int, c Contents) (path string, err error) {
	if err := c.Config.Validate(); err != nil {
		return "", fmt.Errorf("checkpoint of step %d: %s: %w", step, ConfigFile, err)
	}
	u, err := begin(dir, step)
	if err != nil {
		return "", err
	}
	m := manifest{Format: manifestFormat, Version: wholeVersion}
	m.Files, err = u.write(append([]content{
		{ModelFile, func(w io.Writer) error { return writeTensors(w, c.Model, nil) }},
		{ConfigFile, jsonOf(c.Config)},
		{OptimizerFile, func(w io.Writer) error { return writeTensors(w, c.Optimizer, nil) }},
		{StateFile, jsonOf(c.State)},
	}, contentsOf(c.Tokenizer)...))
	if err != nil {
		return "", u.discard(err)
	}
	return u.publish(m)
}

// unfinished is a checkpoint in its hidden folder.
type unfinished struct {
	partial string // the hidden folder
	path    string // the folder's name when the checkpoint is complete
	damaged bool   // a damaged checkpoint has that name
}

// begin makes the hidden folder of a checkpoint in dir, and dir if necessary.
func begin(dir string, step int) (unfinished, error) {
	if step < 0 {
		return unfinished{}, fmt.Errorf("checkpoint of step %d: expected 0 or more", step)
	}
	path := filepath.Join(dir, stepName(step))
	damaged, err := checkExisting(path)
	if err != nil {
		return unfinished{}, err
	}
	if err := makeCheckpointsDir(dir); err != nil {
		return unfinished{}, fmt.Errorf("creating %s: %w", dir, err)
	}
	u := unfinished{partialName(path), path, damaged}
	if err := disk.MakeDir(u.partial); err != nil {
		return unfinished{}, u.discard(err)
	}
	return u, nil
}

// discard removes the hidden folder because of an error, and returns that error.
func (u unfinished) discard(err error) error {
	return errors.Join(fmt.Errorf("writing %s: %w", u.path, err), disk.RemoveAll(u.partial))
}

// content is a file to write.
type content struct {
	name string
	fill func(io.Writer) error
}

// contentsOf returns the files of a tokenizer.
func contentsOf(files []tokenizer.File) (list []content) {
	for _, f := range files {
		list = append(list, content{f.Name, Bytes(f.Data)})
	}
	return list
}

func jsonOf(v any) func(io.Writer) error {
	return func(w io.Writer) error {
		text, err := encodeJSON(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
}

// write writes files to the hidden folder, syncs them and returns their manifest entries.
func (u unfinished) write(files []content) (entries []fileEntry, err error) {
	for _, f := range files {
		entry, err := writeFile(u.partial, f.name, f.fill)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// publish writes the manifest, which certifies the files, and gives the folder its name.
// The files must be synced. If publish fails, it removes the hidden folder.
func (u unfinished) publish(m manifest) (path string, err error) {
	if err := disk.SyncDir(u.partial); err != nil {
		return "", u.discard(err)
	}
	if _, err := u.write([]content{{ManifestFile, jsonOf(m)}}); err != nil {
		return "", u.discard(err)
	}
	if err := disk.SyncDir(u.partial); err != nil {
		return "", u.discard(err)
	}
	if u.damaged {
		if err := Discard(u.path); err != nil {
			return "", u.discard(err)
		}
	}
	// The rename makes the checkpoint appear, complete.
	if err := disk.Move(u.partial, u.path); err != nil {
		return "", u.discard(err)
	}
	if err := disk.SyncDir(filepath.Dir(u.path)); err != nil {
		return "", err
	}
	return u.path, nil
}

// checkExisting reports whether a damaged checkpoint is at path. A valid one is an
// error.
func checkExisting(path string) (exists bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if Verify(path) == nil {
		return false, fmt.Errorf("%s: a valid checkpoint of this step already exists", path)
	}
	return true, nil
}

// makeCheckpointsDir creates the folder of checkpoints in an existing run folder.
func makeCheckpointsDir(dir string) error {
	if err := disk.MakeDir(dir); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// writeFile creates a file in dir, fills it and syncs it to disk. It returns the
// file's manifest entry.
func writeFile(dir, name string, fill func(io.Writer) error) (entry fileEntry, err error) {
	f, err := disk.Open(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return fileEntry{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := &hashingFile{f: f, sha: sha256.New()}
	buffer := bufio.NewWriterSize(sum, 1<<20)
	if err := fill(buffer); err != nil {
		return fileEntry{}, err
	}
	if err := buffer.Flush(); err != nil {
		return fileEntry{}, err
	}
	return fileEntry{Name: name, Size: sum.size, SHA256: hex.EncodeToString(sum.sha.Sum(nil))}, f.Sync()
}

// hashingFile counts and hashes the bytes it writes.
type hashingFile struct {
	f    *disk.File
	sha  hash.Hash
	size int64
}

func (s *hashingFile) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	s.sha.Write(p[:n])
	s.size += int64(n)
	return n, err
}

// partialName returns a new hidden name in the folder of path.
func partialName(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, fmt.Sprintf(".%s%s%08x", name, partialMark, rand.Uint32()))
}

// Discard removes a checkpoint: it renames the folder, which is atomic, then deletes
// it.
func Discard(path string) error {
	aside := partialName(path)
	if err := disk.Move(path, aside); err != nil {
		return err
	}
	return disk.RemoveAll(aside)
}
