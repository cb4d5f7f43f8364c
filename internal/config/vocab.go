package config

import (
	"fmt"
	"slices"

	"octet/data"
	"octet/tokenizer"
)

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
