package gaudi

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// sizesOf is the shape of an operand as the graph has it.
func sizesOf(t *backend.Tensor) []uint64 {
	return scalarSizes([]uint64{uint64(t.Cols()), uint64(t.Rows())})
}

// in is an operand as it is stored, codes without their scale.
func (b *builder) in(t *backend.Tensor) value { return b.inAs(t, b.typeOf(t.DType)) }

// inAs is in, of another type of the same width.
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

// A piece is a range of a root's elements that the device reads and writes whole,
// as a matrix of rows × width, the first skip columns of which are not the view's.
type piece struct {
	from, width, rows int
	skip              uint64
}

func (p piece) elems() int { return p.width * p.rows }

// pieces is what must be read to have a view: itself, if its rows follow each
// other. Columns of a matrix come with what lies between them. They begin where
// the view does, and its last row is apart, for behind it may be the end of the
// root: so views of other columns, the records of other layers, are read alike.
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
		b.fail(b.unsupported("%s is a view whose rows run across those of %s", t, t.Root()))
	}
	if last := list[len(list)-1]; last.from+last.elems() > t.Root().Elems() {
		b.fail(b.unsupported("%s is a view of columns that reaches beyond the last whole row of %s", t, t.Root()))
	}
	return list
}

// read is the elements of a piece of t.
func (b *builder) read(l layout, t *backend.Tensor, p piece, typ libsynapse.DataType) value {
	where, runs := l.placeOf(t.Root(), p)
	sizes := []uint64{uint64(p.width), uint64(p.rows)}
	if runs > 1 {
		sizes = []uint64{uint64(l.pitch), uint64(runs)}
	}
	v := b.show(t, where, typ, scalarSizes(sizes))
	if runs > 1 {
		v = b.slice(v, 0, 0, uint64(l.grain))
	}
	return v
}

// scalarSizes is {1} for what has one element.
func scalarSizes(sizes []uint64) []uint64 {
	if (value{sizes: sizes}).elems() == 1 {
		return []uint64{1}
	}
	return sizes
}

// placeOf is where a piece lies, and in how many padded runs: 1 of a layout
// without padding, and of one run, whose padding is not part of the place.
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

// show is the tensor that holds the newest contents of a place.
func (b *builder) show(t *backend.Tensor, p place, typ libsynapse.DataType, sizes []uint64) value {
	key := shown{p, typ, fmt.Sprint(sizes)}
	if v, ok := b.shown[key]; ok {
		return v
	}
	b.clock++
	v := b.tensor(t.Name, typ, sizes, p)
	b.shown[key] = v
	return v
}

// f32 is an operand's value in F32, its scale applied.
func (b *builder) f32(t *backend.Tensor) value { return b.widened(t, b.in(t)) }

// widened is v, elements of t as they are stored, in F32 with t's scale applied.
func (b *builder) widened(t *backend.Tensor, v value) value {
	if t.DType.IsFP8() {
		// As PyTorch's bridge does (cast_from_fp8): what is stored times the factor.
		if t.Block != backend.PerTensor {
			b.fail(b.unsupported("%s has scales by block (%s), and Gaudi one for a tensor", t, t.Block))
			return v
		}
		return b.node("convert_from_fp8_f32", nil, libsynapse.F32, v.sizes, v, b.in(t.Scale))
	}
	v = b.cast(v, libsynapse.F32)
	if t.Scale == nil {
		return v
	}
	if t.Block != backend.PerTensor {
		b.fail(b.unsupported("%s has scales by block (%s), and Gaudi one for a tensor", t, t.Block))
	}
	return b.mul(v, b.in(t.Scale))
}

// wide is a matrix operand's value in F32, {cols, rows} even where that is one
// element.
func (b *builder) wide(t *backend.Tensor) value {
	return b.reshape(b.f32(t), uint64(t.Cols()), uint64(t.Rows()))
}

// out stores v, as many elements as t has, rounded to nearest and without a scale.
func (b *builder) out(t *backend.Tensor, v value) {
	b.outAs(t, b.cast(v, b.typeOf(t.DType)))
}

// outAs stores v, which may be of another type of the same width: codes as the
// bytes that they are.
func (b *builder) outAs(t *backend.Tensor, v value) {
	l, persistent := b.layouts(t.Root())
	v = b.reshape(v, sizesOf(t)...)
	if !persistent {
		if b.slots[v.index].root != nil { // which another op may overwrite
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
		b.write(l, t, p, b.between(old, b.slice(v, 1, row, row+uint64(p.rows)), p.skip))
		row += uint64(p.rows)
	}
}

// between is old with the columns from skip on replaced by v.
func (b *builder) between(old, v value, skip uint64) value {
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

// write stores the elements v in a piece of t.
func (b *builder) write(l layout, t *backend.Tensor, p piece, v value) {
	where, runs := l.placeOf(t.Root(), p)
	if runs > 1 {
		grain, n := uint64(l.grain), uint64(runs)
		v = b.concat(0, b.reshape(v, grain, n), b.zeros(v.typ, uint64(l.pitch)-grain, n))
	}
	b.put(t, where, b.reshape(v, scalarSizes(v.sizes)...))
}

// put makes v the contents of p: where it can, by having the node that computes
// v write there.
func (b *builder) put(t *backend.Tensor, p place, v value) {
	if !b.canWrite(v, p) {
		v = b.node("identity", nil, v.typ, v.sizes, v)
	}
	b.clock++
	s := &b.slots[v.index]
	s.place, s.moment = p, b.clock
	b.graph.Tensors[v.index].Name = t.Name
	for key := range b.shown {
		if key.overlaps(p) {
			delete(b.shown, key)
		}
	}
	b.shown[shown{p, v.typ, fmt.Sprint(v.sizes)}] = v
}

// canWrite reports whether the node that computes v may write it to p itself. It
// may not if a later node touches what lies there now; and if it reads it, it
// must do so element by element, as it writes.
func (b *builder) canWrite(v value, p place) bool {
	s := b.slots[v.index]
	if s.producer < 0 || s.root != nil {
		return false
	}
	for i, n := range b.graph.Nodes[s.producer:] {
		for _, k := range slices.Concat(n.In, n.Out) {
			if k < 0 || k == v.index || !b.slots[k].overlaps(p) {
				continue
			}
			if i > 0 || b.slots[k].place != p || !elementwise(n.GUID) {
				return false
			}
		}
	}
	return true
}

// word is a float word of step.control, as a scalar; see backend.Control.
func (b *builder) word(control *backend.Tensor, i int) value {
	return b.controlWord(control, i, libsynapse.F32)
}

// intWord is a word of step.control, as a scalar.
func (b *builder) intWord(control *backend.Tensor, i int) value {
	return b.controlWord(control, i, libsynapse.I32)
}

func (b *builder) controlWord(control *backend.Tensor, i int, typ libsynapse.DataType) value {
	words := b.inAs(control, typ)
	return b.reshape(b.slice(words, 0, uint64(i), uint64(i+1)), 1)
}
