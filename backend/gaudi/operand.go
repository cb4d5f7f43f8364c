package gaudi

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// sizesOf is the shape of an operand as the graph has it.
func sizesOf(t *backend.Tensor) []uint64 {
	if t.Elems() == 1 {
		return []uint64{1}
	}
	return []uint64{uint64(t.Cols()), uint64(t.Rows())}
}

// in is an operand as it is stored, codes without their scale.
func (b *builder) in(t *backend.Tensor) value {
	l, persistent := b.layouts(t.Root())
	if !persistent {
		return b.locals[t]
	}
	v := b.enclosing(l, t, b.typeOf(t.DType))
	if !t.Contiguous() {
		from := uint64(t.Offset % t.LD)
		v = b.slice(v, 0, from, from+uint64(t.Cols()))
	}
	return b.reshape(v, sizesOf(t)...)
}

// enclosing reads the extent of t as a matrix of its width.
func (b *builder) enclosing(l layout, t *backend.Tensor, typ libsynapse.DataType) value {
	p, sizes := b.placeOf(l, t)
	v := b.show(t, p, typ, sizes)
	if runs := p.runs(l); !l.plain() && runs > 1 {
		v = b.slice(v, 0, 0, uint64(l.grain))
	}
	_, width, rows := extent(t)
	return b.reshape(v, matrix(width, rows)...)
}

func matrix(width, rows int) []uint64 {
	if width*rows == 1 {
		return []uint64{1}
	}
	return []uint64{uint64(width), uint64(rows)}
}

// placeOf is where the extent of t lies, and the sizes of a tensor that shows
// it: of a padded layout one run, or several with their padding.
func (b *builder) placeOf(l layout, t *backend.Tensor) (place, []uint64) {
	from, width, rows := extent(t)
	if !t.Contiguous() && t.Offset%t.LD+t.Cols() > t.LD {
		b.fail(b.unsupported("%s is a view whose rows run across those of %s", t, t.Root()))
	}
	if end := from + width*rows; end > l.elems {
		b.fail(b.unsupported("%s is a view of columns that reaches beyond the last whole row of %s", t, t.Root()))
	}
	n := width * rows
	p := place{root: t.Root(), from: l.at(from)}
	switch runs := n / l.grain; {
	case l.plain():
		p.to = p.from + int64(n*l.size)
		return p, matrix(width, rows)
	case runs == 1:
		p.to = p.from + int64(n*l.size)
		return p, matrix(n, 1)
	default:
		p.to = p.from + int64(runs*l.pitch*l.size)
		return p, matrix(l.pitch, runs)
	}
}

// runs is the number of runs in p.
func (p place) runs(l layout) int {
	return int((p.to - p.from + int64((l.pitch-l.grain)*l.size)) / int64(l.pitch*l.size))
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
func (b *builder) f32(t *backend.Tensor) value {
	v := b.in(t)
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
	if !t.Contiguous() {
		old := b.enclosing(l, t, v.typ)
		from, width := uint64(t.Offset%t.LD), uint64(t.LD)
		parts := []value{b.reshape(v, uint64(t.Cols()), uint64(t.Rows()))}
		if from > 0 {
			parts = append([]value{b.slice(old, 0, 0, from)}, parts...)
		}
		if end := from + uint64(t.Cols()); end < width {
			parts = append(parts, b.slice(old, 0, end, width))
		}
		v = b.concat(0, parts...)
	}
	p, sizes := b.placeOf(l, t)
	if runs := p.runs(l); !l.plain() && runs > 1 {
		grain, k := uint64(l.grain), uint64(runs)
		padding := b.zeros(v.typ, uint64(l.pitch)-grain, k)
		v = b.concat(0, b.reshape(v, grain, k), padding)
	}
	b.put(t, p, b.reshape(v, sizes...))
}

// put makes v the contents of p: where it can, by having the node that computes
// v write there.
func (b *builder) put(t *backend.Tensor, p place, v value) {
	if !b.canWrite(v, p) {
		v = b.node("identity", nil, v.typ, v.sizes, v)
	}
	b.clock++
	s := &b.slots[v.index]
	s.place, s.stored, s.moment = p, true, b.clock
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
	l, _ := b.layouts(control.Root())
	words := b.enclosing(l, control, typ)
	return b.reshape(b.slice(words, 0, uint64(i), uint64(i+1)), 1)
}
