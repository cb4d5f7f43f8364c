package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// emitter stores an op's FP32 result through its casts. Workers call store
// for disjoint parts in any order; begin and end bracket one run of the op.
type emitter struct {
	casts []boundCast
	// workerAmax[w] is the largest magnitude that worker w has stored since
	// begin, as bits; padded so that workers do not share cache lines.
	workerAmax [][16]uint32
	wantAmax   bool
}

type boundCast struct {
	memory.Matrix           // the stored tensor
	cols          int       // of the result
	scaleSrc      []float32 // one element; nil is 1
	amax          []float32
	control       []int32
	name          uint64 // fp8.NameKey of the stored tensor
	rounding      fp8.Rounding
	tokens        bool
	strips        []strip    // one for each worker, if the cast is transposed
	copyOf        *boundCast // an earlier, transposed cast with the same codes

	// Of this run:
	scale float32
	key   uint64 // of the random stream
	base  uint64 // random index of element (0, 0)
}

// emitter binds the casts of a result with the given number of columns. Transposed
// casts come first, so that the row-major cast copies its codes from their strips: the
// other way round, the codes to copy may have been streamed past the caches.
func (b *binder) emitter(casts []backend.Cast, cols int) *emitter {
	casts = slices.Clone(casts)
	slices.SortStableFunc(casts, func(c, d backend.Cast) int {
		switch {
		case c.Transpose == d.Transpose:
			return 0
		case c.Transpose:
			return -1
		}
		return 1
	})
	e := &emitter{casts: make([]boundCast, 0, len(casts)), workerAmax: make([][16]uint32, b.pool.Size())}
	for i, c := range casts {
		bound := boundCast{
			Matrix: b.matrix(c.Out), cols: cols,
			scaleSrc: b.f32(c.Scale), amax: b.f32(c.Amax), control: b.i32(c.Control),
			name: fp8.NameKey(c.StreamName()), rounding: c.Rounding, tokens: c.Tokens,
		}
		if c.Transpose {
			bound.strips = b.newStrips(&bound)
		}
		for j, d := range casts[:i] {
			same := c.Out.DType == d.Out.DType && c.Scale == d.Scale && c.Rounding == fp8.Nearest && d.Rounding == fp8.Nearest
			if same && d.Transpose && !c.Transpose {
				bound.copyOf = &e.casts[j]
			}
		}
		e.casts = append(e.casts, bound)
		e.wantAmax = e.wantAmax || c.Amax != nil
	}
	return e
}

// storing returns a function that calls run between begin and end of the emitters
// that run stores to.
func storing(run func(), list ...*emitter) func() {
	return func() {
		for _, e := range list {
			e.begin()
		}
		run()
		for _, e := range list {
			e.end()
		}
	}
}

// begin reads what may change from run to run: scales, seed, step, position.
func (e *emitter) begin() {
	for i := range e.casts {
		c := &e.casts[i]
		c.scale = scaleValue(c.scaleSrc)
		if c.rounding == fp8.Stochastic {
			ctl := readControl(c.control)
			c.key = fp8.StreamKey(ctl.Seed, ctl.Step, c.name)
			c.base = 0
			if c.tokens {
				c.base = ctl.Token * uint64(c.cols)
			}
		}
	}
	clear(e.workerAmax)
}

// store writes x to the result from element (row, col) on. A transposed cast may
// collect x in the worker's strip until the rows below are there.
func (e *emitter) store(worker, row, col int, x []float32) {
	amax, known := float32(0), false
	for i := range e.casts {
		c := &e.casts[i]
		to, at := c.place(worker, row, col, len(x))
		switch {
		case c.copyOf != nil:
			c.copy(worker, at, len(x))
		case c.DType == fp8.F32:
			copy(to.F32[at:at+len(x)], x)
		case c.DType == fp8.BF16:
			c.encode16(to.U16[at:at+len(x)], x, row, col)
		case c.DType == fp8.F16:
			amax, known = c.encode16(to.U16[at:at+len(x)], x, row, col), true
		default:
			amax, known = c.encode8(to.U8[at:at+len(x)], x, row, col), true
		}
	}
	if e.wantAmax {
		if !known {
			amax = fp8.Amax(x)
		}
		maxBits(&e.workerAmax[worker][0], amax)
	}
}

// requantizes reports whether requantize can store the result: whether all casts are
// to FP8.
func (e *emitter) requantizes() bool {
	return !slices.ContainsFunc(e.casts, func(c boundCast) bool { return !c.DType.IsFP8() })
}

