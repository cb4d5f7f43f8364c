package data

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// scanChunk is how many bytes of a file are read at a time.
const scanChunk = 1 << 20

// textScan reads every file of a text once, in the order of the corpus: for its hash,
// its zero bytes and the counts of the n-gram baselines, and into memory where its streams
// are in memory.
type textScan struct {
	hash       corpusHash
	train, val scanned
	buffer     []byte
}

// scanned is a stream while its files are read.
type scanned struct {
	stream   *textTokens
	of       map[*file]*segment
	inMemory Text // nil: it stays in its files
	pairs    pairCounts
}

func newScanned(t *textTokens) scanned {
	s := scanned{stream: t, of: make(map[*file]*segment, len(t.segments)), pairs: newPairCounts()}
	for i := range t.segments {
		s.of[t.segments[i].file] = &t.segments[i]
	}
	return s
}

// file reads a whole file. Without a pool it is closed at the end.
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
			return fmt.Errorf("data: %q holds a zero byte at offset %d: text has none, so leave a binary file out and convert UTF-16 to UTF-8", f, at+int64(i))
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

// open opens a file for its one pass. With a pool it stays there, and each read checks
// that the file is unchanged.
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
	return fmt.Errorf("data: %q changed while it was read: start again when nothing writes to it", name)
}

// add takes what a part of a file, from an offset on, has of the stream.
func (s *scanned) add(f *file, part []byte, at int64) {
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

// finish counts the pairs with separators in them.
func (s *scanned) finish() {
	for i, g := range s.stream.segments {
		if g.start+g.n < s.stream.n {
			s.pairs.add(g.tail, separator)
		}
		if i+1 < len(s.stream.segments) {
			s.pairs.add(separator, s.stream.segments[i+1].head)
		}
	}
}
