package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// The largest tensors of a long sequence are as wide as the feed-forward layer. They
// are stored in two bytes for each number, or one, and fit; but the elementwise ops
// compute on them in F32, where 131,072 tokens of LLaMA 2 7B take 5.8 GB. Those ops are
// lowered to one for each of some ranges of rows, which changes no bit of the result.
// Nothing else of a model that fits into a Gaudi's memory is as large: logits come in
// chunks (package nn), and of the gradients of weights only those of a vocabulary of
// 262,144 at a width above 4,096 exceed 4 GiB.

// rows is a range of rows.
type rows struct {
	from, n int
	all     bool // the tensors stay as they are
}

// rowStep is what ranges begin at multiples of: whatever the width and the format, they
// begin at aligned addresses then.
const rowStep = 256

// rangesOf is all rows of a matrix, in the fewest ranges of which none takes more than
// limit bytes in F32, and in ranges of one length as far as can be.
func rangesOf(t *backend.Tensor, limit int) []rows {
	total, most := t.Rows(), limit/4/t.Cols()
	if total <= most {
		return []rows{{0, total, true}}
	}
	steps := (total + rowStep - 1) / rowStep
	count := (steps + max(1, most/rowStep) - 1) / max(1, most/rowStep)
	size := (steps + count - 1) / count * rowStep
	var list []rows
	for from := 0; from < total; from += size {
		list = append(list, rows{from: from, n: min(size, total-from)})
	}
	return list
}

// of is these rows of a matrix.
func (p rows) of(t *backend.Tensor) *backend.Tensor {
	if p.all {
		return t
	}
	return t.RowRange(p.from, p.n)
}

// ofVector is the elements of an optional vector that belong to these rows.
func (p rows) ofVector(t *backend.Tensor) *backend.Tensor {
	if t == nil || p.all {
		return t
	}
	return t.Slice(fmt.Sprintf("%s[%d:%d]", t.Name, p.from, p.from+p.n), p.from, p.n)
}

// ofCasts are the casts of these rows. Their amaxes end up in the same records.
func (p rows) ofCasts(casts []backend.Cast) []backend.Cast {
	list := make([]backend.Cast, len(casts))
	for i, c := range casts {
		c.Out = p.of(c.Out)
		list[i] = c
	}
	return list
}

// byRows adds an elementwise op, in ranges of its rows where a whole value takes more
// than limit bytes. It reports whether it is one that it knows.
func byRows(r *backend.Rewriter, n *backend.Node, limit int) bool {
	switch o := n.Op.(type) {
	case *backend.SwiGLU:
		for _, p := range rangesOf(o.Up, limit) {
			part := *o
			part.Up, part.Gate, part.RowFactor = p.of(o.Up), p.of(o.Gate), p.ofVector(o.RowFactor)
			part.Out = p.ofCasts(o.Out)
			r.Add(n, &part)
		}
	case *backend.SwiGLUGrad:
		for _, p := range rangesOf(o.Up, limit) {
			part := *o
			part.DOut, part.Up, part.Gate = p.of(o.DOut), p.of(o.Up), p.of(o.Gate)
			part.RowFactor = p.ofVector(o.RowFactor)
			part.DUp, part.DGate = p.ofCasts(o.DUp), p.ofCasts(o.DGate)
			r.Add(n, &part)
		}
	case *backend.SwiGLUAmax:
		ranges := rangesOf(o.Up, limit)
		out, up := part(r, o.Out, ranges), part(r, o.UpOut, ranges)
		for i, p := range ranges {
			part := *o
			part.Up, part.Gate = p.of(o.Up), p.of(o.Gate)
			part.Out, part.UpOut = out.of(i), up.of(i)
			r.Add(n, &part)
		}
		out.join(r, n)
		up.join(r, n)
	case *backend.Amax:
		ranges := rangesOf(o.X, limit)
		out := part(r, o.Out, ranges)
		for i, p := range ranges {
			r.Add(n, &backend.Amax{X: p.of(o.X), Out: out.of(i)})
		}
		out.join(r, n)
	case *backend.Quantize:
		for _, p := range rangesOf(o.X, limit) {
			part := *o
			part.X, part.RowScale, part.Out = p.of(o.X), p.ofVector(o.RowScale), p.ofCasts(o.Out)
			r.Add(n, &part)
		}
	case *backend.Activation:
		for _, p := range rangesOf(o.X, limit) {
			part := *o
			part.X, part.Out = p.of(o.X), p.ofCasts(o.Out)
			r.Add(n, &part)
		}
	case *backend.ActivationGrad:
		for _, p := range rangesOf(o.X, limit) {
			part := *o
			part.DOut, part.X, part.DX = p.of(o.DOut), p.of(o.X), p.ofCasts(o.DX)
			r.Add(n, &part)
		}
	default:
		return false
	}
	return true
}

// A parted result is the maxima of several ranges of rows, which are to become one.
type parted struct{ parts, out *backend.Tensor }

// part makes room for the maxima of ranges. Of one they are the result.
func part(r *backend.Rewriter, out *backend.Tensor, ranges []rows) parted {
	if out == nil || len(ranges) == 1 {
		return parted{out: out}
	}
	return parted{r.Temp(out.Name+".parts", fp8.F32, len(ranges), out.Elems()), out}
}

// of is where the maxima of a range go.
func (p parted) of(i int) *backend.Tensor {
	if p.parts == nil {
		return p.out
	}
	return p.parts.RowRange(i, 1)
}

// join adds the maximum of all.
func (p parted) join(r *backend.Rewriter, n *backend.Node) {
	if p.parts != nil {
		r.Add(n, &backend.Amax{X: p.parts, Out: p.out})
	}
}
