package data

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// scanChunk is the number of bytes read at a time.
const scanChunk = 1 << 20

// textScan reads every file of a text once, in the order of the corpus. It computes the
// hash, rejects zero bytes, counts the n-grams of the baselines, and copies the streams
// into memory if they are small enough.
type textScan struct {
	hash       corpusHash
	train, val streamScan
	buffer     []byte
}

// streamScan is the state of one stream during a textScan.
type streamScan struct {
	stream   *stream
	of       map[tokenFile]*segment
	inMemory Text // nil if the stream is not in memory
	pairs    pairCounts
}

func newStreamScan(t *stream) streamScan {
	s := streamScan{stream: t, of: make(map[tokenFile]*segment, len(t.segments)), pairs: newPairCounts()}
	for i := range t.segments {
		s.of[t.segments[i].file] = &t.segments[i]
	}
	return s
}

// file scans a whole file. If p is nil, it closes the file afterwards.
func (t *textScan) file(f *file, p *pool) error {
	in, err := f.open(p)
	if err != nil {
		return err
	}
	defer in.Close()
	t.hash.begin(f.path, f.size)
	for at := int64(0); at < f.size; at += int64(len(t.buffer)) {
		t.buffer = t.buffer[:min(scanChunk, f.size-at)]
		if _, err := io.ReadFull(in, t.buffer); err != nil {
			return scanError(f, err)
		}
		if i := bytes.IndexByte(t.buffer, separator); i >= 0 {
			return fmt.Errorf("data: %q is not text: zero byte at offset %d; leave out a binary file, convert UTF-16 to UTF-8", f, at+int64(i))
		}
		t.hash.Write(t.buffer)
		t.train.add(f, t.buffer, at)
		t.val.add(f, t.buffer, at)
	}
	switch _, err := io.ReadFull(in, make([]byte, 1)); {
	case err == nil:
		return changedWhileRead(f.String())
	case !errors.Is(err, io.EOF):
		return scanError(f, err)
	}
	return nil
}

// open opens a file for the scan. If p is not nil, the file becomes a source of p, whose
// reads check that it is unchanged.
func (f *file) open(p *pool) (in io.ReadCloser, err error) {
	if p == nil {
		if in, err = f.fsys.Open(f.path); err != nil {
			return nil, unreadable(f.String(), err)
		}
		return in, nil
	}
	if f.source, err = p.add(f); err != nil {
		return nil, err
	}
	return io.NopCloser(io.NewSectionReader(f.source, 0, f.size+1)), nil
}

func scanError(f *file, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return changedWhileRead(f.String())
	}
	return readError(f.String(), err)
}

func changedWhileRead(name string) error {
	return fmt.Errorf("data: %q changed while it was read: start again when no program writes to it", name)
}

// add adds the bytes of the stream that are in part, which starts at offset at of f.
func (s *streamScan) add(f *file, part []byte, at int64) {
	g := s.of[f]
	if g == nil {
		return
	}
	begin, end := max(at, g.first), min(at+int64(len(part)), g.first+g.n)
	if begin >= end {
		return
	}
	part = part[begin-at : end-at]
	if s.inMemory != nil {
		copy(s.inMemory[g.start+begin-g.first:], part)
	}
	if begin == g.first {
		g.head = part[0]
	} else {
		s.pairs.add(g.tail, part[0])
	}
	s.pairs.addAll(part)
	g.tail = part[len(part)-1]
}

// finish counts the pairs that include a separator.
func (s *streamScan) finish() {
	for i, g := range s.stream.segments {
		if g.start+g.n < s.stream.n {
			s.pairs.add(g.tail, separator)
		}
		if i+1 < len(s.stream.segments) {
			s.pairs.add(separator, s.stream.segments[i+1].head)
		}
	}
}
