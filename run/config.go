package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"octet/internal/config"
	"octet/internal/disk"
	"octet/train"
)

// NewConfig returns the configuration of a new run. It makes paths absolute, so that the
// run's config.toml means the same from any folder; given paths are relative to the
// current one.
func NewConfig(a config.Args) (train.Config, error) {
	loaded, err := load(a)
	if err != nil {
		return train.Config{}, err
	}
	return loaded.Config, nil
}

func load(a config.Args) (*config.Loaded, error) {
	c, err := config.Load(a)
	if err != nil {
		return nil, err
	}
	for i, p := range c.Data.Paths {
		if c.Data.Paths[i], err = absolute("data.paths", p); err != nil {
			return nil, err
		}
	}
	if c.Model.Init != "" {
		if c.Model.Init, err = absolute("model.init", c.Model.Init); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// absolute returns an absolute path. It expands ~, which a shell does not do within a file.
// It refuses a URL, with the name of the key in the error.
func absolute(key, path string) (string, error) {
	if err := disk.CheckLocal(path); err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	if rest, ok := strings.CutPrefix(filepath.ToSlash(path), "~"); ok && (rest == "" || rest[0] == '/') {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return filepath.Join(home, rest), nil
	}
	return filepath.Abs(path)
}

// ResumedConfig returns the configuration of the run in dir. Of the settings, a may change
// only the length of the run.
func ResumedConfig(dir string, a config.Args) (train.Config, error) {
	if a.File != "" {
		return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run takes the %s of its own folder", a.File, configFile)
	}
	a.File = ConfigPath(dir)
	if info, err := os.Stat(a.File); err == nil && !info.Mode().IsRegular() { // opening a pipe would block
		return train.Config{}, fmt.Errorf("%s is not a regular file: put one in its place", a.File)
	}
	loaded, err := config.Load(a)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return train.Config{}, notARun(dir)
	}
	if err != nil {
		return train.Config{}, err
	}
	for _, key := range loaded.FromCommand {
		if key != "train.steps" {
			return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run accepts only --steps, --threads and --backend; --resume=auto accepts the command line of a new run", key)
		}
	}
	return loaded.Config, nil
}

// AutoConfig returns the configuration of the run in dir and resumes = true, or that of a
// new run if dir holds none. A scheduler gives the same arguments in both cases: those of a
// resumed run must agree with its config.toml, except for the length.
func AutoConfig(dir string, a config.Args) (c train.Config, resumes bool, err error) {
	given, err := load(a)
	if err != nil {
		return c, false, err
	}
	if !exists(ConfigPath(dir)) {
		return given.Config, false, nil
	}
	// The file and the command line may give the same key.
	keys := slices.Compact(slices.Sorted(slices.Values(slices.Concat(given.FromFile, given.FromCommand))))
	var length config.Args
	if slices.Contains(keys, "train.steps") {
		length.Assignments = []string{fmt.Sprintf("train.steps=%d", given.Train.Steps)}
	}
	if c, err = ResumedConfig(dir, length); err != nil {
		return c, true, err
	}
	differing, err := config.Differences(keys, c, given.Config)
	if err == nil && len(differing) > 0 {
		err = fmt.Errorf("--resume=auto: %s holds a run with another configuration: %s; name another folder with --out, or use the values of its %s", dir, strings.Join(differing, ", "), configFile)
	}
	return c, true, err
}

// Rise holds the learning rates around a resume that makes a run longer: the stretched
// schedule may raise the rate again.
type Rise struct{ From, To float64 }

// riseOfRate compares the learning rate of the last update with that of the next one. It
// returns nil if the rate does not rise, or would have risen anyway.
func riseOfRate(o train.Optimizer, done, before, steps int) *Rise {
	if done == 0 || steps <= before {
		return nil
	}
	r := Rise{From: o.LRAt(done-1, before), To: o.LRAt(done, steps)}
	if r.To <= max(r.From, o.LRAt(done, before)) {
		return nil
	}
	return &r
}