// requantize is store for n elements of x, BF16 or F16, from (row, col) on.
func (e *emitter) requantize(worker, row, col, n int, x *memory.Matrix) {
	amax, from := float32(0), x.U16[row*x.LD+col:][:n]
	for i := range e.casts {
		c := &e.casts[i]
		to, at := c.place(worker, row, col, n)
		codes, scaleInv, stream := to.U8[at:at+n], x.ScaleInv(), c.streamsRows()
		switch {
		case c.copyOf != nil:
			c.copy(worker, at, n)
		case c.rounding == fp8.Stochastic:
			amax = fp8.Requantize8Stochastic(codes, from, x.DType, c.DType, scaleInv, c.scale, c.key, c.index(row, col), stream)
		default:
			amax = fp8.Requantize8(codes, from, x.DType, c.DType, scaleInv, c.scale, stream)
		}
	}
	maxBits(&e.workerAmax[worker][0], amax)
}

// place returns where to store n elements from (row, col) on. It returns a pointer,
// because a copy of a Matrix, written as words and read back as vectors, defeats store
// forwarding: the load waits until the stores before it have reached the cache.
func (c *boundCast) place(worker, row, col, n int) (to *memory.Matrix, at int) {
	if c.strips == nil {
		return &c.Matrix, row*c.LD + col
	}
	s := &c.strips[worker]
	return &s.Matrix, s.next(c, row, col, n)
}

// copy stores n elements from at on, which it takes from the last row of copyOf's strip.
func (c *boundCast) copy(worker, at, n int) {
	from := &c.copyOf.strips[worker]
	start := (from.rows - 1) * (n + stripGap)
	switch {
	case c.F32 != nil:
		copy(c.F32[at:at+n], from.F32[start:])
	case c.U16 != nil:
		copy(c.U16[at:at+n], from.U16[start:])
	case c.streams():
		simd.Stream(c.U8[at:at+n], from.U8[start:start+n])
	default:
		copy(c.U8[at:at+n], from.U8[start:])
	}
}

// taskShape returns how many rows and columns a task should store: whole strips, and
// more than a few cache lines of streamed codes, since a task ends with a fence. Both
// are 0 if no cast has strips or streams.
func (e *emitter) taskShape() (rows, cols int) {
	size := 0
	for i := range e.casts {
		switch c := &e.casts[i]; {
		case c.strips != nil:
			rows, size = max(rows, c.stripRows()), max(size, c.DType.Size())
		case c.streams():
			rows, size = max(rows, streamedRows), max(size, 1)
		}
	}
	if size == 0 {
		return 0, 0
	}
	return rows, stripWidth / size
}

// end flushes the strips and folds the workers' maxima into the casts' amaxes. A
// maximum does not depend on the order, so the result does not depend on the threads.
func (e *emitter) end() {
	for i := range e.casts {
		c := &e.casts[i]
		for w := range c.strips {
			c.strips[w].flush(c)
		}
	}
	if !e.wantAmax {
		return
	}
	amax := largest(e.workerAmax)
	for i := range e.casts {
		if a := e.casts[i].amax; a != nil {
			a[0] = fp8.MaxAmax(a[0], amax)
		}
	}
}

// largest returns the largest of the workers' maxima.
func largest(workers [][16]uint32) float32 {
	bits := uint32(0)
	for i := range workers {
		bits = max(bits, workers[i][0])
	}
	return math.Float32frombits(bits)
}

func (c *boundCast) index(row, col int) uint64 {
	return c.base + uint64(row)*uint64(c.cols) + uint64(col)
}

// encode16 casts x, which begins at (row, col). For F16 it returns the largest
// magnitude in x, for BF16 0.
func (c *boundCast) encode16(dst []uint16, x []float32, row, col int) (amax float32) {
	stochastic := c.rounding == fp8.Stochastic
	switch {
	case c.DType == fp8.F16 && stochastic:
		return fp8.Quantize16Stochastic(dst, x, c.scale, c.key, c.index(row, col))
	case c.DType == fp8.F16:
		return fp8.Quantize16(dst, x, c.scale)
	case stochastic:
		fp8.EncodeBF16Stochastic(dst, x, c.key, c.index(row, col))
	default:
		fp8.EncodeBF16(dst, x)
	}
	return 0
}

// encode8 casts x, which begins at (row, col), and returns the largest
// magnitude in it.
func (c *boundCast) encode8(dst []uint8, x []float32, row, col int) (amax float32) {
	if c.rounding == fp8.Stochastic {
		return fp8.Quantize8Stochastic(dst, x, c.DType, c.scale, c.key, c.index(row, col), c.streamsRows())
	}
	return fp8.Quantize8(dst, x, c.DType, c.scale, c.streamsRows())
}
