package attention

import (
	"math"

	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// Where a kernel multiplies pairs of BF16 faster than FP32 (gemm/pairs.go), an FP32 unit
// multiplies queries by keys, and gradients of results by values, in pairs: with the same
// bits, and half as many steps along the head size. The other products have FP32 operands.

// factor is an operand of multiplyPairs: a left one, or a right one that is loaded transposed.
// It is loaded as pairs, as an operand of matMul, or as both.
type factor struct {
	operand
	words      operand
	transposed bool
	from       rows
	isPairs    bool // words is loaded
	isLoaded   bool // operand is loaded
}

// The minimum biased exponents of values that are multiplied as pairs, so that their sum is
// gemm.ExactPairs. Gradients are smaller than other values.
const (
	minExponent    = gemm.ExactPairs / 2
	gradientGap    = 30
	minOfGradients = minExponent - gradientGap
	minOfValues    = minExponent + gradientGap
)

// takeFactor takes a factor for n rows of dim elements from scratch; its operand is taken by
// the caller.
func (t *tiles) takeFactor(c *carver, o operand, n, dim int, transposed bool) factor {
	f := factor{operand: o, transposed: transposed}
	switch words := pool.CeilDiv(dim, 2); {
	case t.pairs == nil:
	case transposed:
		f.words = t.takeRight(c, n, words)
	default:
		f.words = t.takeLeft(c, n, words)
	}
	return f
}

// loadPairs loads f as pairs and reports true, unless the unit has no pairs or values below
// the exponent forbid them.
func (t *tiles) loadPairs(f *factor, r rows, exponent int) bool {
	f.from, f.isLoaded = r, false
	f.isPairs = t.pairs != nil && r.m.DType == fp8.BF16 && r.m.Scale == nil && t.smallestExponent(r) >= exponent
	if !f.isPairs {
		return false
	}
	if !f.transposed {
		t.decodePairs(sheet{f.words.x, f.words.step}, r)
		return true
	}
	for i := 0; i < r.n; i += stageKeys {
		part := r
		part.row, part.n = r.row+i, min(stageKeys, r.n-i)
		t.decodePairs(t.stage, part)
		t.transpose(f.words.x[i:], f.words.stepK, t.stage, part.n, pool.CeilDiv(r.dim, 2))
	}
	return true
}

// loadBoth is loadPairs and loads the rows as a right operand too, with them along k. If they are
// loaded once, also f is loaded as an operand of matMul.
func (t *tiles) loadBoth(f *factor, right operand, r rows, exponent int) {
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

// loadFactor loads f as an operand of matMul, if it is not loaded yet.
func (t *tiles) loadFactor(f *factor) {
	switch {
	case f.isLoaded:
	case f.transposed:
		t.load(f.from, operand{}, operand{}, f.operand)
	default:
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
func (t *tiles) multiplyPairs(c sheet, rows, cols, dim int, a *factor, i int, b *factor) {
	if !a.isPairs || !b.isPairs {
		if !a.isLoaded || !b.isLoaded {
			t.loadFactor(a)
			t.loadFactor(b)
		}
		t.matMul(c, rows, cols, dim, &a.operand, i, &b.operand, 0, false)
		return
	}
	t.prefetchNext()
	x, y, k := &a.words, &b.words, pool.CeilDiv(dim, 2)
	if t.pairsInPlace == nil {
		t.multiply(t.pairs.Multiply, c, rows, cols, k, x.at(i, 0), *y, false)
		return
	}
	t.pairsInPlace(k, rows, cols, &x.x[i*x.step], x.step, x.stepK, &y.x[0], y.stepK, &c.x[0], c.ld, false)
}
