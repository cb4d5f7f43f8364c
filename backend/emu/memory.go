package emu

import (
	"fmt"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
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

// matrix binds t, with its scale unless t has block scales.
func (b *binder) matrix(t *backend.Tensor) memory.Matrix {
	m := memory.Matrix{DType: t.DType, Rows: t.Rows(), Cols: t.Cols(), LD: t.LD}
	if !scaledByBlock(t) {
		m.Scale = b.f32(t.Scale)
	}
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

// scaledByBlock reports whether t has scales other than one per-tensor FP32 scale.
func scaledByBlock(t *backend.Tensor) bool {
	return t.Scale != nil && (t.Block != backend.PerTensor || t.Scale.DType != fp8.F32)
}

// blockScales binds the scales of t, per-tensor or per block.
func (b *binder) blockScales(t *backend.Tensor) memory.BlockScales {
	s := memory.BlockScales{Rows: t.Block.Rows, Cols: t.Block.Cols}
	_, s.Across = t.Block.ScaleShape(t.Rows(), t.Cols())
	switch {
	case t.Scale == nil:
	case t.Scale.DType == fp8.E8M0:
		s.E8M0 = slice[uint8](b, t.Scale)
	default:
		s.F32 = b.f32(t.Scale)
	}
	return s
}

// output binds the casts of one result.
func (b *binder) output(list []backend.Cast) *cast.Output {
	return cast.NewOutput(b.pool, b.casts(list))
}

func (b *binder) casts(list []backend.Cast) (bound []cast.Cast) {
	for _, c := range list {
		to := cast.Cast{
			Out: b.matrix(c.Out), Transpose: c.Transpose, Scale: b.f32(c.Scale), Amax: b.f32(c.Amax),
			Rounding: c.Rounding, Stream: fp8.NameKey(c.StreamName()), Control: b.i32(c.Control), Tokens: c.Tokens,
			Limit: c.Limit, Pow2: c.Pow2,
		}
		if c.Out.Block != backend.PerTensor {
			to.Blocks = b.blockScales(c.Out)
		}
		bound = append(bound, to)
	}
	return bound
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

// pieceBuffers returns, for each worker, a buffer for a piece of a row of cols elements.
func (b *binder) pieceBuffers(cols int) [][]float32 {
	return b.scratch(pool.PieceWidth(cols))
}
