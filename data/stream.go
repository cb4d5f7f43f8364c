package data

import (
	"cmp"
	"io"
	"slices"
	"sync"
)

// stream is a stream of the tokens of files: bytes of text, or ids of shards. It
// implements Tokens.
type stream struct {
	segments  []segment
	separated bool // a separator follows each segment but the last
	n         int64
	buffers   sync.Pool // of *[]byte: ReadTokens is concurrent and does not allocate
}

// segment is a range of a file's tokens within a stream.
type segment struct {
	file  tokenFile
	first int64 // index of the first token in the file
	start int64 // index of the same token in the stream
	n     int64 // number of tokens
	// The first and the last byte of text, set by the scan. They form pairs with the
	// separators.
	head, tail byte
}

// tokenFile is a file of tokens.
type tokenFile interface {
	// read fills dst with the tokens from index first on. It reads their bytes into buffer.
	read(dst []int32, buffer *[]byte, first int64) error
}

// add appends n tokens of f, starting at index first.
func (t *stream) add(f tokenFile, first, n int64) {
	if n <= 0 {
		return
	}
	start := t.n
	if t.separated && len(t.segments) > 0 {
		start++
	}
	t.segments = append(t.segments, segment{file: f, first: first, start: start, n: n})
	t.n = start + n
}

// truncate shortens the stream to at most n tokens.
func (t *stream) truncate(n int64) {
	t.n = min(t.n, n)
	last := len(t.segments) - 1
	for ; last >= 0 && t.segments[last].start >= t.n; last-- {
	}
	t.segments = t.segments[:last+1]
	if last >= 0 {
		t.segments[last].n = min(t.segments[last].n, t.n-t.segments[last].start)
	}
}

// Len returns the number of tokens.
func (t *stream) Len() int64 { return t.n }

// find returns the index of the segment that contains the token at index at, or of the
// segment before it if the token is a separator.
func (t *stream) find(at int64) int {
	i, found := slices.BinarySearchFunc(t.segments, at, func(s segment, at int64) int {
		return cmp.Compare(s.start, at)
	})
	if !found {
		i--
	}
	return i
}

// ReadTokens implements Tokens.
func (t *stream) ReadTokens(dst []int32, at int64) error {
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
		if n := min(int64(len(dst)), s.n-skip); n > 0 {
			if err := s.file.read(dst[:n], buffer, s.first+skip); err != nil {
				return err
			}
			dst, at = dst[n:], at+n
		}
		if t.separated && len(dst) > 0 {
			dst[0] = separator
			dst, at = dst[1:], at+1
		}
	}
	return nil
}

// sized returns n bytes of a buffer, which it grows if necessary.
func sized(buffer *[]byte, n int) []byte {
	*buffer = slices.Grow((*buffer)[:0], n)[:n]
	return *buffer
}

// readFull fills buf from offset at of a file. name is for the error.
func readFull(r io.ReaderAt, name string, buf []byte, at int64) error {
	n, err := r.ReadAt(buf, at)
	if n == len(buf) {
		return nil // at the end of the file, ReadAt may return EOF with all bytes
	}
	return readError(name, err)
}
