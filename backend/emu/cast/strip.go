package cast

import (
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// This file stores transposed casts. Columns of the transposed tensor are far apart, and
// storing a row element by element would touch one cache line per element. A worker
// collects rows of codes in a strip instead, and stores a cache line of rows at a time.

// stripRows is the number of rows of a strip: a cache line of FP8 codes.
const stripRows = simd.TransposeRows

// tallRows is the number of rows of a strip for a result that streams: two consecutive
// cache lines of each column. Columns of large matrices are powers of two apart, which map
// to few memory banks: writing one line of each took twice as long as two (Zen 5, columns
// 8192 bytes apart).
const tallRows = 2 * stripRows

// stripWidth is the preferred number of bytes of a row in a strip: enough that the hardware
// prefetcher, which stops at pages, rarely starts a new run, few enough that the strip
// stays in the second-level cache.
const stripWidth = 8192

// stripGap is the number of elements between rows of a strip: rows at a distance of a power
// of two would evict each other from the first-level cache.
const stripGap = 64

// streamBytes is the minimum size of an FP8 result that is stored past the caches. A result
// of this size fits neither the second-level cache nor a worker's part of the third, which
// the cast's input, two to four times as large, has filled. Smaller results are better
// kept in the caches, for the op that reads them.
const streamBytes = 8 << 20

// streamedRows is the number of rows of a task for a result that streams.
const streamedRows = 16

// strip collects consecutive rows of one cast that cover the same columns. Any other row
// starts a new strip.
type strip struct {
	codes    memory.Matrix // rows of width elements, with stripGap elements between them
	row, col int           // the element of the result at the strip's start
	width    int
	rows     int // collected so far
}

// Streams reports whether codes of m are stored past the caches.
func Streams(m *memory.Matrix) bool { return len(m.U8) >= streamBytes }

func (c *bound) streams() bool { return Streams(&c.Out) }

// streamsRows reports whether the codes of c are stored past the caches without a strip.
func (c *bound) streamsRows() bool { return c.strips == nil && c.streams() }

// stripRows returns the number of rows of a strip of c.
func (c *bound) stripRows() int {
	if c.streams() {
		return tallRows
	}
	return stripRows
}

// newStrips returns a strip for each worker.
func newStrips(workers int, c *bound) []strip {
	list, d, step := make([]strip, workers), c.Out.DType.InBytes(), c.cols+stripGap
	for w := range list {
		raw := pool.WorkerBytes(int64(c.stripRows() * step * d.Size()))
		list[w].codes = memory.New(d, c.stripRows(), c.cols, step, raw)
	}
	return list
}

// next returns the index in the strip for n elements from (row, col) on. If they do not
// continue the strip, next flushes it first.
func (s *strip) next(c *bound, row, col, n int) int {
	if s.rows == c.stripRows() || row != s.row+s.rows || col != s.col || n != s.width {
		s.flush(c)
		s.row, s.col, s.width = row, col, n
	}
	s.rows++
	return (s.rows - 1) * (n + stripGap)
}

// flush stores the strip and empties it.
func (s *strip) flush(c *bound) {
	if s.rows == 0 {
		return
	}
	at, step := s.col*c.Out.LD+s.row, s.width+stripGap
	switch c.Out.DType.Size() {
	case 4:
		simd.Transpose32(c.Out.F32[at:], c.Out.LD, s.codes.F32, step, s.rows, s.width)
	case 2:
		simd.Transpose16(c.Out.U16[at:], c.Out.LD, s.codes.U16, step, s.rows, s.width)
	case 1:
		simd.Transpose8(c.Out.U8[at:], c.Out.LD, s.codes.U8, step, s.rows, s.width, c.streams())
	default:
		s.pack(&c.Out, step)
	}
	s.rows = 0
}

// pack stores the strip in a format of four bits: the transpose of some columns, in bytes,
// then two codes in a byte.
func (s *strip) pack(out *memory.Matrix, step int) {
	const columns = 64
	var codes [columns * tallRows]uint8
	for col := 0; col < s.width; col += columns {
		n := min(columns, s.width-col)
		simd.Transpose8(codes[:], tallRows, s.codes.U8[col:], step, s.rows, n, false)
		for i := range n {
			at := (s.col+col+i)*out.LD + s.row
			fp8.Pack4(out.U8[at/2:], codes[i*tallRows:][:s.rows])
		}
	}
}
