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

// Contents is what a checkpoint is made of.
type Contents struct {
	Config    Config
	Model     []Tensor // under Hugging Face's names
	Optimizer []Tensor
	State     any // becomes state.json
}

// partialMark is in the name of every folder that is being written or
// deleted; such names begin with a dot.
const partialMark = ".partial-"

// Save writes a checkpoint into dir, the run's folder of checkpoints, which it
// creates if need be, and returns the new folder's path. When it returns
// without an error, the checkpoint survives a power cut. With an error the
// older ones are as they were, and a new one is absent, or whole if only the
// last step failed, the one that makes its name durable. A damaged checkpoint
// of the same step is replaced, a whole one is an error.
func Save(dir string, step int, c Contents) (path string, err error) {
	if step < 0 {
		return "", fmt.Errorf("checkpoint of step %d: expected 0 or more", step)
	}
	if err := c.Config.Validate(); err != nil {
		return "", fmt.Errorf("checkpoint of step %d: %s: %w", step, ConfigFile, err)
	}
	path = filepath.Join(dir, stepName(step))
	damaged, err := mayReplace(path)
	if err != nil {
		return "", err
	}
	if err := makeCheckpoints(dir); err != nil {
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
	if err := disk.Move(temp, path); err != nil {
		return "", errors.Join(err, disk.RemoveAll(temp))
	}
	if err := disk.SyncDir(dir); err != nil {
		return "", err
	}
	return path, nil
}

// mayReplace reports whether something is at path already.
func mayReplace(path string) (exists bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if Verify(path) == nil {
		return false, fmt.Errorf("%s: a whole checkpoint of this step is there already", path)
	}
	return true, nil
}

// makeCheckpoints creates the folder of checkpoints in an existing run.
func makeCheckpoints(dir string) error {
	if err := disk.MakeDir(dir); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// write fills the new folder dir, the manifest last: what is in it is on disk
// before the manifest that vouches for it.
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

// writeFile creates a file in dir, fills it and syncs it to disk. The entry
// describes what was written.
func writeFile(dir, name string, fill func(io.Writer) error) (entry fileEntry, err error) {
	f, err := disk.Open(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return fileEntry{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := &summingFile{f: f, sha: sha256.New()}
	buffer := bufio.NewWriterSize(sum, 1<<20)
	if err := fill(buffer); err != nil {
		return fileEntry{}, err
	}
	if err := buffer.Flush(); err != nil {
		return fileEntry{}, err
	}
	return fileEntry{Name: name, Size: sum.size, SHA256: hex.EncodeToString(sum.sha.Sum(nil))}, f.Sync()
}

// summingFile counts and sums what it writes.
type summingFile struct {
	f    *disk.File
	sha  hash.Hash
	size int64
}

func (s *summingFile) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	s.sha.Write(p[:n])
	s.size += int64(n)
	return n, err
}

// partialName is a fresh hidden name beside path.
func partialName(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, fmt.Sprintf(".%s%s%08x", name, partialMark, rand.Uint32()))
}

// Discard takes a checkpoint away in one instant, then deletes its files.
func Discard(path string) error {
	aside := partialName(path)
	if err := disk.Move(path, aside); err != nil {
		return err
	}
	return disk.RemoveAll(aside)
}
