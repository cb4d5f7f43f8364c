package data

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"octet/tokenizer"
)

// separator is the byte between two files of a stream. Text does not contain it, so
// a model can learn it as the end of a file.
const separator = 0x00

// pathHash returns the key of a file in the hold-out order: the first eight bytes of
// the SHA-256 of its path, big-endian. It depends on the path only, so adding or
// removing files does not change a file's place in the order.
func pathHash(f *file) uint64 {
	sum := sha256.Sum256([]byte(f.path))
	return binary.BigEndian.Uint64(sum[:])
}

// byPathHash returns the files in hold-out order.
func byPathHash(files []*file) []*file {
	return slices.SortedStableFunc(slices.Values(files), func(a, b *file) int {
		return cmp.Compare(pathHash(a), pathHash(b))
	})
}

// holdOutBytes sets the held fields of files: a tenth of the bytes, at most limit, as
// OpenFiles documents.
func holdOutBytes(files []*file, limit int64) {
	var total int64
	for _, f := range files {
		total += f.size
	}
	left := min(total/10, limit)
	for _, f := range byPathHash(files) {
		f.held = min(f.size, left)
		left -= f.held
	}
}

// holdOutFiles sets the held fields of about a tenth of the files to their size, as
// OpenGoSource documents.
func holdOutFiles(files []*file) {
	for _, f := range files {
		if pathHash(f) < math.MaxUint64/10 {
			f.held = f.size
		}
	}
}

// MaxInMemory is the size in bytes of the largest text that OpenFiles and OpenGoSource
// keep in memory. A larger text is read from its files, window by window.
const MaxInMemory = 64 << 20

// read implements tokenFile.
func (f *file) read(dst []int32, buffer *[]byte, first int64) error {
	raw := sized(buffer, len(dst))
	if err := readFull(f.source, f.source.name, raw, first); err != nil {
		return err
	}
	for i, b := range raw {
		dst[i] = int32(b)
	}
	return nil
}

// readText reads the files once and splits them by their held fields. The validation
// stream is in the hold-out order and truncated to o.ValBytes. readText keeps the streams
// in memory if they have at most maxInMemory bytes.
func readText(files []*file, info Info, o Options, maxInMemory int64) (*Corpus, error) {
	if o.Vocab != 0 && o.Vocab < TextVocab {
		return nil, fmt.Errorf("data: a vocabulary of %d is too small for the bytes of text: model.vocab must be at least %d", o.Vocab, TextVocab)
	}
	train, val := stream{separated: true}, stream{separated: true}
	for _, f := range files {
		train.add(f, 0, f.size-f.held)
		info.Files = append(info.Files, File{Path: f.path, Bytes: f.size, HeldOut: f.held})
	}
	for _, f := range byPathHash(files) {
		val.add(f, f.size-f.held, f.held)
	}
	val.truncate(o.ValBytes)

	c := &Corpus{Train: &train, Val: &val, Tokenizer: tokenizer.OfBytes(), EndOfText: separator}
	scan := textScan{hash: newCorpusHash(), train: newStreamScan(&train), val: newStreamScan(&val), buffer: make([]byte, 0, scanChunk)}
	if train.n+val.n <= maxInMemory {
		scan.train.inMemory, scan.val.inMemory = make(Text, train.n), make(Text, val.n)
		c.Train, c.Val = scan.train.inMemory, scan.val.inMemory
	} else {
		c.pool = newPool()
	}
	for _, f := range files {
		if err := scan.file(f, c.pool); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	info.SHA256 = scan.hash.String()
	info.Vocab = TextVocab
	info.TrainTokens, info.ValTokens = train.n, val.n
	c.Info = info
	scan.train.finish()
	scan.val.finish()
	c.baselines = baselinesOf(&scan.train, &scan.val)
	return c, nil
}
