package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"

	"octet/tokenizer"
)

// The kinds of corpus that Info.Kind names.
const (
	KindText     = "text"         // the user's text files, with bytes as tokens
	KindShards   = "shards"       // the user's .bin files of ids
	KindPrepared = "prepared"     // folders that octet data prepare wrote
	KindSources  = "sources"      // several of these, with weights
	KindGoSource = "go-source"    // the source of a Go installation
	KindEmbedded = "octet-source" // the source embedded in octet
)

// TextVocab is the vocabulary size of text: one id for every byte.
const TextVocab = 256

// Options are the parameters of opening a corpus.
type Options struct {
	// ValBytes is the maximum number of bytes in the validation stream. An id of
	// a shard counts as two bytes. Zero means no validation stream.
	ValBytes int64
	// Vocab is the model's vocabulary size, which every id must be below. Zero
	// allows any id; Info.Vocab then is the size that the corpus needs.
	Vocab int
	// Tokenizer is the file or folder of the tokenizer of shards; empty: not known. Text has
	// bytes as tokens, and prepared folders have their own.
	Tokenizer string
	// Answers sets the targets of prompts to IgnoreTarget, so that they do not count in the loss. It needs
	// prepared folders with masks.
	Answers bool
}

func (o Options) check() error {
	if o.ValBytes < 0 {
		return fmt.Errorf("data: data.val_bytes is %d: a number of bytes cannot be negative", o.ValBytes)
	}
	if o.Vocab < 0 {
		return fmt.Errorf("data: model.vocab is %d: a number of ids cannot be negative", o.Vocab)
	}
	return nil
}

// Corpus is a text or a set of shards, split into training and validation.
type Corpus struct {
	Train Tokens
	Val   Tokens
	Info  Info

	// Documents is the kind of the documents of prepared folders, such as KindPreference; empty: the
	// corpus has none.
	Documents string
	// Sources, if there are any, give the rows of a Loader instead of Train, which has their tokens
	// one after another.
	Sources []Source
	// Tokenizer encodes text to ids; nil: it is not known, as with shards without a tokenizer.
	Tokenizer *tokenizer.Bundle
	// EndOfText is the id that ends each document; -1: it is not known.
	EndOfText int32
	// EndInside says that EndOfText is inside documents, too, so that it does not tell them apart.
	EndInside bool

	parts     []*Corpus // of Sources
	pool      *pool     // files that are read in windows; nil if all text is in memory
	baselines baselines
}

// Source is one of several sources of training data.
type Source struct {
	Path   string
	Weight float64 // share of the rows, relative to those of the others
	Train  Tokens
}

// Close closes the files of the corpus. It does nothing for text in memory.
func (c *Corpus) Close() error {
	var errs []error
	for _, p := range c.parts {
		errs = append(errs, p.Close())
	}
	if c.pool != nil {
		errs = append(errs, c.pool.close())
	}
	return errors.Join(errs...)
}

// InMemory returns the number of bytes of the streams that are in memory: all of a text
// of at most MaxInMemory bytes, 0 for a larger text and for shards.
func (c *Corpus) InMemory() int64 {
	var n int64
	for _, t := range []Tokens{c.Train, c.Val} {
		if text, ok := t.(Text); ok {
			n += text.Len()
		}
	}
	return n
}

// Baselines returns the losses that a model has to beat, in nats per byte: NGramLoss of
// the validation stream for order 1 (bytes) and order 2 (pairs), counted in the training
// stream. ok is false for shards and without a validation stream.
func (c *Corpus) Baselines() (bytes, pairs float64, ok bool) {
	return c.baselines.bytes, c.baselines.pairs, c.baselines.known
}

// Text returns both streams as bytes; ok is false for shards, and for text that is not
// in memory.
func (c *Corpus) Text() (train, val []byte, ok bool) {
	t, ok := c.Train.(Text)
	if !ok {
		return nil, nil, false
	}
	v, ok := c.Val.(Text)
	return t, v, ok
}

