package checkpoint

import (
	"errors"
	"fmt"
	"io"
)

// This file joins shards that hold some columns of a tensor, as ranks write them that share layers.

// columns are rows of a tensor whose columns are in several pieces, from left to right.
type columns struct {
	pieces   []piece
	colBytes int64 // of one index of the second dimension
	rowBytes int64
}

var _ io.ReaderAt = (*columns)(nil)

// joinColumns replaces the pieces with the same rows and some columns each by one with all of them. The
// pieces are sorted by rows, then by columns. name is the tensor's, for errors.
func (r *rows) joinColumns(name string, shape []int) error {
	var joined []piece
	for at := 0; at < len(r.pieces); {
		first := r.pieces[at]
		if first.columns[1] == 0 {
			joined = append(joined, first)
			at++
			continue
		}
		c := &columns{rowBytes: r.rowBytes, colBytes: r.rowBytes / int64(shape[1])}
		end := 0
		for ; at < len(r.pieces); at++ {
			p := r.pieces[at]
			if p.from != first.from || p.to != first.to || p.columns[1] == 0 {
				break
			}
			if p.columns[0] != end {
				return fmt.Errorf("%s: tensor %.200q: its columns %d to %d follow those that end at %d", p.file, name, p.columns[0], p.columns[1], end)
			}
			end = p.columns[1]
			c.pieces = append(c.pieces, p)
		}
		if end != shape[1] {
			return fmt.Errorf("%s: tensor %.200q: no shard holds column %d of %d of its rows %d to %d", first.file, name, end, shape[1], first.from, first.to)
		}
		joined = append(joined, piece{from: first.from, to: first.to, data: c, file: first.file})
	}
	r.pieces = joined
	return nil
}

// columnsBuffer is how much of a piece is read at once.
const columnsBuffer = 1 << 20

// ReadAt implements io.ReaderAt. Offsets are those of whole rows.
func (c *columns) ReadAt(dst []byte, at int64) (n int, err error) {
	var buffer []byte
	for n < len(dst) {
		row, within := (at+int64(n))/c.rowBytes, (at+int64(n))%c.rowBytes
		rest, rows := int64(len(dst)-n), int64(c.pieces[0].to-c.pieces[0].from)
		if row >= rows {
			return n, io.EOF
		}
		if within != 0 || rest < c.rowBytes {
			got, err := c.readWithin(dst[n:], row, within)
			if n += got; err != nil {
				return n, err
			}
			continue
		}
		count := min(rows-row, max(1, min(rest, columnsBuffer)/c.rowBytes))
		for _, p := range c.pieces {
			from, width := int64(p.columns[0])*c.colBytes, int64(p.columns[1]-p.columns[0])*c.colBytes
			if int64(len(buffer)) < count*width {
				buffer = make([]byte, count*width)
			}
			if err := p.read(buffer[:count*width], row*width); err != nil {
				return n, err
			}
			for i := range count {
				copy(dst[int64(n)+i*c.rowBytes+from:][:width], buffer[i*width:])
			}
		}
		n += int(count * c.rowBytes)
	}
	return n, nil
}

// readWithin reads a part of a row, up to the end of a piece of it, from an offset in the row.
func (c *columns) readWithin(dst []byte, row, within int64) (int, error) {
	for _, p := range c.pieces {
		from, to := int64(p.columns[0])*c.colBytes, int64(p.columns[1])*c.colBytes
		if within >= to {
			continue
		}
		dst = dst[:min(int64(len(dst)), to-within)]
		return len(dst), p.read(dst, row*(to-from)+within-from)
	}
	return 0, io.ErrUnexpectedEOF
}

// read reads bytes of a piece from an offset in it.
func (p piece) read(dst []byte, at int64) error {
	got, err := p.data.ReadAt(dst, p.offset+at)
	if got == len(dst) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s: %w", p.file, err)
}

// ReadBlock reads the columns from and to, without to, of rows of a tensor into dst, as ReadRows does
// whole rows. A column is everything at one index of the second dimension.
func (s *Tensors) ReadBlock(name string, fromRow, toRow, from, to int, dst []byte) error {
	t, ok := s.Lookup(name)
	if !ok {
		return fmt.Errorf("there is no tensor %q", name)
	}
	if len(t.Shape) < 2 || from < 0 || to < from || to > t.Shape[1] {
		return fmt.Errorf("%s: tensor %q has the shape %v: there are no columns %d to %d", s.path, name, t.Shape, from, to)
	}
	r := s.rows[s.byName[name]]
	colBytes := r.rowBytes / int64(max(1, t.Shape[1]))
	width := int64(to-from) * colBytes
	if size := int64(toRow-fromRow) * width; size != int64(len(dst)) {
		return fmt.Errorf("%s: rows %d to %d and columns %d to %d of tensor %q have %d bytes, but the destination has %d", s.path, fromRow, toRow, from, to, name, size, len(dst))
	}
	count := max(1, int(columnsBuffer/max(1, r.rowBytes)))
	buffer := make([]byte, int64(count)*r.rowBytes)
	for row := fromRow; row < toRow; row += count {
		n := min(count, toRow-row)
		if err := s.ReadRows(name, row, row+n, buffer[:int64(n)*r.rowBytes]); err != nil {
			return err
		}
		for i := range n {
			copy(dst[int64(row-fromRow+i)*width:][:width], buffer[int64(i)*r.rowBytes+int64(from)*colBytes:])
		}
	}
	return nil
}
