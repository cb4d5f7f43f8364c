package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// The largest tensors of a long sequence have the width of the feed-forward layer. Stored
// in one or two bytes per element they fit, but elementwise ops compute in F32, where
// 131,072 tokens of LLaMA 2 7B take 5.8 GB. So these ops are lowered to several, one per
// range of rows, which changes no bit of the result. Nothing else is as large in a model
// that fits into a Gaudi's memory: logits come in chunks (package nn), and a weight
// gradient exceeds 4 GiB only for a vocabulary of 262,144 at a width above 4,096.

// rows is a range of rows.
type rows struct {
	from, n int
	all     bool // no split
}

// rowStep is the granularity of ranges. It makes their addresses aligned for every width
// and format.
const rowStep = 256

// rangesOf divides the rows of a matrix into the fewest ranges of at most limit bytes in
// F32, but at least rowStep rows, all of equal length except for the last.
func rangesOf(t *backend.Tensor, limit int) []rows {
	total, maxRows := t.Rows(), limit/4/t.Cols()
	if total <= maxRows {
		return []rows{{0, total, true}}
	}
	steps := (total + rowStep - 1) / rowStep
	count := (steps + max(1, maxRows/rowStep) - 1) / max(1, maxRows/rowStep)
	size := (steps + count - 1) / count * rowStep
	var list []rows
	for from := 0; from < total; from += size {
		list = append(list, rows{from: from, n: min(size, total-from)})
	}
	return list
}

// of returns these rows of a matrix.
func (p rows) of(t *backend.Tensor) *backend.Tensor {
	if p.all {
		return t
	}
	return t.RowRange(p.from, p.n)
}

// ofVector returns these elements of an optional vector.
func (p rows) ofVector(t *backend.Tensor) *backend.Tensor {
	if t == nil || p.all {
		return t
	}
	return t.Slice(fmt.Sprintf("%s[%d:%d]", t.Name, p.from, p.from+p.n), p.from, p.n)
}

// ofCasts returns the casts of these rows. Their amaxes are folded into the same records.
func (p rows) ofCasts(casts []backend.Cast) []backend.Cast {
	list := make([]backend.Cast, len(casts))
	for i, c := range casts {
		c.Out = p.of(c.Out)
		list[i] = c
	}
	return list
}

// byRows adds an elementwise op for each range of rows of its matrices. Casts are neither
// transposed nor scaled by block: gaudi refuses both.
func (l lowering) byRows(op backend.Op) {
	x := l.node.Operands()[0].Tensor
	for _, p := range rangesOf(x, l.limit) {
		l.add(backend.ReplaceOperands(op, func(t *backend.Tensor) *backend.Tensor {
			if t.Rows() != x.Rows() { // the scale or amax of a cast
				return t
			}
			return p.of(t)
		}))
	}
}

// partialMax is a maximum over rows, computed from the maxima of several ranges.
type partialMax struct{ parts, out *backend.Tensor }

// partialMax allocates a temp for the maxima of ranges. A single range writes the result
// itself.
func (l lowering) partialMax(out *backend.Tensor, ranges []rows) partialMax {
	if out == nil || len(ranges) == 1 {
		return partialMax{out: out}
	}
	return partialMax{l.rewriter.Temp(out.Name+".parts", fp8.F32, len(ranges), out.Elems()), out}
}

// of returns the tensor for the maxima of a range.
func (p partialMax) of(i int) *backend.Tensor {
	if p.parts == nil {
		return p.out
	}
	return p.parts.RowRange(i, 1)
}

// join adds the op that reduces the partial maxima.
func (p partialMax) join(l lowering) {
	if p.parts != nil {
		l.add(&backend.Amax{X: p.parts, Out: p.out})
	}
}
