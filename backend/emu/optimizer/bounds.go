package optimizer

import (
	"math"
	"slices"

	"octet/backend/emu/simd"
)

// bounds lets the first visit of AdamW skip the blocks of a parameter whose new
// values cannot exceed the maxima already found. The bound is the update itself, applied
// to a block's largest magnitudes and its smallest second moment: each of its operations
// (sum, product, root, quotient) is monotonic, also after rounding.
type bounds struct {
	master, m1, m2, grad *Extents // nil if the parameter has none

	usable bool // in this run
	rule   *simd.AdamW
	inv    *[3]float32 // scale_inv of the codes
	top    [3]float32  // the largest new values found; −1 if none are

	spans [3]int // indices into AdamW.scaled: spans with the maxima of the last run
}

// newBounds returns the bounds of a parameter: none if an extent is missing, or a tensor has
// gaps between its rows, whose elements extents cannot number.
func (t *Param) newBounds() (a bounds) {
	list := [...]*Extents{t.States[0].Extents, t.States[1].Extents, t.States[2].Extents, t.Extents}
	if slices.Contains(list[:], nil) || !contiguous(&t.Grad) {
		return a
	}
	for i := range t.States {
		if !contiguous(&t.States[i].Matrix) {
			return a
		}
	}
	blocks := t.Grad.Rows * t.Grad.Cols / extentBlock
	for _, e := range list {
		if e.max == nil {
			e.max = make([]float32, blocks)
		}
	}
	a.master, a.m1, a.m2, a.grad = list[0], list[1], list[2], list[3]
	if a.m2.min == nil {
		a.m2.min = make([]float32, blocks)
	}
	return a
}

// startAt sets the span to visit first until a run has found maxima.
func (a *bounds) startAt(span int) { a.spans = [3]int{span, span, span} }

// begin prepares a run. Bounds are usable if all extents are known and no coefficient
// or scale_inv is negative or NaN: the update would not be monotonic.
func (a *bounds) begin(r *simd.AdamW, inv *[3]float32) {
	a.rule, a.inv, a.top = r, inv, [3]float32{-1, -1, -1}
	lowest := min(r.Coef, r.Beta1, r.Rest1, r.Beta2, r.Rest2, r.Decay, r.Rate, r.RootScale, r.Epsilon, slices.Min(inv[:]))
	a.usable = a.master != nil && a.master.known && a.m1.known && a.m2.known && a.grad.known && lowest >= 0
}

// found sets the maxima that blocks are compared with, unless one is not finite: then
// no block is skipped.
func (a *bounds) found(amax [3]float32) {
	if isFinite(amax[0]) && isFinite(amax[1]) && isFinite(amax[2]) {
		a.top = amax
	}
}

// bounded reports whether no new value of a block can exceed those found. It is false
// for a partial block at the end, which has no extents.
func (a *bounds) bounded(block int) bool {
	if block == len(a.grad.max) {
		return false
	}
	r := a.rule
	g := a.grad.max[block] * r.Coef
	m := float32(r.Beta1*float32(a.m1.max[block]*a.inv[1])) + float32(r.Rest1*g)
	v := float32(r.Beta2*float32(a.m2.max[block]*a.inv[2])) + float32(r.Rest2*float32(g*g))
	minV := r.Beta2 * float32(a.m2.min[block]*a.inv[2])
	root := float32(math.Sqrt(float64(minV)))
	direction := m / (float32(root*r.RootScale) + r.Epsilon)
	p := float32(float32(a.master.max[block]*a.inv[0])*r.Decay) + float32(r.Rate*direction)
	return p <= a.top[0] && m <= a.top[1] && v <= a.top[2]
}

// unbounded returns the first run of elements in [from, end) that must be visited; if
// there is none, start is stop. A block must begin at from.
func (a *bounds) unbounded(from, end int) (start, stop int) {
	if !a.usable {
		return from, end
	}
	for from < end && a.bounded(from/extentBlock) {
		from += extentBlock
	}
	stop = from
	for stop < end && !a.bounded(stop/extentBlock) {
		stop = min(stop+extentBlock, end)
	}
	return from, stop
}

// noted marks the extents of the stored states known.
func (a *bounds) noted() { a.master.known, a.m1.known, a.m2.known = true, true, true }
