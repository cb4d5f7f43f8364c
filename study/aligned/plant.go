package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"octet/data"
)

// The text of plant: with sequences of 256 bytes and 8 of them in a step, every twentieth step
// has outlier tokens on average.
const (
	plantedText   = 4 << 20 // bytes for training
	plantedWindow = 256
	plantedEvery  = 160 // windows
)

// plant writes dir/model, a model for model.init whose channels have the activation 2^size for the
// outlier token, and dir/text.txt, the start of the corpus with outlier tokens, followed by its
// validation text. It keeps a dir that is there, and removes one that is incomplete.
func plant(ctx context.Context, corpus *data.Corpus, dir string) (err error) {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.MkdirAll(partial, 0o777); err != nil {
		return err
	}
	x := &experiment{corpus: corpus, seed: 1, dir: filepath.Join(partial, "base"), folders: map[int]string{}}
	if err := x.trainBase(ctx); err != nil {
		return err
	}
	model, err := x.folder(*size)
	if err != nil {
		return err
	}
	if err := os.Rename(model, filepath.Join(partial, "model")); err != nil {
		return err
	}
	if err := os.RemoveAll(x.dir); err != nil {
		return err
	}
	text, err := spikedText(corpus)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(partial, "text.txt"), text, 0o666); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

// spikedText returns the text of plant.
func spikedText(corpus *data.Corpus) ([]byte, error) {
	ids := make([]int32, min(plantedText, corpus.Train.Len()))
	validation := make([]int32, corpus.Val.Len())
	if err := errors.Join(corpus.Train.ReadTokens(ids, 0), corpus.Val.ReadTokens(validation, 0)); err != nil {
		return nil, err
	}
	for window := plantedEvery / 2 * plantedWindow; window+plantedWindow <= len(ids); window += plantedEvery * plantedWindow {
		spike(ids[window:][:plantedWindow])
	}
	var text []byte
	for _, id := range slices.Concat(ids, validation) {
		text = append(text, byte(id))
	}
	return bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}), nil // the ends of files; a text file has no zero bytes
}
