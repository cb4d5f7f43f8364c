package gaudi

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// sizesOf returns the shape of an operand in the graph.
func sizesOf(t *backend.Tensor) []uint64 {
	return scalarSizes([]uint64{uint64(t.Cols()), uint64(t.Rows())})
}

// in returns an operand as stored: FP8 codes without their scale.
func (b *builder) in(t *backend.Tensor) value { return b.inAs(t, b.typeOf(t.DType)) }

// inAs is in with another type of the same width.
func (b *builder) inAs(t *backend.Tensor, typ libsynapse.DataType) value {
	l, persistent := b.layouts(t.Root())
	if !persistent {
		return b.bits(b.locals[t], typ)
	}
	pieces := b.pieces(l, t)
	if t.Contiguous() {
		return b.reshape(b.read(l, t, pieces[0], typ), sizesOf(t)...)
	}
	var rows []value
	for _, p := range pieces {
		v := b.reshape(b.read(l, t, p, typ), uint64(p.width), uint64(p.rows))
		rows = append(rows, b.slice(v, 0, p.skip, p.skip+uint64(t.Cols())))
	}
	return b.reshape(b.concat(1, rows...), sizesOf(t)...)
}

// A piece is a range of a root's elements that the device reads and writes as a whole: a
// matrix rows × width, whose first skip columns do not belong to the view.
type piece struct {
	from, width, rows int
	skip              uint64
}

func (p piece) elems() int { return p.width * p.rows }

// pieces returns the ranges that contain a view: the view itself if it is contiguous.
// Columns of a matrix include the elements between them. They start at the view's offset,
// and the last row is a piece of its own, because the root may end right after it. So
// views of other columns (the records of other layers) have equal pieces.
func (l layout) pieces(t *backend.Tensor) []piece {
	rows := t.Rows()
	switch {
	case t.Contiguous():
		return []piece{{from: t.Offset, width: t.Cols(), rows: rows}}
	case l.wholeRows:
		skip := t.Offset % t.LD
		return []piece{{from: t.Offset - skip, width: t.LD, rows: rows, skip: uint64(skip)}}
	default:
		return []piece{
			{from: t.Offset, width: t.LD, rows: rows - 1},
			{from: t.Offset + (rows-1)*t.LD, width: t.Cols(), rows: 1},
		}
	}
}

func (b *builder) pieces(l layout, t *backend.Tensor) []piece {
	list := l.pieces(t)
	if !t.Contiguous() && t.Offset%t.LD+t.Cols() > t.LD {
		b.fail(b.unsupported("%s is a view whose rows cross row boundaries of %s", t, t.Root()))
	}
	if last := list[len(list)-1]; last.from+last.elems() > t.Root().Elems() {
		b.fail(b.unsupported("%s is a view of columns that extends beyond the last whole row of %s", t, t.Root()))
	}
	return list
}

// read returns the elements of a piece of t.
func (b *builder) read(l layout, t *backend.Tensor, p piece, typ libsynapse.DataType) value {
	where, runs := l.placeOf(t.Root(), p)
	sizes := []uint64{uint64(p.width), uint64(p.rows)}
	if runs > 1 {
		sizes = []uint64{uint64(l.pitch), uint64(runs)}
	}
	v := b.tensorAt(t, where, typ, scalarSizes(sizes))
	if runs > 1 {
		v = b.slice(v, 0, 0, uint64(l.grain))
	}
	return v
}

// scalarSizes returns {1} for a shape with one element.
func scalarSizes(sizes []uint64) []uint64 {
	if (value{sizes: sizes}).elems() == 1 {
		return []uint64{1}
	}
	return sizes
}

// placeOf returns the place of a piece and its number of padded runs: 1 for a layout
// without padding and for a single run, whose padding the place excludes.
func (l layout) placeOf(root *backend.Tensor, p piece) (place, int) {
	n := p.elems()
	where := place{root: root, from: l.at(p.from)}
	where.to = where.from + int64(n*l.size)
	if l.plain() || n == l.grain {
		return where, 1
	}
	runs := n / l.grain
	where.to = where.from + int64(runs*l.pitch*l.size)
	return where, runs
}

// tensorAt returns the tensor that holds the newest contents of a place.
func (b *builder) tensorAt(t *backend.Tensor, p place, typ libsynapse.DataType, sizes []uint64) value {
	key := placeView{p, typ, fmt.Sprint(sizes)}
	if v, ok := b.current[key]; ok {
		return v
	}
	b.clock++
	v := b.tensor(t.Name, typ, sizes, p)
	b.current[key] = v
	return v
}

// f32 returns an operand's value in F32, its scale applied.
func (b *builder) f32(t *backend.Tensor) value { return b.widened(t, b.in(t)) }

// widened returns v, elements of t as stored, in F32 with t's scale applied.
func (b *builder) widened(t *backend.Tensor, v value) value {
	if t.Scale == nil {
		return b.dequantized(v, absent)
	}
	if t.Block != backend.PerTensor {
		b.fail(b.unsupported("%s is of granularity %s: Gaudi takes per-tensor scales only", t, t.Block))
		return v
	}
	return b.dequantized(v, b.in(t.Scale))
}

