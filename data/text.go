package data

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
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

// segment is a range of a file's bytes within a stream. A separator follows it, unless
// the stream ends there.
type segment struct {
	file  *file
	first int64 // offset of the first byte in the file
	start int64 // offset of the same byte in the stream
	n     int64 // number of bytes
	// The first and the last byte, set by the scan. They form pairs with the
	// separators.
	head, tail byte
}

// textTokens is a stream of the bytes of files, with a separator between files.
type textTokens struct {
	segments []segment
	n        int64
	buffers  sync.Pool // of *[]byte: ReadTokens is concurrent and does not allocate
}

// add appends n bytes of f, starting at offset first.
func (t *textTokens) add(f *file, first, n int64) {
	if n == 0 {
		return
	}
	start := t.n
	if len(t.segments) > 0 {
		start++ // after the separator
	}
	t.segments = append(t.segments, segment{file: f, first: first, start: start, n: n})
	t.n = start + n
}

// truncate shortens the stream to at most n bytes.
func (t *textTokens) truncate(n int64) {
	t.n = min(t.n, n)
	last := len(t.segments) - 1
	for ; last >= 0 && t.segments[last].start >= t.n; last-- {
	}
	t.segments = t.segments[:last+1]
	if last >= 0 {
		t.segments[last].n = min(t.segments[last].n, t.n-t.segments[last].start)
	}
}

// Len returns the number of bytes.
func (t *textTokens) Len() int64 { return t.n }

// find returns the index of the segment that contains the byte at offset at, or of the
// segment before it if the byte is a separator.
func (t *textTokens) find(at int64) int {
	i, found := slices.BinarySearchFunc(t.segments, at, func(s segment, at int64) int {
		return cmp.Compare(s.start, at)
	})
	if !found {
		i--
	}
	return i
}

// ReadTokens implements Tokens.
func (t *textTokens) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(t.n, at, len(dst)); err != nil {
		return err
	}
	if len(dst) == 0 {
		return nil
	}
	buffer, ok := t.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	defer t.buffers.Put(buffer)
	for i := t.find(at); len(dst) > 0; i++ {
		s := &t.segments[i]
		skip := at - s.start
		if n := int(min(int64(len(dst)), s.n-skip)); n > 0 {
			raw := slices.Grow((*buffer)[:0], n)[:n]
			*buffer = raw
			if err := s.file.readAt(raw, s.first+skip); err != nil {
				return err
			}
			for j, b := range raw {
				dst[j] = int32(b)
			}
			dst, at = dst[n:], at+int64(n)
		}
		if len(dst) > 0 {
			dst[0] = separator
			dst, at = dst[1:], at+1
		}
	}
	return nil
}

// readAt fills b from offset at of a file that is a source.
func (f *file) readAt(b []byte, at int64) error {
	n, err := f.source.ReadAt(b, at)
	if n == len(b) {
		return nil // at the end of the file, ReadAt may return EOF with all bytes
	}
	return readError(f.source.name, err)
}

// readText reads the files once and splits them by their held fields. The validation
// stream is in the hold-out order and truncated to o.ValBytes. readText keeps the streams
// in memory if they have at most maxInMemory bytes.
func readText(files []*file, info Info, o Options, maxInMemory int64) (*Corpus, error) {
	if o.Vocab != 0 && o.Vocab < TextVocab {
		return nil, fmt.Errorf("data: a vocabulary of %d is too small for the bytes of text: model.vocab must be at least %d", o.Vocab, TextVocab)
	}
	var train, val textTokens
	for _, f := range files {
		train.add(f, 0, f.size-f.held)
		info.Files = append(info.Files, File{Path: f.path, Bytes: f.size, HeldOut: f.held})
	}
	for _, f := range byPathHash(files) {
		val.add(f, f.size-f.held, f.held)
	}
	val.truncate(o.ValBytes)

	c := &Corpus{Train: &train, Val: &val}
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
