package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"octet/internal/disk"
)

// New does what Load does, for a new run. It makes paths absolute, so that the run's
// config.toml means the same from any folder; given paths are relative to the current one.
func New(a Args) (*Loaded, error) {
	c, err := Load(a)
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
