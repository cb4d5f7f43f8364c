package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/train"
)

// The files of a run folder.
const (
	configFile     = "config.toml"
	dataFile       = "data.json"
	metricsFile    = "metrics.jsonl"
	timingFile     = "timing.jsonl"
	logFile        = "run.log"
	checkpointsDir = "checkpoints"
)

// Folder is a run folder that this process has locked.
type Folder struct {
	Dir    string
	unlock func() error
	fresh  bool // made by this process
}

// Create makes a run folder, which must not hold a run yet, and writes the
// resolved config into it.
func Create(dir string, c train.Config) (*Folder, error) {
	if _, err := os.Stat(filepath.Join(dir, configFile)); err == nil {
		return nil, fmt.Errorf("--out %s holds a run already: name another folder, or go on with it by --resume", dir)
	}
	_, err := os.Stat(dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("creating the run folder: %w", err)
	}
	f := &Folder{Dir: dir, fresh: fresh}
	if f.unlock, err = checkpoint.Lock(dir); err != nil {
		return nil, err
	}
	text, err := config.Marshal(c)
	if err == nil {
		err = writeWhole(filepath.Join(dir, configFile), text)
	}
	if err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// Resume locks an existing run folder.
func Resume(dir string) (*Folder, error) {
	if _, err := os.Stat(filepath.Join(dir, configFile)); err != nil {
		return nil, fmt.Errorf("--resume: %s is not a run folder: it has no %s", dir, configFile)
	}
	unlock, err := checkpoint.Lock(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{Dir: dir, unlock: unlock}, nil
}

// ConfigPath is where the run's resolved config lies.
func ConfigPath(dir string) string { return filepath.Join(dir, configFile) }

// Checkpoints is the folder of the run's checkpoints.
func (f *Folder) Checkpoints() string { return filepath.Join(f.Dir, checkpointsDir) }

func (f *Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Close unlocks the folder.
func (f *Folder) Close() error { return f.unlock() }

// Discard takes back Create where nothing was started: the folder goes if this
// process made it.
func (f *Folder) Discard() error {
	err := f.unlock()
	if !f.fresh {
		return errors.Join(err, os.Remove(f.path(configFile)))
	}
	return errors.Join(err, os.RemoveAll(f.Dir))
}

// recordData writes data.json, or, where it exists, insists that the corpus is
// the one that the run began with.
func (f *Folder) recordData(info data.Info) error {
	name := f.path(dataFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = json.MarshalIndent(info, "", "  "); err != nil {
			return err
		}
		return writeWhole(name, append(text, '\n'))
	}
	if err != nil {
		return err
	}
	var saved data.Info
	if err := json.Unmarshal(text, &saved); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return data.CheckSame(saved, info)
}

// writeWhole writes a small file so that it is there whole or not at all.
func writeWhole(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
