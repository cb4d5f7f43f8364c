package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/simd"
)

// adamBounds spares the first visit of AdamW the blocks of a parameter in which no new
// value can be larger than those found already. What bounds them is the update itself,
// of a block's largest magnitudes and its smallest second moment: all that it consists
// of, sums, products, a root and a quotient, keeps order when it rounds.
type adamBounds struct {
	master, m1, m2, grad *extents // nil if the parameter has none

	usable bool // in this run
	rule   *simd.AdamW
	inv    *[3]float32 // the factors of the codes
	top    [3]float32  // the largest new values found; −1 if any block may hold larger ones

	spans [3]int // of the first visit: where the last run found them
}

// newBounds returns the adamBounds of a parameter.
func (b *binder) newBounds(master, m1, m2, grad *backend.Tensor) (a adamBounds) {
	var list [4]*extents
	blocks := grad.Elems() / extentBlock
	for i, t := range []*backend.Tensor{master, m1, m2, grad} {
		list[i] = b.extents[t] // of a view there are none, so that t has no gaps
		if list[i] == nil {
			return a
		}
	}
	for _, e := range list {
		if e.most == nil {
			e.most = make([]float32, blocks)
		}
	}
	a.master, a.m1, a.m2, a.grad = list[0], list[1], list[2], list[3]
	if a.m2.least == nil {
		a.m2.least = make([]float32, blocks)
	}
	return a
}

// startAt is the first span of the parameter, where nothing was found yet.
func (a *adamBounds) startAt(span int) { a.spans = [3]int{span, span, span} }

// begin prepares a run in which nothing is found yet. An update with a negative factor
// does not keep order.
func (a *adamBounds) begin(r *simd.AdamW, inv *[3]float32) {
	a.rule, a.inv, a.top = r, inv, [3]float32{-1, -1, -1}
	least := min(r.Coef, r.Beta1, r.Rest1, r.Beta2, r.Rest2, r.Decay, r.Rate, r.RootFactor, r.Epsilon, slices.Min(inv[:]))
	a.usable = a.master != nil && a.master.known && a.m1.known && a.m2.known && a.grad.known && least >= 0
}

// found sets what the blocks are compared with. Where values are not finite bounds say
// nothing.
func (a *adamBounds) found(amax [3]float32) {
	if isFinite(amax[0]) && isFinite(amax[1]) && isFinite(amax[2]) {
		a.top = amax
	}
}

// holds reports whether a block has no new value above those found. Of the last
// elements, if they are no whole block, nothing is known.
func (a *adamBounds) holds(block int) bool {
	if block == len(a.grad.most) {
		return false
	}
	r := a.rule
	g := a.grad.most[block] * r.Coef
	m := float32(r.Beta1*float32(a.m1.most[block]*a.inv[1])) + float32(r.Rest1*g)
	v := float32(r.Beta2*float32(a.m2.most[block]*a.inv[2])) + float32(r.Rest2*float32(g*g))
	least := r.Beta2 * float32(a.m2.least[block]*a.inv[2])
	root := float32(math.Sqrt(float64(least)))
	direction := m / (float32(root*r.RootFactor) + r.Epsilon)
	p := float32(float32(a.master.most[block]*a.inv[0])*r.Decay) + float32(r.Rate*direction)
	return p <= a.top[0] && m <= a.top[1] && v <= a.top[2]
}

// open finds the first elements of [from, end) that must be visited; none if first is
// end. A block begins at from.
func (a *adamBounds) open(from, end int) (first, behind int) {
	if !a.usable {
		return from, end
	}
	for from < end && a.holds(from/extentBlock) {
		from += extentBlock
	}
	behind = from
	for behind < end && !a.holds(behind/extentBlock) {
		behind = min(behind+extentBlock, end)
	}
	return from, behind
}

// noted makes the extents of what was stored known.
func (a *adamBounds) noted() { a.master.known, a.m1.known, a.m2.known = true, true, true }
