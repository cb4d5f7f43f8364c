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

// NewConfig is the configuration of a new run. Its paths are absolute, so that
// the config.toml which the run keeps means the same from any folder; those
// that were given are relative to the current one.
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

// absolute also knows the home folder's ~, which no shell replaces in a file. It refuses
// a URL by the name of the key.
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

// ResumedConfig is the configuration of the run in dir, with what a resumed
// run may change: its length.
func ResumedConfig(dir string, a config.Args) (train.Config, error) {
	if a.File != "" {
		return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run takes the %s of its own folder", a.File, configFile)
	}
	a.File = ConfigPath(dir)
	if info, err := os.Stat(a.File); err == nil && !info.Mode().IsRegular() { // to open a pipe is to wait for ever
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
			return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run may change its length (--steps), --threads and --backend, nothing else; --resume=auto takes the command line of a new run", key)
		}
	}
	return loaded.Config, nil
}

// AutoConfig is the configuration of the run in dir where there is one, which resumes,
// and of a new run otherwise. The same arguments are given in both cases, as by a
// scheduler that starts a job again: those of a run that resumes must agree with its
// config.toml, except for its length.
func AutoConfig(dir string, a config.Args) (c train.Config, resumes bool, err error) {
	given, err := load(a)
	if err != nil {
		return c, false, err
	}
	if !exists(ConfigPath(dir)) {
		return given.Config, false, nil
	}
	// A key of the file may be on the command line, too.
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
		err = fmt.Errorf("--resume=auto: %s holds a run of another configuration: %s; name another folder by --out, or give what its %s has", dir, strings.Join(differing, ", "), configFile)
	}
	return c, true, err
}

// Rise is how the learning rate goes up again where a run is made longer: its schedule
// is stretched, so that more of it lies ahead than did.
type Rise struct{ From, To float64 }

// riseOfRate compares the rate of the last update that was done with that of the next
// one; nil where it does not rise, or would have risen anyway.
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
