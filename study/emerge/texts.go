package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"octet/data"
	"octet/study/internal/start"
)

const (
	textBytes     = 1 << 21  // of each text for training: more than a run reads
	repeatedBytes = 64 << 10 // of the repeated text, without repetitions
	rareEvery     = 4 << 10  // bytes between two rare bytes
	rareByte      = 1        // no source file contains it
)

// consequence follows every rare byte.
var consequence = []byte("~~~~~~~~")

// writeTexts writes repeated.txt, the start of the corpus again and again, and rare.txt, its
// start with rare bytes and their consequence. Both end with the validation text of other runs.
func writeTexts(ctx context.Context, dir string) error {
	corpus, _, err := start.Corpus(ctx, validationBytes)
	if err != nil {
		return err
	}
	text, err := textOf(corpus.Train, textBytes)
	if err != nil {
		return err
	}
	held, err := textOf(corpus.Val, int(corpus.Val.Len()))
	if err != nil {
		return err
	}
	rare := bytes.Clone(text)
	for at := rareEvery / 2; at+len(consequence) < len(rare); at += rareEvery {
		rare[at] = rareByte
		copy(rare[at+1:], consequence)
	}
	repeated := bytes.Repeat(text[:repeatedBytes], textBytes/repeatedBytes)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "repeated.txt"), append(repeated, held...), 0o666),
		os.WriteFile(filepath.Join(dir, "rare.txt"), append(rare, held...), 0o666))
}

// textOf returns the first n bytes of a stream. The zero byte that ends a file becomes a new line,
// because a text file has none.
func textOf(tokens data.Tokens, n int) ([]byte, error) {
	ids := make([]int32, n)
	if err := tokens.ReadTokens(ids, 0); err != nil {
		return nil, err
	}
	text := make([]byte, n)
	for i, id := range ids {
		text[i] = byte(id)
	}
	return bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}), nil
}
