package nn

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// This file chooses the scale that all ranks give a gradient ([recipe.ReduceScale]). FP8-LM's
// (arXiv 2310.18313) is, with a the largest amax of all ranks,
//
//	s = 2^⌊log2 μ⌋ · 2^⌊log2(448/a)⌋
//
// Each rank casts once, from FP32. μ leaves room for the sum of the codes: with 1/N no sum
// saturates. After an update a tensor with more than maxAtLargest of its sums at the largest
// value halves its μ, another lets it grow ([backend.StepMu]).

// maxAtLargest is the share of a tensor's sums at the largest value that does not halve μ.
const maxAtLargest = 1e-5

// shareScale replaces the amax that u reads, of this rank's gradient of w, by the maximum over all
// ranks, and applies recipe.Reduce.Scale.
func (p *Pass) shareScale(u *backend.UpdateScale, w *Param) {
	if p.reduce.Scale == recipe.RankScale {
		return
	}
	// An amax that is not finite on any rank makes scale_inv NaN on all.
	p.Program.Phase(backend.Comm).Add(&backend.AllReduce{X: u.History, Reduce: backend.ReduceMax})
	ranks := float64(p.Ranks)
	switch p.reduce.Scale {
	case recipe.AutoMu:
		u.Factor = w.mu
	case recipe.RMSMu:
		u.Limit *= fp8.Factored(1, float32(1/math.Sqrt(ranks)), true)
	case recipe.PreScale:
		u.Limit, u.Fixed, u.Pow2 = 1, true, false
	case recipe.PostScale:
		u.Limit, u.Fixed, u.Pow2 = float32(ranks), true, false
	}
}

// declareMu declares μ and the counts that move it, of the weights whose gradients share a
// scale, sorted by the number of elements.
func (b *Base) declareMu() {
	if b.Recipe.Reduce.Scale != recipe.AutoMu {
		return
	}
	for _, p := range b.Params {
		if p.Quantized && p.Sharded() {
			b.sharing = append(b.sharing, p)
		}
	}
	n := len(b.sharing)
	if n == 0 {
		return
	}
	slices.SortStableFunc(b.sharing, func(p, q *Param) int { return cmp.Compare(p.Elems(), q.Elems()) })
	b.Mu = b.Vars.Tensor(backend.State, "reduce.mu", fp8.F32, n)
	b.atMax = b.Vars.Tensor(backend.Stash, "reduce.at_max", fp8.F32, n)
	for i, p := range b.sharing {
		p.mu = b.Mu.Slice(p.Name+".grad.mu", i, 1)
		p.atMax = b.atMax.Slice(p.Name+".grad.at_max", i, 1)
	}
}

// StepMu appends the step of μ to an update, one op for weights of equal size. Nothing changes if
// the tensor skip is 1.
func (b *Base) StepMu(p *Pass, skip *backend.Tensor) {
	if b.Mu == nil {
		return
	}
	p.comm().Add(&backend.AllReduce{X: b.atMax})
	for from := 0; from < len(b.sharing); {
		to, elems := from, b.sharing[from].Elems()
		for to < len(b.sharing) && b.sharing[to].Elems() == elems {
			to++
		}
		p.Add(&backend.StepMu{
			AtMax: b.atMax.Slice(fmt.Sprintf("reduce.at_max.%d", from), from, to-from),
			Mu:    b.Mu.Slice(fmt.Sprintf("reduce.mu.%d", from), from, to-from),
			Skip:  skip, Limit: float32(maxAtLargest * float64(elems)),
		})
		from = to
	}
}