// dequantized returns v in F32, times scaleInv unless that is absent.
func (b *builder) dequantized(v, scaleInv value) value {
	if v.typ.Size() == 1 {
		// As in PyTorch's bridge (cast_from_fp8): the code times scale_inv.
		return b.node("convert_from_fp8_f32", nil, libsynapse.F32, v.sizes, v, scaleInv)
	}
	v = b.cast(v, libsynapse.F32)
	if scaleInv.index == absent.index {
		return v
	}
	return b.mul(v, scaleInv)
}

// wide returns a matrix operand's value in F32, as {cols, rows} even if it has one
// element.
func (b *builder) wide(t *backend.Tensor) value {
	return b.reshape(b.f32(t), uint64(t.Cols()), uint64(t.Rows()))
}

// out stores v, with as many elements as t, rounded to nearest even and without a scale.
func (b *builder) out(t *backend.Tensor, v value) {
	b.outAs(t, b.cast(v, b.typeOf(t.DType)))
}

// outAs stores v, which may have another type of the same width: FP8 codes as bytes.
func (b *builder) outAs(t *backend.Tensor, v value) {
	l, persistent := b.layouts(t.Root())
	v = b.reshape(v, sizesOf(t)...)
	if !persistent {
		if b.infos[v.index].root != nil { // another op may overwrite it
			v = b.node("identity", nil, v.typ, v.sizes, v)
		}
		b.locals[t] = v
		return
	}
	pieces := b.pieces(l, t)
	if t.Contiguous() {
		b.write(l, t, pieces[0], v)
		return
	}
	v = b.reshape(v, uint64(t.Cols()), uint64(t.Rows()))
	row := uint64(0)
	for _, p := range pieces {
		old := b.reshape(b.read(l, t, p, v.typ), uint64(p.width), uint64(p.rows))
		b.write(l, t, p, b.replaceColumns(old, b.slice(v, 1, row, row+uint64(p.rows)), p.skip))
		row += uint64(p.rows)
	}
}

// replaceColumns returns old with the columns from skip on replaced by v.
func (b *builder) replaceColumns(old, v value, skip uint64) value {
	var parts []value
	if skip > 0 {
		parts = append(parts, b.slice(old, 0, 0, skip))
	}
	parts = append(parts, v)
	if end := skip + v.sizes[0]; end < old.sizes[0] {
		parts = append(parts, b.slice(old, 0, end, old.sizes[0]))
	}
	return b.concat(0, parts...)
}

// write stores v in a piece of t.
func (b *builder) write(l layout, t *backend.Tensor, p piece, v value) {
	where, runs := l.placeOf(t.Root(), p)
	if runs > 1 {
		grain, n := uint64(l.grain), uint64(runs)
		v = b.concat(0, b.reshape(v, grain, n), b.zeros(v.typ, uint64(l.pitch)-grain, n))
	}
	b.put(t, where, b.reshape(v, scalarSizes(v.sizes)...))
}

// put makes v the contents of p. If possible, the node that computes v writes there
// directly.
func (b *builder) put(t *backend.Tensor, p place, v value) {
	if !b.canWrite(v, p) {
		v = b.node("identity", nil, v.typ, v.sizes, v)
	}
	b.clock++
	s := &b.infos[v.index]
	s.place, s.moment = p, b.clock
	b.graph.Tensors[v.index].Name = t.Name
	for key := range b.current {
		if key.overlaps(p) {
			delete(b.current, key)
		}
	}
	b.current[placeView{p, v.typ, fmt.Sprint(v.sizes)}] = v
}

// canWrite reports whether the node that computes v may write directly to p. No later
// node may touch the current contents of p, and the node itself may read them only
// elementwise, at the place that it writes.
func (b *builder) canWrite(v value, p place) bool {
	s := b.infos[v.index]
	if s.producer < 0 || s.root != nil {
		return false
	}
	for i, n := range b.graph.Nodes[s.producer:] {
		for _, k := range slices.Concat(n.In, n.Out) {
			if k < 0 || k == v.index || !b.infos[k].overlaps(p) {
				continue
			}
			if i > 0 || b.infos[k].place != p || !elementwise(n.GUID) {
				return false
			}
		}
	}
	return true
}

// word returns a float word of step.control as a scalar; see backend.Control.
func (b *builder) word(control *backend.Tensor, i int) value {
	return b.controlWord(control, i, libsynapse.F32)
}

// intWord returns an integer word of step.control as a scalar.
func (b *builder) intWord(control *backend.Tensor, i int) value {
	return b.controlWord(control, i, libsynapse.I32)
}

func (b *builder) controlWord(control *backend.Tensor, i int, typ libsynapse.DataType) value {
	words := b.inAs(control, typ)
	return b.reshape(b.slice(words, 0, uint64(i), uint64(i+1)), 1)
}
