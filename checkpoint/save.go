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
)

// Contents is the data of a checkpoint.
type Contents struct {
	Config    Config
	Model     []Tensor // under Hugging Face's names
	Optimizer []Tensor
	State     any // encoded as state.json
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
	if step < 0 {
		return "", fmt.Errorf("checkpoint of step %d: expected 0 or more", step)
	}
	if err := c.Config.Validate(); err != nil {
		return "", fmt.Errorf("checkpoint of step %d: %s: %w", step, ConfigFile, err)
	}
	path = filepath.Join(dir, stepName(step))
	damaged, err := checkExisting(path)
	if err != nil {
		return "", err
	}
	if err := makeCheckpointsDir(dir); err != nil {
		return "", fmt.Errorf("creating %s: %w", dir, err)
	}
	temp := partialName(path)
	if err := write(temp, c); err != nil {
		return "", errors.Join(fmt.Errorf("writing %s: %w", path, err), disk.RemoveAll(temp))
	}
	if damaged {
		if err := Discard(path); err != nil {
			return "", errors.Join(err, disk.RemoveAll(temp))
		}
	}
	// The rename makes the checkpoint appear, complete.
	if err := disk.Move(temp, path); err != nil {
		return "", errors.Join(err, disk.RemoveAll(temp))
	}
	if err := disk.SyncDir(dir); err != nil {
		return "", err
	}
	return path, nil
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

// write creates the folder dir and its files. It syncs all other files to disk
// before it writes the manifest, which certifies them.
func write(dir string, c Contents) error {
	if err := disk.MakeDir(dir); err != nil {
		return err
	}
	config, err := encodeJSON(c.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", ConfigFile, err)
	}
	state, err := encodeJSON(c.State)
	if err != nil {
		return fmt.Errorf("%s: %w", StateFile, err)
	}
	fill := map[string]func(io.Writer) error{
		ModelFile:     func(w io.Writer) error { return writeTensors(w, c.Model) },
		ConfigFile:    Bytes(config),
		OptimizerFile: func(w io.Writer) error { return writeTensors(w, c.Optimizer) },
		StateFile:     Bytes(state),
	}
	m := manifest{Format: manifestFormat, Version: manifestVersion}
	for _, name := range contentFiles {
		entry, err := writeFile(dir, name, fill[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.Files = append(m.Files, entry)
	}
	if err := disk.SyncDir(dir); err != nil {
		return err
	}
	text, err := encodeJSON(m)
	if err != nil {
		return err
	}
	if _, err := writeFile(dir, ManifestFile, Bytes(text)); err != nil {
		return fmt.Errorf("%s: %w", ManifestFile, err)
	}
	return disk.SyncDir(dir)
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