// Info describes a corpus. A run saves it as data.json.
type Info struct {
	Kind string `json:"kind"`
	// GoVersion is the version of the Go installation for KindGoSource.
	GoVersion string `json:"go_version,omitempty"`
	// SHA256, in hex, covers every file in order: its path, a zero byte, its
	// size as eight little-endian bytes, its content. Paths are relative, so
	// the hash does not depend on the location of the files.
	SHA256 string `json:"sha256"`
	// Vocab is 256 for text and the tokenizer's size otherwise; for shards without a tokenizer it is
	// the largest id plus one.
	Vocab       int    `json:"vocab"`
	Tokenizer   string `json:"tokenizer,omitempty"`   // SHA-256 of the tokenizer file
	EndOfText   int32  `json:"end_of_text,omitempty"` // of that tokenizer, as in Corpus
	TrainTokens int64  `json:"train_tokens"`
	ValTokens   int64  `json:"val_tokens"`
	Files       []File `json:"files"`
	// Weights are those of the sources, in order.
	Weights []float64 `json:"weights,omitempty"`
	// LeftOut is the number of files in the folders that are neither text nor shards.
	LeftOut int `json:"left_out,omitempty"`
}

// File is one file of a corpus.
type File struct {
	// Path is slash-separated and relative to the folder passed to OpenFiles;
	// for a file passed to OpenFiles, its base name.
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// HeldOut is the number of bytes at the file's end that are not for training.
	HeldOut int64 `json:"held_out,omitempty"`
}

// CheckSame compares the corpus of a saved run with the one opened to resume it. A
// difference that changes the batches is an error with both hashes and the name
// of a file that differs.
func CheckSame(saved, opened Info) error {
	if saved.Tokenizer != "" && (saved.Tokenizer != opened.Tokenizer || saved.EndOfText != opened.EndOfText) {
		return fmt.Errorf("data: the tokenizer has changed: the run was trained with SHA-256 %.64s and end of text %d, but this is %.64s and %d; restore the original files or start a new run",
			saved.Tokenizer, saved.EndOfText, opened.Tokenizer, opened.EndOfText)
	}
	if !slices.Equal(saved.Weights, opened.Weights) {
		return fmt.Errorf("data: the weights of data.sources have changed from %v to %v: restore them or start a new run", saved.Weights, opened.Weights)
	}
	if saved.SHA256 != opened.SHA256 {
		return fmt.Errorf("data: the corpus has changed: %s; the run was trained on %s, but this is %s; restore the original files or start a new run",
			firstChange(saved.Files, opened.Files), saved.describe(), opened.describe())
	}
	if saved.TrainTokens != opened.TrainTokens || saved.ValTokens != opened.ValTokens {
		return fmt.Errorf("data: the corpus %.64s is unchanged, but its split differs: the run had %d tokens for training and %d for validation, now there are %d and %d; restore data.val_bytes or start a new run",
			saved.SHA256, saved.TrainTokens, saved.ValTokens, opened.TrainTokens, opened.ValTokens)
	}
	return nil
}

// firstChange describes the first difference of two lists of files, as part of a
// sentence.
func firstChange(saved, opened []File) string {
	type sized struct {
		path  string
		bytes int64
	}
	left := make(map[sized]int, len(saved)) // counts, because two folders may have files of the same name
	for _, f := range saved {
		left[sized{f.Path, f.Bytes}]++
	}
	var other *File // the first opened file that is not in saved
	for i, f := range opened {
		if left[sized{f.Path, f.Bytes}]--; left[sized{f.Path, f.Bytes}] < 0 && other == nil {
			other = &opened[i]
		}
	}
	for _, f := range saved {
		switch {
		case left[sized{f.Path, f.Bytes}] <= 0:
		case other == nil:
			return fmt.Sprintf("%.100q is missing", f.Path)
		case other.Path == f.Path:
			return fmt.Sprintf("%.100q has %d bytes, not %d", f.Path, other.Bytes, f.Bytes)
		}
	}
	if other != nil {
		return fmt.Sprintf("%.100q is new", other.Path)
	}
	return "the content or the order of its files, with unchanged names and sizes"
}

// describe returns a description of the corpus for use in a sentence.
func (i Info) describe() string {
	source := i.Kind
	if i.GoVersion != "" {
		source += " of " + i.GoVersion
	}
	files := fmt.Sprintf("%d files", len(i.Files))
	if len(i.Files) == 1 {
		files = "1 file"
	}
	return fmt.Sprintf("sha256 %.64s (%.40s, %s)", i.SHA256, source, files) // limited: data.json is untrusted
}

// corpusHash computes Info.SHA256.
type corpusHash struct{ hash.Hash }

func newCorpusHash() corpusHash { return corpusHash{sha256.New()} }

// begin starts a file. Write its content next.
func (h corpusHash) begin(path string, size int64) {
	h.Write(append([]byte(path), 0))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
}

func (h corpusHash) String() string { return hex.EncodeToString(h.Sum(nil)) }
