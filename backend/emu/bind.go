package emu

import (
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// binder resolves the tensors of one loaded program to memory.
type binder struct {
	*device
	plan   *backend.Plan
	arena  []byte
	beside bool                         // collectives of the program that runs are beside its other nodes
	taken  int                          // scratch buffers taken so far by the op being bound
	gemms  map[*backend.Node]gemm.Bound // of the MatMuls, while a program is loaded
}

// bind returns the kernel of a node's op.
func (b *binder) bind(n *backend.Node) (kernel, error) {
	b.taken = 0
	row, ok := rowOf(n.Op)
	if !ok {
		return nil, b.unsupported("no kernel for %T; a custom op must implement backend.Looped", n.Op)
	}
	for _, o := range n.Operands() {
		if slices.Contains(row.blockScaled, o.FieldName()) {
			continue
		}
		if o.Tensor.Block != backend.PerTensor {
			return nil, b.unsupported("%s has scales per block %s", o.Tensor, o.Tensor.Block)
		}
		if o.Tensor.DType.IsForScales() {
			return nil, b.unsupported("%s is %s", o.Field, o.Tensor)
		}
	}
	return row.bind(b, n)
}

// bytes returns t's memory from its first to its last element.
func (b *binder) bytes(t *backend.Tensor) []byte {
	span := t.DType.Bytes((t.Rows()-1)*t.LD + t.Cols())
	from := t.DType.Bytes(t.Offset)
	root := t.Root()
	if root.Class != backend.Temp {
		return b.memory[root][from : from+span]
	}
	from += int(b.plan.Offsets[root])
	return b.arena[from : from+span]
}

// slice returns t's memory as elements of the size of its format, nil for a nil tensor.
func slice[E float32 | int32 | uint16 | uint8](b *binder, t *backend.Tensor) []E {
	if t == nil {
		return nil
	}
	return pool.View[E](b.bytes(t))
}

func (b *binder) f32(t *backend.Tensor) []float32 { return slice[float32](b, t) }
func (b *binder) i32(t *backend.Tensor) []int32   { return slice[int32](b, t) }

// matrix binds t, with its scale for the whole tensor, beside block scales the outer one.
func (b *binder) matrix(t *backend.Tensor) memory.Matrix {
	m := memory.New(t.DType, t.Rows(), t.Cols(), t.LD, b.bytes(t))
	if m.Scale = b.f32(t.Outer); !scaledByBlock(t) {
		m.Scale = b.f32(t.Scale)
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
	if t.Scale == nil {
		return s
	}
	if s.DType = t.Scale.DType; s.DType == fp8.F32 {
		s.F32 = b.f32(t.Scale)
	} else {
		s.Codes = b.bytes(t.Scale)
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
			Precision: c.Precision, Rounding: c.Rounding, Overflow: c.Overflow(), Stream: fp8.NameKey(c.StreamName()), Control: b.i32(c.Control), Tokens: c.Tokens,
			Limit: c.Limit, Rule: c.Rule,
		}
		if c.Out.Block != backend.PerTensor {
			to.Blocks = b.blockScales(c.Out)
		}
		bound = append(bound, to)
	}
	return bound
}

// integers returns a function that reads an I32 tensor by the index of its elements.
func (b *binder) integers(t *backend.Tensor) func(i int) int {
	words, cols, ld := b.i32(t), t.Cols(), t.LD
	return func(i int) int { return int(words[i/cols*ld+i%cols]) }
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
