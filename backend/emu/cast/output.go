package cast

import (
	"slices"
	"unsafe"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// Output stores an op's FP32 result through its casts. Workers call Store for disjoint
// parts in any order, in a function that Storing returns.
type Output struct {
	direct   []memory.Matrix // the copies that Store writes at once
	casts    []bound
	plain    int // the number of last casts that are plain: StoreRows encodes many rows at a time
	maxima   Maxima
	wantAmax bool
}

type bound struct {
	Cast
	cols    int     // of the result
	strips  []strip // one for each worker, if the cast is transposed
	copyOf  *bound  // an earlier, transposed cast with the same codes
	encoder Encoder // of this run
}

// NewOutput binds the casts of one result, without block scales. Transposed casts come
// first, so that the row-major cast copies its codes from their strips: the other way
// round, the codes to copy may have been streamed past the caches. Row-major casts to BF16 come
// last, for StoreRows.
func NewOutput(p *pool.Pool, casts []Cast) *Output {
	casts = slices.Clone(casts)
	order := func(c Cast) int {
		switch {
		case c.Transpose:
			return 0
		case c.Out.DType == fp8.BF16:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(casts, func(c, d Cast) int { return order(c) - order(d) })
	o := &Output{casts: make([]bound, 0, len(casts)), maxima: make(Maxima, p.Size())}
	for i, c := range casts {
		b := bound{Cast: c, encoder: Encoder{DType: c.Out.DType, Precision: c.Precision, Rounding: c.Rounding, Overflow: c.Overflow}}
		_, b.cols = c.shape()
		if c.Transpose {
			b.strips = newStrips(p.Size(), &b)
		} else {
			o.direct = append(o.direct, c.Out)
		}
		for j, d := range casts[:i] {
			same := c.Out.DType == d.Out.DType && c.Precision == d.Precision && unsafe.SliceData(c.Scale) == unsafe.SliceData(d.Scale) && c.Overflow == d.Overflow && c.Rounding == fp8.Nearest && d.Rounding == fp8.Nearest
			if same && d.Transpose && !c.Transpose {
				b.copyOf = &o.casts[j]
			}
		}
		o.casts = append(o.casts, b)
		o.wantAmax = o.wantAmax || c.Amax != nil
	}
	for n := len(o.casts); o.plain < n && o.casts[n-1-o.plain].isPlain(); {
		o.plain++
	}
	return o
}

// Direct returns the copies that Store writes at once, for prefetching. Do not change them.
func (o *Output) Direct() []memory.Matrix { return o.direct }

// Storing returns a function that calls run, which stores to the outputs in list. Before,
// it reads what changes from run to run: scales, seed, step, position. After, it stores
// what transposed casts have collected, and the amaxes.
func Storing(run func(), list ...*Output) func() {
	return func() {
		for _, o := range list {
			o.begin()
		}
		run()
		for _, o := range list {
			o.end()
		}
	}
}

func (o *Output) begin() {
	for i := range o.casts {
		c := &o.casts[i]
		c.encoder.Scale = 1
		if c.Scale != nil {
			c.encoder.Scale = c.Scale[0]
		}
		if c.Rounding == fp8.Stochastic {
			control := backend.ControlFrom(c.Control)
			c.encoder.Key, c.encoder.Base = fp8.StreamKey(control.Seed, control.Step, c.Stream), 0
			if c.Tokens {
				c.encoder.Base = control.Token * uint64(c.cols)
			}
		}
	}
	clear(o.maxima)
}

func (o *Output) end() {
	for i := range o.casts {
		c := &o.casts[i]
		for w := range c.strips {
			c.strips[w].flush(c)
		}
	}
	if !o.wantAmax {
		return
	}
	amax := o.maxima.Largest()
	for i := range o.casts {
		if a := o.casts[i].Amax; a != nil {
			a[0] = fp8.MaxAmax(a[0], amax)
		}
	}
}

// StoreRows is Store for some rows of n elements, ld apart in x. It encodes plain casts first.
func (o *Output) StoreRows(worker, row, col int, x []float32, ld, rows, n int) {
	others := len(o.casts) - o.plain
	for i := range o.plain {
		to := &o.casts[others+i].Out
		fp8.EncodeBF16Rows(to.U16[row*to.LD+col:], to.LD, x, ld, rows, n)
	}
	if others > 0 || o.wantAmax {
		for r := range rows {
			o.store(worker, row+r, col, x[r*ld:][:n], others)
		}
	}
}

// Store writes x to the result from element (row, col) on. A transposed cast may
// collect x in the worker's strip until the rows below are there.
func (o *Output) Store(worker, row, col int, x []float32) {
	o.store(worker, row, col, x, len(o.casts))
}

// store is Store for the first count casts.
func (o *Output) store(worker, row, col int, x []float32, count int) {
	amax, known := float32(0), false
	for i := range count {
		c := &o.casts[i]
		to, at := c.place(worker, row, col, len(x))
		switch {
		case c.copyOf != nil:
			c.copy(worker, at, len(x))
		case c.Out.DType == fp8.F32:
			copy(to.F32[at:at+len(x)], x)
		case c.Out.DType == fp8.BF16:
			c.encoder.Encode16(to.U16[at:at+len(x)], x, c.index(row, col))
		case to.DType.Size() == 0:
			amax, known = c.encoder.encode4(to.U8[at/2:], x, c.index(row, col)), true
		case c.Out.DType == fp8.F16:
			amax, known = c.encoder.Encode16(to.U16[at:at+len(x)], x, c.index(row, col)), true
		default:
			amax, known = c.encoder.Encode8(to.U8[at:at+len(x)], x, c.index(row, col), c.streamsRows()), true
		}
	}
	if o.wantAmax {
		if !known {
			amax = fp8.Amax(x)
		}
		o.maxima.Include(worker, amax)
	}
}

// isPlain reports whether c is row-major BF16, rounded to nearest, and not a copy of a transposed
// cast.
func (c *bound) isPlain() bool {
	return c.Out.DType == fp8.BF16 && c.Precision == fp8.Invalid && c.Rounding == fp8.Nearest && c.strips == nil && c.copyOf == nil
}

// requantizes reports whether requantize can store the result: whether all casts write one
// code of up to eight bits to a byte.
func (o *Output) requantizes() bool {
	return !slices.ContainsFunc(o.casts, func(c bound) bool { return c.Out.DType.Size() != 1 })
}

// requantize is Store for n elements of x, BF16 or F16, from (row, col) on.
func (o *Output) requantize(worker, row, col, n int, x *memory.Matrix) {
	amax, from := float32(0), x.U16[row*x.LD+col:][:n]
	for i := range o.casts {
		c := &o.casts[i]
		to, at := c.place(worker, row, col, n)
		if c.copyOf != nil {
			c.copy(worker, at, n)
			continue
		}
		amax = c.encoder.requantize8(to.U8[at:at+n], from, x.DType, x.ScaleInv(), c.index(row, col), c.streamsRows())
	}
	o.maxima.Include(worker, amax)
}

// taskShape returns how many rows and columns a task should store: whole strips, and
// more than a few cache lines of streamed codes, since a task ends with a fence. Both
// are 0 if no cast has strips or streams.
func (o *Output) taskShape() (rows, cols int) {
	size := 0
	for i := range o.casts {
		switch c := &o.casts[i]; {
		case c.strips != nil:
			rows, size = max(rows, c.stripRows()), max(size, c.Out.DType.InBytes().Size())
		case c.streams():
			rows, size = max(rows, streamedRows), max(size, 1)
		}
	}
	if size == 0 {
		return 0, 0
	}
	return rows, stripWidth / size
}

// index returns the random index of element (row, col), less Encoder.Base.
func (c *bound) index(row, col int) uint64 { return uint64(row)*uint64(c.cols) + uint64(col) }

// place returns where to store n elements from (row, col) on. It returns a pointer,
// because a copy of a Matrix, written as words and read back as vectors, defeats store
// forwarding: the load waits until the stores before it have reached the cache.
func (c *bound) place(worker, row, col, n int) (to *memory.Matrix, at int) {
	if c.strips == nil {
		return &c.Out, row*c.Out.LD + col
	}
	s := &c.strips[worker]
	return &s.codes, s.next(c, row, col, n)
}

// copy stores n elements from at on, which it takes from the last row of copyOf's strip.
func (c *bound) copy(worker, at, n int) {
	s, to := &c.copyOf.strips[worker], &c.Out
	from, start := &s.codes, (s.rows-1)*(n+stripGap)
	switch {
	case to.F32 != nil:
		copy(to.F32[at:at+n], from.F32[start:])
	case to.U16 != nil:
		copy(to.U16[at:at+n], from.U16[start:])
	case to.DType.Size() == 0:
		fp8.Pack4(to.U8[at/2:], from.U8[start:start+n])
	case c.streams():
		simd.Stream(to.U8[at:at+n], from.U8[start:start+n])
	default:
		copy(to.U8[at:at+n], from.U8[start:])
	}
}
