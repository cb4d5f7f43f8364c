package serve

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxHeader is the number of bytes that a header may have.
const maxHeader = 16 << 20

// request is a frame of the client.
type request struct {
	Op      string  `json:"op"`
	Buffers []int64 `json:"buffers"` // bytes of each
	header  []byte  // raw: each operation decodes its own fields from it
	body    *io.LimitedReader
}

// readRequest reads the header of the next frame. The error is io.EOF between two frames.
func readRequest(r *bufio.Reader) (*request, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: expected at most %d", n, maxHeader)
	}
	q := &request{header: make([]byte, n)}
	if _, err := io.ReadFull(r, q.header); err != nil {
		return nil, truncated(err)
	}
	if err := json.Unmarshal(q.header, q); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	total := int64(0)
	for _, size := range q.Buffers {
		if size < 0 || total+size < total {
			return nil, fmt.Errorf("buffers of %d bytes: expected sizes of 0 and more", q.Buffers)
		}
		total += size
	}
	q.body = &io.LimitedReader{R: r, N: total}
	return q, nil
}

// fields decodes the header's fields into those of an operation; unknown ones are errors.
func (q *request) fields(to any) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(q.header, &all); err != nil {
		return err
	}
	delete(all, "op")
	delete(all, "buffers")
	own, err := json.Marshal(all)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(own))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// sized returns an error unless the request has buffers of these sizes. Call it before reading, so
// that a wrong size allocates nothing.
func (q *request) sized(want ...int64) error {
	if len(q.Buffers) != len(want) {
		return fmt.Errorf("%d buffers: expected %d", len(q.Buffers), len(want))
	}
	for i, n := range want {
		if q.Buffers[i] != n {
			return fmt.Errorf("buffer %d has %d bytes: expected %d", i, q.Buffers[i], n)
		}
	}
	return nil
}

// read reads the next n bytes of the buffers.
func (q *request) read(n int64) ([]byte, error) {
	raw := make([]byte, n)
	return raw, q.fill(raw)
}

// fill reads the next len(raw) bytes of the buffers.
func (q *request) fill(raw []byte) error {
	_, err := io.ReadFull(q.body, raw)
	return truncated(err)
}

// skip reads what the operation left of the buffers, so that the next frame follows.
func (q *request) skip() error {
	if _, err := io.Copy(io.Discard, q.body); err != nil {
		return err
	}
	if q.body.N > 0 {
		return truncated(io.EOF)
	}
	return nil
}

// truncated names the end of the input within a frame.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the input ends within a frame: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// reply is the answer to a request.
type reply struct {
	fields  any // a struct or map
	buffers [][]byte
}

// encode returns the length of the header and the header.
func (a reply) encode() ([]byte, error) {
	header := map[string]json.RawMessage{}
	if a.fields != nil {
		text, err := json.Marshal(a.fields)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &header); err != nil {
			return nil, err
		}
	}
	sizes := make([]int, len(a.buffers))
	for i, b := range a.buffers {
		sizes[i] = len(b)
	}
	var err error
	if header["buffers"], err = json.Marshal(sizes); err != nil {
		return nil, err
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	if len(text) > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: a frame has at most %d", len(text), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...), nil
}

// write writes a frame, or one with the error if its header cannot be encoded.
func (a reply) write(w *bufio.Writer) error {
	header, err := a.encode()
	if err != nil {
		a = failed(err)
		if header, err = a.encode(); err != nil {
			return err
		}
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, b := range a.buffers {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return w.Flush()
}

// failed returns the reply of an operation that failed.
func failed(err error) reply {
	return reply{fields: map[string]string{"error": err.Error(), "kind": kindOf(err)}}
}
