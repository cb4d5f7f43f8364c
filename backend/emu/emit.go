package emu

import (
	"math"
	"unsafe"

	"octet/backend"
	"octet/fp8"
)

// emitter stores an op's FP32 result through its casts. Workers call store
// for disjoint parts in any order; begin and end bracket one run of the op.
type emitter struct {
	casts []boundCast
	// absolute[w] is the largest magnitude that worker w has stored since
	// begin, as bits; padded so that workers do not share cache lines.
	absolute [][16]uint32
	wantAmax bool
	codes    [][]uint8 // per worker, for transposed stores
}

type boundCast struct {
	dtype     fp8.DType
	ld, cols  int
	f32       []float32
	u16       []uint16
	u8        []uint8
	scale     []float32
	amax      []float32
	control   []int32
	name      uint64 // fp8.NameKey of the stored tensor
	rounding  fp8.Rounding
	tokens    bool
	transpose bool

	factor float32 // this run's scale
	key    uint64  // this run's random stream
	base   uint64  // this run's index of element (0, 0)
}

// emitter binds the casts of a result with the given number of columns.
func (b *binder) emitter(casts []backend.Cast, cols int) *emitter {
	e := &emitter{absolute: make([][16]uint32, b.pool.size())}
	for _, c := range casts {
		m := b.matrixOf(c.Out)
		e.casts = append(e.casts, boundCast{
			dtype: m.dtype, ld: m.ld, cols: cols, f32: m.f32, u16: m.u16, u8: m.u8,
			scale: b.f32(c.Scale), amax: b.f32(c.Amax), control: b.i32(c.Control),
			name: fp8.NameKey(c.Out.Name), rounding: c.Rounding, tokens: c.Tokens, transpose: c.Transpose,
		})
		e.wantAmax = e.wantAmax || c.Amax != nil
		if c.Transpose && e.codes == nil {
			e.codes = make([][]uint8, b.pool.size())
			for w := range e.codes {
				e.codes[w] = alignedBytes(int64(cols) * 4)
			}
		}
	}
	return e
}

// storing is run between the begin and the end of the emitters it stores to.
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
		c.factor = factor(c.scale)
		if c.rounding == fp8.Stochastic {
			ctl := readControl(c.control)
			c.key = fp8.StreamKey(ctl.Seed, ctl.Step, c.name)
			c.base = 0
			if c.tokens {
				c.base = ctl.Token * uint64(c.cols)
			}
		}
	}
	clear(e.absolute)
}

// store writes x as elements (row, col) … of the result.
func (e *emitter) store(worker, row, col int, x []float32) {
	if e.wantAmax {
		maxBits(&e.absolute[worker][0], fp8.Amax(x))
	}
	for i := range e.casts {
		c := &e.casts[i]
		if c.transpose {
			c.storeTransposed(e.codes[worker], row, col, x)
			continue
		}
		at := row*c.ld + col
		switch c.dtype {
		case fp8.F32:
			copy(c.f32[at:at+len(x)], x)
		case fp8.BF16, fp8.F16:
			c.encode16(c.u16[at:at+len(x)], x, row, col)
		default:
			c.encode8(c.u8[at:at+len(x)], x, row, col)
		}
	}
}

// end folds the workers' maxima into the casts' amaxes. A maximum does not
// depend on the order, so the result does not depend on the threads.
func (e *emitter) end() {
	if !e.wantAmax {
		return
	}
	amax := largest(e.absolute)
	for i := range e.casts {
		if a := e.casts[i].amax; a != nil {
			a[0] = fp8.MaxAmax(a[0], amax)
		}
	}
}

// largest is the largest of the workers' maxima.
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

func (c *boundCast) encode16(dst []uint16, x []float32, row, col int) {
	stochastic := c.rounding == fp8.Stochastic
	switch {
	case c.dtype == fp8.F16 && stochastic:
		fp8.Quantize16Stochastic(dst, x, c.factor, c.key, c.index(row, col))
	case c.dtype == fp8.F16:
		fp8.Quantize16(dst, x, c.factor)
	case stochastic:
		fp8.EncodeBF16Stochastic(dst, x, c.key, c.index(row, col))
	default:
		fp8.EncodeBF16(dst, x)
	}
}

func (c *boundCast) encode8(dst []uint8, x []float32, row, col int) {
	if c.rounding == fp8.Stochastic {
		fp8.Quantize8Stochastic(dst, x, c.dtype, c.factor, c.key, c.index(row, col))
		return
	}
	fp8.Quantize8(dst, x, c.dtype, c.factor)
}

// storeTransposed encodes the piece as a row and scatters it down a column.
func (c *boundCast) storeTransposed(buffer []uint8, row, col int, x []float32) {
	switch c.dtype {
	case fp8.F32:
		for i, v := range x {
			c.f32[(col+i)*c.ld+row] = v
		}
	case fp8.BF16, fp8.F16:
		codes := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(buffer))), len(x))
		c.encode16(codes, x, row, col)
		for i, v := range codes {
			c.u16[(col+i)*c.ld+row] = v
		}
	default:
		codes := buffer[:len(x)]
		c.encode8(codes, x, row, col)
		for i, v := range codes {
			c.u8[(col+i)*c.ld+row] = v
		}
	}
}
