package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"octet/internal/disk"
	"octet/tokenizer"
)

// PreparedFile describes a folder of tokens that octet data prepare wrote. It is written last, so that
// a folder with it is complete.
const PreparedFile = "prepared.json"

// UnfinishedFile is in a folder of tokens that octet data prepare has not finished.
const UnfinishedFile = ".prepare-arguments.json"

// preparedFormat is the only format so far.
const preparedFormat = 1

// Kinds of documents in a folder of tokens.
const (
	KindDocuments  = "text"       // all tokens count in the loss
	KindCompletion = "completion" // a prompt, whose tokens do not count, and a completion
	KindMessages   = "messages"   // a conversation, in which the assistant's tokens count
	KindPreference = "preference" // pairs: a prompt with the chosen completion, the same with the rejected one
)

// Prepared is the content of PreparedFile.
type Prepared struct {
	Format    int               `json:"format"`
	Octet     string            `json:"octet"` // version that wrote it
	Kind      string            `json:"kind"`
	Tokenizer PreparedTokenizer `json:"tokenizer"`
	// Val is the share of the documents that are held out, by the hash of their text.
	Val     float64          `json:"val"`
	Sources []PreparedSource `json:"sources"`
	Shards  []PreparedShard  `json:"shards"` // of each part in order
}

// PreparedTokenizer describes the tokenizer, whose files are in the folder.
type PreparedTokenizer struct {
	SHA256    string `json:"sha256"` // of the tokenizer file, see tokenizer.Bundle
	Vocab     int    `json:"vocab"`
	EndOfText int32  `json:"end_of_text"` // the last id of each document
	// EndInside says that a document has EndOfText before its last id, too, so that it does not show
	// where documents end.
	EndInside bool `json:"end_inside,omitempty"`
}

// PreparedSource is a file that was read.
type PreparedSource struct {
	Path      string `json:"path"`
	Bytes     int64  `json:"bytes"` // of the file
	Documents int64  `json:"documents"`
}

// PreparedShard describes the files of a shard:
//
//	NAME.bin    ids, in llm.c's format: 16-bit ids up to a vocabulary of 65536, else 32-bit
//	NAME.idx    the end of each document as a uint64, little-endian: the number of ids up to it
//	NAME.mask   of kinds with prompts: a bit for each id, the lowest of a byte first, rounded up to
//	            bytes; 1: the id counts in the loss
//
// A document is in one shard.
type PreparedShard struct {
	Name      string `json:"name"` // train-000000, val-000000 and so on
	Tokens    int64  `json:"tokens"`
	Documents int64  `json:"documents"`
	Bytes     int64  `json:"bytes"`  // of the documents' text
	SHA256    string `json:"sha256"` // of NAME.bin, NAME.idx and NAME.mask, one after another
}

// Parts of a folder of tokens, with which the names of shards begin.
const (
	TrainPart = "train"
	ValPart   = "val"
)

// Part returns the part of a shard.
func (s PreparedShard) Part() string {
	part, _, _ := strings.Cut(s.Name, "-")
	return part
}

// IsPrepared reports whether path is a folder of tokens.
func IsPrepared(path string) bool {
	_, err := os.Lstat(filepath.Join(path, PreparedFile))
	return err == nil
}

// maxPrepared bounds the size of PreparedFile in bytes: 300 bytes for each of a million shards.
const maxPrepared = 1 << 28

// ReadDescription reads PreparedFile of a folder.
func ReadDescription(dir string) (p Prepared, err error) {
	name := filepath.Join(dir, PreparedFile)
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, fmt.Errorf("data: %s has no %s: octet data prepare did not finish, or wrote another folder", dir, PreparedFile)
	case err != nil:
		return p, unreadable(name, err)
	case !info.Mode().IsRegular() || info.Size() > maxPrepared:
		return p, fmt.Errorf("data: %s is not a file that octet data prepare wrote", name)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return p, unreadable(name, err)
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("data: %s: %w", name, err)
	}
	if err := p.check(); err != nil {
		return p, fmt.Errorf("data: %s: %w", name, err)
	}
	return p, nil
}

// ReadPrepared reads PreparedFile of a folder and the tokenizer in it.
func ReadPrepared(dir string) (p Prepared, t *tokenizer.Bundle, err error) {
	if p, err = ReadDescription(dir); err != nil {
		return p, nil, err
	}
	if t, err = tokenizer.OpenBundle(dir); err != nil {
		return p, nil, fmt.Errorf("data: %w", err)
	}
	if sum := t.SHA256(); sum != p.Tokenizer.SHA256 || t.Vocab() != p.Tokenizer.Vocab {
		return p, nil, fmt.Errorf("data: the tokenizer in %s is not the one of its tokens (SHA-256 %s, but %s says %.80s): put it back, or prepare the data again", dir, sum, PreparedFile, p.Tokenizer.SHA256)
	}
	t.EndOfText = p.Tokenizer.EndOfText
	return p, t, nil
}

func (p *Prepared) check() error {
	switch p.Kind {
	case KindDocuments, KindCompletion, KindMessages, KindPreference:
	default:
		return fmt.Errorf("kind %.80q is unknown", p.Kind)
	}
	switch {
	case p.Format != preparedFormat:
		return fmt.Errorf("format %d: this octet reads format %d", p.Format, preparedFormat)
	case p.Tokenizer.Vocab < 1 || p.Tokenizer.EndOfText < 0 || int(p.Tokenizer.EndOfText) >= p.Tokenizer.Vocab:
		return fmt.Errorf("the end of text has the id %d in a vocabulary of %d", p.Tokenizer.EndOfText, p.Tokenizer.Vocab)
	case len(p.Shards) == 0:
		return errors.New("it has no shards")
	}
	counts := map[string]int{}
	for _, s := range p.Shards {
		part := s.Part()
		if part != TrainPart && part != ValPart || s.Name != ShardName(part, counts[part]) {
			return fmt.Errorf("shard %.80q: expected %s or %s", s.Name, ShardName(TrainPart, counts[TrainPart]), ShardName(ValPart, counts[ValPart]))
		}
		if counts[part]++; s.Tokens < 1 || s.Documents < 1 || s.Documents > s.Tokens || s.Bytes < 0 {
			return fmt.Errorf("shard %s has %d tokens, %d documents and %d bytes", s.Name, s.Tokens, s.Documents, s.Bytes)
		}
	}
	return nil
}

// ShardName returns the name of a shard of a part.
func ShardName(part string, i int) string { return fmt.Sprintf("%s-%06d", part, i) }

// WritePrepared writes PreparedFile to a folder.
func WritePrepared(dir string, p Prepared) error {
	p.Format = preparedFormat
	if err := p.check(); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	raw, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteAtomic(filepath.Join(dir, PreparedFile), append(raw, '\n'))
}
