package emu

import "octet/backend/emu/simd"

// A column of a transposed tensor is far from the next one: a row stored
// element by element would touch a cache line for each. Rows are collected
// instead, as codes, and stored a cache line of rows at a time.

// stripRows is how many rows are collected: a cache line of FP8 codes.
const stripRows = simd.TransposeRows

// tallRows is how many are collected of a result that streams, so that two lines of
// each column follow each other. Columns of large matrices are powers of two apart,
// which memory spreads over few of its banks: one line of each in turn took twice as
// long as two (Zen 5, columns 8192 bytes apart).
const tallRows = 2 * stripRows

// stripWidth is how many bytes of a row a strip should hold: so many that the
// processor, which fetches ahead as far as a page goes, is rarely at the beginning
// of a run, few enough that the strip stays in the second-level cache.
const stripWidth = 8192

// stripGap is how many elements lie between rows: at distances that are powers of
// two they would drive each other out of the first-level cache.
const stripGap = 64

// streamBytes is the size from which on a result of bytes streams past the caches: a
// second-level cache holds less, and so does a worker's part of the third, which what
// the cast reads, two to four times as much, has filled. What a smaller result's reader
// finds in the caches is worth more.
const streamBytes = 8 << 20

// streamedRows is how many rows a task has of a result that streams.
const streamedRows = 16

// strip collects rows of one cast that follow each other and cover the same
// columns. Any other row starts a new strip.
type strip struct {
	elements     // for rows stripGap apart
	row, col int // the result's element that the strip starts with
	width    int
	rows     int // collected so far
}

// streams reports whether the codes of c go past the caches.
func (c *boundCast) streams() bool { return len(c.u8) >= streamBytes }

// streamsRows reports whether they do so as they are cast, not by way of a strip.
func (c *boundCast) streamsRows() bool { return c.strips == nil && c.streams() }

// stripRows is how many rows of c a strip collects.
func (c *boundCast) stripRows() int {
	if c.streams() {
		return tallRows
	}
	return stripRows
}

// newStrips is a strip for each worker.
func (b *binder) newStrips(c *boundCast) []strip {
	list, size := make([]strip, b.pool.size()), c.dtype.Size()
	for w := range list {
		raw := workerBytes(int64(c.stripRows() * (c.cols + stripGap) * size))
		switch size {
		case 4:
			list[w].f32 = view[float32](raw)
		case 2:
			list[w].u16 = view[uint16](raw)
		default:
			list[w].u8 = raw
		}
	}
	return list
}

// next is the place in the strip of n elements that begin at (row, col). If
// they do not continue it, it is stored first.
func (s *strip) next(c *boundCast, row, col, n int) int {
	if s.rows == c.stripRows() || row != s.row+s.rows || col != s.col || n != s.width {
		s.flush(c)
		s.row, s.col, s.width = row, col, n
	}
	s.rows++
	return (s.rows - 1) * (n + stripGap)
}

// flush stores the strip and empties it.
func (s *strip) flush(c *boundCast) {
	if s.rows == 0 {
		return
	}
	at, step := s.col*c.ld+s.row, s.width+stripGap
	switch c.dtype.Size() {
	case 4:
		simd.Transpose32(c.f32[at:], c.ld, s.f32, step, s.rows, s.width)
	case 2:
		simd.Transpose16(c.u16[at:], c.ld, s.u16, step, s.rows, s.width)
	default:
		simd.Transpose8(c.u8[at:], c.ld, s.u8, step, s.rows, s.width, c.streams())
	}
	s.rows = 0
}
