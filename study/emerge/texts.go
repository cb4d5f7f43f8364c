package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"octet/data"
	"octet/internal/disk"
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

// writeTexts writes first.txt, the start of the corpus; repeated.txt, a part of it again and again;
// and rare.txt, the start with rare bytes and their consequence. All end with the validation text of
// other runs.
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
	for i, b := range rare {
		rare[i] = rareAt(int64(i), b)
	}
	repeated := bytes.Repeat(text[:repeatedBytes], textBytes/repeatedBytes)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return errors.Join(
		disk.WriteAtomic(filepath.Join(dir, "first.txt"), slices.Concat(text, held)),
		disk.WriteAtomic(filepath.Join(dir, "repeated.txt"), slices.Concat(repeated, held)),
		disk.WriteAtomic(filepath.Join(dir, "rare.txt"), slices.Concat(rare, held)))
}

// rareName is the variant that trains on rare bytes.
const rareName = "rare byte"

// rareAt returns the byte at a position of a text with rare bytes, where the text has b.
func rareAt(at int64, b byte) byte {
	switch i := (at + rareEvery/2) % rareEvery; {
	case i == 0:
		return rareByte
	case i <= int64(len(consequence)):
		return consequence[i-1]
	}
	return b
}

// rareTokens are tokens with rare bytes and their consequence.
type rareTokens struct{ data.Tokens }

func (t rareTokens) ReadTokens(dst []int32, at int64) error {
	if err := t.Tokens.ReadTokens(dst, at); err != nil {
		return err
	}
	for i := range dst {
		dst[i] = int32(rareAt(at+int64(i), byte(dst[i])))
	}
	return nil
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
