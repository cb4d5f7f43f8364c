package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
)

// The kinds of corpus that Info.Kind names.
const (
	KindText     = "text"         // the user's files, bytes as tokens
	KindShards   = "shards"       // the user's .bin files of 16-bit ids
	KindGoSource = "go-source"    // the source of a Go installation
	KindEmbedded = "octet-source" // the source that octet carries along
)

// TextVocab is the vocabulary of text: one id for every byte.
const TextVocab = 256

// Options says how to read a corpus.
type Options struct {
	// ValBytes is the largest number of bytes to validate on. Shards count two
	// bytes for each id. Zero means no validation stream.
	ValBytes int64
	// Vocab is the model's vocabulary, which every id must lie below. Zero
	// takes any id: Info.Vocab then says what the corpus needs.
	Vocab int
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

// Corpus is a text or a set of shards, split in two.
type Corpus struct {
	Train Tokens
	Val   Tokens
	Info  Info

	pool      *pool // of the files that are read in windows; nil: all is in memory
	baselines baselines
}

// Close closes the files of the corpus. Text that is held in memory needs no closing, but
// may be closed.
func (c *Corpus) Close() error {
	if c.pool == nil {
		return nil
	}
	return c.pool.close()
}

// InMemory returns how many bytes of the streams are in memory: all of a text of at
// most MaxInMemory bytes, nothing of a larger one or of shards.
func (c *Corpus) InMemory() int64 {
	var n int64
	for _, t := range []Tokens{c.Train, c.Val} {
		if text, ok := t.(Text); ok {
			n += text.Len()
		}
	}
	return n
}

// Baselines returns the losses to beat, in nats per byte: those of the validation stream
// under the bytes, and under the pairs of bytes, that the training stream has; see
// NGramLoss. ok is false for shards and without a validation stream.
func (c *Corpus) Baselines() (bytes, pairs float64, ok bool) {
	return c.baselines.bytes, c.baselines.pairs, c.baselines.known
}

// Text returns both streams as bytes; ok is false for shards, and for text that is too
// large to be held in memory.
func (c *Corpus) Text() (train, val []byte, ok bool) {
	t, ok := c.Train.(Text)
	if !ok {
		return nil, nil, false
	}
	v, ok := c.Val.(Text)
	return t, v, ok
}

// Info says what was read. It is what a run's data.json holds.
type Info struct {
	Kind string `json:"kind"`
	// GoVersion is the version of the installation whose source was read.
	GoVersion string `json:"go_version,omitempty"`
	// SHA256, in hex, covers every file in order: its path, a zero byte, its
	// size as eight bytes little-endian, its content. Paths are relative, so
	// the hash does not depend on where the files lie.
	SHA256 string `json:"sha256"`
	// Vocab is 256 for text; for shards it is the largest id plus one.
	Vocab       int    `json:"vocab"`
	TrainTokens int64  `json:"train_tokens"`
	ValTokens   int64  `json:"val_tokens"`
	Files       []File `json:"files"`
	// LeftOut is how many files of the folders are neither text nor shards.
	LeftOut int `json:"left_out,omitempty"`
}

// File is one file of a corpus.
type File struct {
	// Path is relative to the folder that was named, with slashes; the base
	// name of a file that was named itself.
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// HeldOut is how many bytes at the file's end are kept out of training.
	HeldOut int64 `json:"held_out,omitempty"`
}

// CheckSame compares the corpus of a saved run with the one that was opened to
// go on with it. A difference that changes the batches is an error, which
// prints both hashes and names a file that makes it.
func CheckSame(saved, opened Info) error {
	if saved.SHA256 != opened.SHA256 {
		return fmt.Errorf("data: the corpus has changed: %s; the run was trained on %s, but this is %s; bring the former files back or start a new run",
			firstChange(saved.Files, opened.Files), saved.describe(), opened.describe())
	}
	if saved.TrainTokens != opened.TrainTokens || saved.ValTokens != opened.ValTokens {
		return fmt.Errorf("data: the corpus %.64s is the same but its split is not: the run had %d tokens for training and %d for validation, now there are %d and %d; set data.val_bytes as it was or start a new run",
			saved.SHA256, saved.TrainTokens, saved.ValTokens, opened.TrainTokens, opened.ValTokens)
	}
	return nil
}

// firstChange says within a sentence where two lists of files part.
func firstChange(saved, opened []File) string {
	type sized struct {
		path  string
		bytes int64
	}
	left := make(map[sized]int, len(saved)) // folders that are named apart may have files of one name
	for _, f := range saved {
		left[sized{f.Path, f.Bytes}]++
	}
	var other *File // the first that is not among the saved ones
	for i, f := range opened {
		if left[sized{f.Path, f.Bytes}]--; left[sized{f.Path, f.Bytes}] < 0 && other == nil {
			other = &opened[i]
		}
	}
	for _, f := range saved {
		switch {
		case left[sized{f.Path, f.Bytes}] <= 0:
		case other == nil:
			return fmt.Sprintf("%.100q is gone", f.Path)
		case other.Path == f.Path:
			return fmt.Sprintf("%.100q has %d bytes, not %d", f.Path, other.Bytes, f.Bytes)
		}
	}
	if other != nil {
		return fmt.Sprintf("%.100q is new", other.Path)
	}
	return "what files hold, or their order; their names and sizes are what they were"
}

// describe names a corpus within a sentence.
func (i Info) describe() string {
	source := i.Kind
	if i.GoVersion != "" {
		source += " of " + i.GoVersion
	}
	files := fmt.Sprintf("%d files", len(i.Files))
	if len(i.Files) == 1 {
		files = "1 file"
	}
	return fmt.Sprintf("sha256 %.64s (%.40s, %s)", i.SHA256, source, files) // a data.json may say anything
}

// corpusHash is the running SHA-256 of Info.SHA256.
type corpusHash struct{ hash.Hash }

func newCorpusHash() corpusHash { return corpusHash{sha256.New()} }

// begin starts a file; its content is written next.
func (h corpusHash) begin(path string, size int64) {
	h.Write(append([]byte(path), 0))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
}

func (h corpusHash) String() string { return hex.EncodeToString(h.Sum(nil)) }
