package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"octet/checkpoint"
	"octet/data"
	"octet/tokenizer"
)

// shapeOfInit sets the shape of the model to that of the initial weights, if there are any and no
// preset is given.
func (l *Loaded) shapeOfInit(file, command *source, dir string) error {
	init := command.text("model.init", file.text("model.init", ""))
	for _, s := range []*source{file, command} {
		if _, given := s.find("model.preset"); given {
			return nil
		}
	}
	if init == "" {
		return nil
	}
	path, err := absolute("model.init", dir, init)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(path, checkpoint.ConfigFile)); errors.Is(err, fs.ErrNotExist) {
		return nil // opening the weights returns the error
	}
	shape, err := checkpoint.ReadConfig(path)
	if err != nil {
		return fmt.Errorf("model.init: %w", err)
	}
	l.Model.SetShape(shape)
	return nil
}

// vocabOfData sets model.vocab to the size of the data's tokenizer, unless the file or the command
// line gives it. Initial weights decide the sizes themselves.
func (l *Loaded) vocabOfData(dir string) error {
	const key = "model.vocab"
	if l.Model.Init != "" || slices.Contains(l.FromFile, key) || slices.Contains(l.FromCommand, key) {
		return nil
	}
	paths := slices.Clone(l.Data.Paths)
	for _, s := range l.Data.Sources {
		paths = append(paths, s.Path)
	}
	for _, p := range paths {
		path, err := absolute("data.paths", dir, p)
		if err != nil {
			return err
		}
		if data.IsPrepared(path) {
			prepared, err := data.ReadDescription(path)
			l.Model.Vocab = prepared.Tokenizer.Vocab
			return err
		}
	}
	if l.Data.Tokenizer == "" || len(paths) == 0 {
		return nil
	}
	path, err := absolute("data.tokenizer", dir, l.Data.Tokenizer)
	if err != nil {
		return err
	}
	t, err := tokenizer.Open(path)
	if err != nil {
		return fmt.Errorf("data.tokenizer: %w", err)
	}
	l.Model.Vocab = t.Vocab()
	return nil
}
