package emu

import (
	"fmt"
	"math"
	"unsafe"

	"octet/backend"
	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// binder resolves the tensors of one loaded program to memory.
type binder struct {
	*device
	plan  *backend.Plan
	arena []byte
	taken int // scratch buffers taken so far by the op being bound
}

// bytes returns t's memory from its first to its last element.
func (b *binder) bytes(t *backend.Tensor) []byte {
	size := t.DType.Size()
	span := ((t.Rows()-1)*t.LD + t.Cols()) * size
	from := t.Offset * size
	root := t.Root()
	if root.Class != backend.Temp {
		return b.memory[root][from : from+span]
	}
	from += int(b.plan.Offsets[root])
	return b.arena[from : from+span]
}

// copyOut returns a copy of t's elements without the gaps between its rows.
func (b *binder) copyOut(t *backend.Tensor) []byte {
	src := b.bytes(t)
	row, ld := t.Cols()*t.DType.Size(), t.LD*t.DType.Size()
	out := make([]byte, 0, t.Bytes())
	for r := range t.Rows() {
		out = append(out, src[r*ld:r*ld+row]...)
	}
	return out
}

// observed is the backend.Memory of an observer.
type observed struct{ b *binder }

func (o observed) Read(t *backend.Tensor) ([]byte, error) { return o.b.copyOut(t), nil }

func (o observed) Write(t *backend.Tensor, raw []byte) error {
	if int64(len(raw)) != t.Bytes() {
		return fmt.Errorf("emu: %s takes %d bytes, got %d", t, t.Bytes(), len(raw))
	}
	o.b.changed(t)
	dst := o.b.bytes(t)
	row, ld := t.Cols()*t.DType.Size(), t.LD*t.DType.Size()
	for r := range t.Rows() {
		copy(dst[r*ld:], raw[r*row:(r+1)*row])
	}
	return nil
}

// slice returns t's memory as elements, nil for a nil tensor. E must have the size of
// t's format.
func slice[E float32 | int32 | uint16 | uint8](b *binder, t *backend.Tensor) []E {
	if t == nil {
		return nil
	}
	return pool.View[E](b.bytes(t))
}

func (b *binder) f32(t *backend.Tensor) []float32 { return slice[float32](b, t) }
func (b *binder) i32(t *backend.Tensor) []int32   { return slice[int32](b, t) }

// readControl decodes the words of step.control; nil gives zeros.
func readControl(words []int32) backend.Control {
	if words == nil {
		return backend.Control{}
	}
	return backend.ControlFrom(words)
}

// rows reads a float tensor row by row as FP32.
type rows struct {
	dtype          fp8.DType
	rows, cols, ld int
	f32            []float32
	u16            []uint16
	u8             []uint8
	scale          []float32 // scale_inv, one element; nil is 1
}

// rows binds t for reading with its first scale. For moments with a scale per block,
// adamState.loadBlocks sets the scale.
func (b *binder) rows(t *backend.Tensor) rows {
	r := rows{dtype: t.DType, rows: t.Rows(), cols: t.Cols(), ld: t.LD, scale: b.f32(t.Scale)}
	switch t.DType.Size() {
	case 4:
		r.f32 = b.f32(t)
	case 2:
		r.u16 = slice[uint16](b, t)
	default:
		r.u8 = slice[uint8](b, t)
	}
	return r
}

// integers reads an I32 tensor by the index of its elements.
type integers struct {
	words    []int32
	cols, ld int
}

func (b *binder) integers(t *backend.Tensor) integers {
	return integers{b.i32(t), t.Cols(), t.LD}
}

func (n *integers) at(i int) int {
	if n.ld == n.cols {
		return int(n.words[i])
	}
	return int(n.words[i/n.cols*n.ld+i%n.cols])
}

// load decodes len(dst) elements from (row, col) on.
func (r *rows) load(dst []float32, row, col int) {
	at := row*r.ld + col
	switch r.dtype {
	case fp8.F32:
		copy(dst, r.f32[at:at+len(dst)])
	case fp8.BF16:
		fp8.DecodeBF16(dst, r.u16[at:at+len(dst)])
	case fp8.F16:
		fp8.Dequantize16(dst, r.u16[at:at+len(dst)], scaleValue(r.scale))
		return
	default:
		fp8.Dequantize8(dst, r.u8[at:at+len(dst)], r.dtype, scaleValue(r.scale))
		return
	}
	if r.scale != nil {
		simd.Scale(dst, r.scale[0])
	}
}

// prefetch prefetches n elements from (row, col) on.
func (r *rows) prefetch(row, col, n int) {
	at := row*r.ld + col
	switch {
	case r.f32 != nil:
		simd.PrefetchRows(unsafe.Pointer(&r.f32[at]), 0, 1, 4*n)
	case r.u16 != nil:
		simd.PrefetchRows(unsafe.Pointer(&r.u16[at]), 0, 1, 2*n)
	default:
		simd.PrefetchRows(unsafe.Pointer(&r.u8[at]), 0, 1, n)
	}
}

// row returns row i as FP32; see piece.
func (r *rows) row(buffer []float32, i int) []float32 {
	return r.piece(buffer, i, 0, r.cols)
}

// piece returns n elements from (row, col) on as FP32: r's memory if it is unscaled
// FP32, else decoded into buffer, which must have n elements. The caller must not write
// to the result.
func (r *rows) piece(buffer []float32, row, col, n int) []float32 {
	if r.dtype == fp8.F32 && r.scale == nil {
		at := row*r.ld + col
		return r.f32[at : at+n]
	}
	r.load(buffer[:n], row, col)
	return buffer[:n]
}

// matrixOf binds t as a GEMM operand.
func (b *binder) matrixOf(t *backend.Tensor) gemm.Matrix {
	m := gemm.Matrix{DType: t.DType, Rows: t.Rows(), Cols: t.Cols(), LD: t.LD}
	switch t.DType.Size() {
	case 4:
		m.F32 = b.f32(t)
	case 2:
		m.U16 = slice[uint16](b, t)
	default:
		m.U8 = slice[uint8](b, t)
	}
	return m
}

// bufferKey names a scratch buffer: the which-th that an op takes, of n floats.
type bufferKey struct{ which, n int }

// scratch returns n floats for each worker of the pool. The calls for one op return
// different buffers. Ops share them, since ops run one after another.
func (b *binder) scratch(n int) [][]float32 {
	key := bufferKey{b.taken, n}
	b.taken++
	list := b.buffers[key]
	if list == nil {
		list = make([][]float32, b.pool.Size())
		for i := range list {
			list[i] = pool.View[float32](pool.WorkerBytes(int64(n) * 4))
		}
		b.buffers[key] = list
	}
	return list
}

// shared returns n floats that pass data from one op's first tasks to its last. Ops
// share them, since ops run one after another.
func (b *binder) shared(n int) []float32 {
	if b.common[n] == nil {
		b.common[n] = pool.View[float32](pool.Bytes(int64(n) * 4))
	}
	return b.common[n]
}

// taskElems is about how many elements a task touches: enough to be worth
// handing out, few enough that the last tasks end at about the same time.
const taskElems = 8192

// rowTasks splits rows into tasks of about taskElems elements. The split
// depends on the shape alone, never on the number of threads.
func rowTasks(rows, cols int) (tasks, rowsPerTask int) {
	rowsPerTask = max(1, taskElems/cols)
	return (rows + rowsPerTask - 1) / rowsPerTask, rowsPerTask
}

// scaleValue returns the value of a bound scale, 1 for nil.
func scaleValue(scale []float32) float32 {
	if scale == nil {
		return 1
	}
	return scale[0]
}

// maxBits folds a magnitude into bits by its bit pattern, so that NaN > Inf > finite.
func maxBits(bits *uint32, magnitude float32) {
	*bits = max(*bits, math.Float32bits(magnitude)&^(1<<31))
}
