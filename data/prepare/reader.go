package prepare

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
)

// position is a place in the sources, between two items.
type position struct {
	Source int   `json:"source"`
	Number int64 `json:"number"` // lines or rows before it
	Offset int64 `json:"offset"` // bytes of decompressed lines before it
}

// item is a line, a row, a file or a part of one, and what became of it.
type item struct {
	next    position // the place after it
	first   int      // of its spans: a line, a text, or the values of a row
	spans   int
	json    bool
	part    bool // of a long text
	leftOut bool // a file that is not text

	begins, ends bool   // of a part: the text begins or ends with it
	hash         uint64 // of the text
	size         int64  // bytes of the text

	empty     bool // it has no text
	documents int  // documents of batch.encoded
}

// batch is a number of items on their way from the reader to the writer.
type batch struct {
	items []item
	bytes []byte // of the items
	ends  []int  // of spans, each of which begins where the one before ends
	done  int64  // bytes of the files that this call has read
	all   int64  // bytes that it reads
	size  int64  // counted as in flight
	err   error  // at the item after the last one

	encoded []encoded
	ids     []byte
	mask    []byte // a byte for each id, 1: it counts in the loss
	ready   chan struct{}
}

func (b *batch) span(i int) []byte {
	begin := 0
	if i > 0 {
		begin = b.ends[i-1]
	}
	return b.bytes[begin:b.ends[i]:b.ends[i]]
}

// endSpan ends a span at the bytes so far.
func (b *batch) endSpan() { b.ends = append(b.ends, len(b.bytes)) }

// add adds an item of the last spans.
func (b *batch) add(it item) {
	it.first = len(b.ends) - it.spans
	b.items = append(b.items, it)
}

// reader reads sources into batches.
type reader struct {
	*Options
	ctx     context.Context
	sources []source
	send    func(*batch) error
	fresh   func() *batch
	batch   *batch
	done    int64 // bytes of the sources before the current one
	skipped int64 // bytes that an earlier call has read
	all     int64 // bytes of all sources
}

// run reads the sources from a position on.
func (r *reader) run(at position) error {
	r.batch = r.fresh()
	for i := range r.sources {
		r.all += r.sources[i].Bytes
	}
	for i := range r.sources {
		s := &r.sources[i]
		if i < at.Source {
			r.skipped += s.Bytes
		}
		if i >= at.Source {
			begin := position{Source: i}
			if i == at.Source {
				begin = at
			}
			if err := r.source(s, begin); err != nil {
				r.batch.err = err
				break
			}
		}
		r.done += s.Bytes
	}
	return r.flush(0)
}

func (r *reader) source(s *source, at position) error {
	o, err := s.open()
	if err != nil {
		return err
	}
	defer func() { o.close() }()
	switch s.format {
	case lines:
		err = r.lines(o, at)
	case rows:
		err = r.parquet(o, at)
	default:
		if at.Number > 0 {
			r.skipped += s.Bytes
			return nil // the file is one document, which is written
		}
		err = r.text(o, at)
	}
	if err != nil {
		return err
	}
	return o.unchanged()
}

// flush sends the batch; read is the number of bytes of the current file that were read.
func (r *reader) flush(read int64) error {
	b := r.batch
	b.done, b.all = r.done+read-r.skipped, r.all-r.skipped
	if err := r.send(b); err != nil {
		return err
	}
	if b.err != nil {
		return nil
	}
	r.batch = r.fresh()
	return nil
}

// full sends the batch if it is large enough.
func (r *reader) full(o *opened) error {
	if len(r.batch.bytes) < r.limits.batch && len(r.batch.items) < r.limits.batch/64 {
		return r.ctx.Err()
	}
	return r.flush(o.read)
}

// readBuffer is the size of the buffer for lines.
const readBuffer = 256 << 10

