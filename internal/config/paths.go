package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"octet/internal/disk"
)

// New does what Load does, for a new run. It makes paths absolute, so that the run's
// config.toml means the same from any folder; given paths are relative to a.Dir.
func New(a Args) (*Loaded, error) {
	c, err := Load(a)
	if err != nil {
		return nil, err
	}
	for i, p := range c.Data.Paths {
		if c.Data.Paths[i], err = absolute("data.paths", a.Dir, p); err != nil {
			return nil, err
		}
	}
	for i := range c.Data.Sources {
		s := &c.Data.Sources[i]
		if s.Path, err = absolute("data.sources", a.Dir, s.Path); err != nil {
			return nil, err
		}
	}
	if c.Data.Tokenizer != "" {
		if c.Data.Tokenizer, err = absolute("data.tokenizer", a.Dir, c.Data.Tokenizer); err != nil {
			return nil, err
		}
	}
	if c.Model.Init != "" {
		if c.Model.Init, err = absolute("model.init", a.Dir, c.Model.Init); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// absolute returns an absolute path. A relative one begins in dir. It expands ~, which a shell
// does not do within a file. It refuses a URL, with the name of the key in the error.
func absolute(key, dir, path string) (string, error) {
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
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Abs(path)
}
