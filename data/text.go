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

// separator stands between two files of a stream. Text does not hold the byte,
// so a model can learn it as the end of a file.
const separator = 0x00

// pathHash places a file in the hold-out order: the first eight bytes of the
// SHA-256 of its path, big-endian. It depends on nothing but the path, so a file
// stays on its side of the split when others come and go.
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

// holdOutBytes holds out a tenth of the bytes, at most limit, as OpenFiles says.
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

// holdOutFiles holds out whole files, about a tenth of them, as OpenGoSource
// says.
func holdOutFiles(files []*file) {
	for _, f := range files {
		if pathHash(f) < math.MaxUint64/10 {
			f.held = f.size
		}
	}
}

// MaxInMemory is the largest text that OpenFiles and OpenGoSource read into memory, in bytes.
// A larger one is read from its files, window by window.
const MaxInMemory = 64 << 20

// segment is a range of a file's bytes within a stream. The byte after it is the
// separator, unless the stream ends there.
type segment struct {
	file  *file
	first int64 // offset of the first byte in the file
	start int64 // offset of the same byte in the stream
	n     int64
	// The first and the last byte, once they were read: with the separators they are
	// pairs too.
	head, tail byte
}

// textTokens is a stream of the bytes of files, end to end with separators between.
type textTokens struct {
	segments []segment
	n        int64
	buffers  sync.Pool // of *[]byte: ReadTokens is concurrent and does not allocate
}

// add appends n bytes of f, from offset first on.
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

// cut shortens the stream to at most n bytes.
func (t *textTokens) cut(n int64) {
	t.n = min(t.n, n)
	last := len(t.segments) - 1
	for ; last >= 0 && t.segments[last].start >= t.n; last-- {
	}
	t.segments = t.segments[:last+1]
	if last >= 0 {
		t.segments[last].n = min(t.segments[last].n, t.n-t.segments[last].start)
	}
}

// Len is the number of bytes.
func (t *textTokens) Len() int64 { return t.n }

// find returns the index of the segment that holds the byte at an offset, or that ends
// before it where the byte is a separator.
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

// readAt fills b from an offset of a file that is open.
func (f *file) readAt(b []byte, at int64) error {
	n, err := f.source.ReadAt(b, at)
	if n == len(b) {
		return nil // ReadAt may say EOF at the very end
	}
	return readError(f.source.name, err)
}

// readText reads the files once and splits them as their held fields say. The
// validation stream follows the hold-out order and is cut to o.ValBytes. Text of at
// most maxInMemory bytes is read into memory.
func readText(files []*file, info Info, o Options, maxInMemory int64) (*Corpus, error) {
	if o.Vocab != 0 && o.Vocab < TextVocab {
		return nil, fmt.Errorf("data: a vocabulary of %d cannot hold the bytes of text: model.vocab must be %d at least", o.Vocab, TextVocab)
	}
	var train, val textTokens
	for _, f := range files {
		train.add(f, 0, f.size-f.held)
		info.Files = append(info.Files, File{Path: f.path, Bytes: f.size, HeldOut: f.held})
	}
	for _, f := range byPathHash(files) {
		val.add(f, f.size-f.held, f.held)
	}
	val.cut(o.ValBytes)

	c := &Corpus{Train: &train, Val: &val}
	scan := textScan{hash: newCorpusHash(), train: newScanned(&train), val: newScanned(&val), buffer: make([]byte, 0, scanChunk)}
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