// lines reads a file whose lines are JSON objects.
func (r *reader) lines(o *opened, at position) error {
	if at.Offset > 0 {
		if err := o.skip(at.Offset); err != nil {
			return err
		}
		r.skipped += o.read
	}
	in := bufio.NewReaderSize(o.text, readBuffer)
	for {
		b := r.batch
		begin := len(b.bytes)
		var err error
		for {
			var part []byte
			part, err = in.ReadSlice('\n')
			if bytes.IndexByte(part, 0) >= 0 {
				return badInput("%s: line %d is not JSON: it has a zero byte", o.source.Path, at.Number+1)
			}
			b.bytes = append(grow(b.bytes, len(part)), part...)
			if len(b.bytes)-begin > r.limits.document {
				return badInput("%s: line %d has more than %d MiB: octet reads a document from each line", o.source.Path, at.Number+1, r.limits.document>>20)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
			if err := r.ctx.Err(); err != nil {
				return err
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			b.bytes = b.bytes[:begin]
			return o.damaged(err)
		}
		at.Offset += int64(len(b.bytes) - begin)
		line := b.bytes[begin:]
		if at.Number == 0 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(b.bytes) > begin {
			at.Number++
		}
		if len(trimSpace(line)) == 0 {
			b.bytes = b.bytes[:begin]
		} else {
			b.bytes = append(b.bytes[:begin], line...)
			b.endSpan()
			b.add(item{next: at, spans: 1, json: true})
			if err := r.full(o); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// skip skips decompressed bytes.
func (o *opened) skip(n int64) error {
	var err error
	if o.source.compression == "" {
		_, err = o.file.Seek(n, io.SeekStart)
		o.read = n
	} else {
		_, err = io.CopyN(io.Discard, o.text, n)
	}
	if err != nil {
		return o.damaged(err)
	}
	return nil
}

// text reads a file that is one document. A long one is read twice: its hash decides
// between training and validation.
func (r *reader) text(o *opened, at position) error {
	b := r.batch
	begin := len(b.bytes)
	at.Number = 1
	room := r.limits.part + 1
	if o.source.compression == "" {
		room = int(min(int64(room), o.source.Bytes+1))
	}
	b.bytes = append(b.bytes, make([]byte, room)...)
	n, err := io.ReadFull(o.text, b.bytes[begin:])
	head := b.bytes[begin : begin+n]
	b.bytes = b.bytes[:begin+n]
	if zero := bytes.IndexByte(head, 0); zero >= 0 {
		b.bytes = b.bytes[:begin]
		return r.binary(o, at, int64(zero))
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n <= r.limits.part && o.ended():
		b.endSpan()
		b.add(item{next: at, spans: 1})
		return r.full(o)
	case err != nil:
		return o.damaged(err)
	}
	hash := sha256.New()
	hash.Write(head)
	b.bytes = b.bytes[:begin]
	return r.longText(o, at, hash)
}

// binary leaves out a file of a folder that is not text.
func (r *reader) binary(o *opened, at position, zero int64) error {
	if o.source.Named {
		return badInput("%s is not text: it has a zero byte at offset %d", o.source.Path, zero)
	}
	r.batch.add(item{next: at, leftOut: true})
	return r.full(o)
}

// longText reads the rest of a file for its hash, and then the file in parts.
func (r *reader) longText(o *opened, at position, hash hash.Hash) error {
	size := int64(r.limits.part + 1)
	chunk := make([]byte, readBuffer)
	for {
		n, err := o.text.Read(chunk)
		if zero := bytes.IndexByte(chunk[:n], 0); zero >= 0 {
			return r.binary(o, at, size+int64(zero))
		}
		hash.Write(chunk[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return o.damaged(err)
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
	}
	again, err := o.source.open()
	if err != nil {
		return err
	}
	defer func() { again.close() }()
	if err := r.flush(0); err != nil {
		return err
	}
	it := item{next: at, spans: 1, part: true, begins: true, hash: binary.BigEndian.Uint64(hash.Sum(nil)), size: size}
	var text []byte
	want, last := r.limits.part, false
	for !it.ends {
		for len(text) < want && !last {
			n, err := again.text.Read(chunk)
			text = append(text, chunk[:n]...)
			if last = errors.Is(err, io.EOF); err != nil && !last {
				return again.damaged(err)
			}
		}
		n, next, err := r.limits.cut(r.Tokenizer.Tokenizer, text, last)
		if err != nil {
			return badInput("%s: %w", o.source.Path, err)
		}
		if n == 0 && !last {
			want = next
			continue
		}
		want = r.limits.part
		it.ends = last && n == len(text)
		r.batch.bytes = append(r.batch.bytes, text[:n]...)
		r.batch.endSpan()
		r.batch.add(it)
		it.begins = false
		text = append(text[:0], text[n:]...)
		if err := r.flush(again.read); err != nil {
			return err
		}
	}
	return again.unchanged()
}

// placeOf describes the item that ends at a position, for messages.
func placeOf(sources []source, at position) string {
	s := &sources[at.Source]
	switch s.format {
	case lines:
		return fmt.Sprintf("%s: line %d", s.Path, at.Number)
	case rows:
		return fmt.Sprintf("%s: row %d", s.Path, at.Number)
	}
	return s.Path
}

// ended reports whether a source has no more text, after a short read.
func (o *opened) ended() bool {
	n, err := o.text.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF)
}
