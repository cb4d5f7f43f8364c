package attention

import (
	"math"

	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
)

// Where a kernel multiplies pairs of BF16 faster than FP32 (gemm/pairs.go), an FP32 unit
// multiplies Q by Kᵀ, and dO by Vᵀ, in pairs: with the same bits, and half as many steps along
// the head size. The other matrix products have FP32 operands.

// pairOperand is an operand of multiplyPairs: a left one, or a right one that is loaded
// transposed. It is loaded as pairs, as an operand of matMul, or as both.
type pairOperand struct {
	operand
	pairs      operand
	transposed bool
	from       rows
	isPairs    bool // pairs is loaded
	isLoaded   bool // operand is loaded
}

// The minimum biased exponents of values that are multiplied as pairs: those of two operands
// add up to gemm.MinExponentSum. dO may be small, so V, its partner, must be larger.
const (
	minExponent    = gemm.MinExponentSum / 2
	gradientMargin = 30
	minOfGradients = minExponent - gradientMargin
	minOfValues    = minExponent + gradientMargin
)

// takePairOperand takes a pairOperand for n rows of dim elements from scratch; its operand is
// taken by the caller.
func (t *tiles) takePairOperand(c *carver, o operand, n, dim int, transposed bool) pairOperand {
	f := pairOperand{operand: o, transposed: transposed}
	if t.pairs == nil {
		return f
	}
	if transposed {
		f.pairs = t.takeRight(c, n, pool.CeilDiv(dim, 2))
	} else {
		f.pairs = t.takeLeft(c, n, pool.CeilDiv(dim, 2))
	}
	return f
}

// loadPairs loads f as pairs and reports true, unless the unit has no pairs or values below
// the exponent forbid them.
func (t *tiles) loadPairs(f *pairOperand, r rows, exponent int) bool {
	f.from, f.isLoaded = r, false
	f.isPairs = t.pairs != nil && isBF16(r.m) && t.smallestExponent(r) >= exponent
	if !f.isPairs {
		return false
	}
	if !f.transposed {
		t.decodePairs(sheet{f.pairs.x, f.pairs.step}, r)
		return true
	}
	for i := 0; i < r.n; i += stageKeys {
		part := r
		part.row, part.n = r.row+i, min(stageKeys, r.n-i)
		t.decodePairs(t.stage, part)
		t.transpose(f.pairs.x[i:], f.pairs.stepK, t.stage, part.n, pool.CeilDiv(r.dim, 2))
	}
	return true
}

// loadBoth is loadPairs and loads the rows as a right operand too, with them along k. It also
// loads f as an operand of matMul, unless f is transposed and was loaded as pairs.
func (t *tiles) loadBoth(f *pairOperand, right operand, r rows, exponent int) {
	switch pairs := t.loadPairs(f, r, exponent); {
	case !f.transposed:
		t.load(r, f.operand, right, operand{})
	case pairs:
		t.load(r, operand{}, right, operand{})
		return
	default:
		t.load(r, operand{}, right, f.operand)
	}
	f.isLoaded = true
}

// loadOperand loads f as an operand of matMul, if it is not loaded yet.
func (t *tiles) loadOperand(f *pairOperand) {
	if f.isLoaded {
		return
	}
	if f.transposed {
		t.load(f.from, operand{}, operand{}, f.operand)
	} else {
		t.load(f.from, f.operand, operand{}, operand{})
	}
	f.isLoaded = true
}

// smallestExponent returns the smallest biased exponent in rows, zeros excepted.
func (t *tiles) smallestExponent(r rows) int {
	smallest := uint16(math.MaxUint16)
	for i := range r.n {
		smallest = t.pairs.Smallest(smallest, r.m.U16[(r.row+i)*r.m.LD+r.col:][:r.perRow*r.dim])
	}
	return (int(smallest) + 1) >> 7
}

// decodePairs writes rows as words of pairs.
func (t *tiles) decodePairs(dst sheet, r rows) {
	for g := range r.perRow {
		t.pairs.Decode(dst.x[g*dst.ld:], r.perRow*dst.ld, t.nr, r.m.Sub(r.row, r.col+g*r.dim), r.n, r.dim, true)
	}
}

// multiplyPairs is matMul without add of a, from its row i on, by b, for heads of dim.
func (t *tiles) multiplyPairs(c sheet, rows, cols, dim int, a *pairOperand, i int, b *pairOperand) {
	if !a.isPairs || !b.isPairs {
		t.loadOperand(a)
		t.loadOperand(b)
		t.matMul(c, rows, cols, dim, &a.operand, i, &b.operand, 0, false)
		return
	}
	t.prefetchNext()
	x, y, k := &a.pairs, &b.pairs, pool.CeilDiv(dim, 2)
	if t.pairsInPlace == nil {
		t.multiply(t.pairs.Multiply, c, rows, cols, k, x.at(i, 0), *y, false)
		return
	}
	t.pairsInPlace(k, rows, cols, &x.x[i*x.step], x.step, x.stepK, &y.x[0], y.stepK, &c.x[0], c.ld, false)
}
