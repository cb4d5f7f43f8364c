package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
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
		return "", errors.Join(fmt.Errorf("writing %s: %w", path, err), removeAll(temp))
	}
	if damaged {
		if err := Discard(path); err != nil {
			return "", errors.Join(err, removeAll(temp))
		}
	}
	if err := rename(temp, path); err != nil {
		return "", errors.Join(err, removeAll(temp))
	}
	if err := syncDir(dir); err != nil {
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
	if err := makeDir(dir); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// write fills the new folder dir, the manifest last: what is in it is on disk
// before the manifest that vouches for it.
func write(dir string, c Contents) error {
	if err := makeDir(dir); err != nil {
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
	if err := syncDir(dir); err != nil {
		return err
	}
	text, err := encodeJSON(m)
	if err != nil {
		return err
	}
	if _, err := writeFile(dir, ManifestFile, Bytes(text)); err != nil {
		return fmt.Errorf("%s: %w", ManifestFile, err)
	}
	return syncDir(dir)
}

// partialName is a fresh hidden name beside path.
func partialName(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, fmt.Sprintf(".%s%s%08x", name, partialMark, rand.Uint32()))
}

// Discard takes a checkpoint away in one instant, then deletes its files.
func Discard(path string) error {
	aside := partialName(path)
	if err := rename(path, aside); err != nil {
		return err
	}
	return removeAll(aside)
}
