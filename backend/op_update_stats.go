package backend

import (
	"fmt"

	"octet/fp8"
)

// UpdateStats describes the update that an AdamW with the same operands and coefficients is about
// to make, and changes none of them. For each listed tensor, with g = Coef·Grad + L2·p, the new
// moments m and v before rounding, v̂ = v/(1 − β2ᵗ) and t = Step:
//
//	MeanSquares = mean(g²/max(v̂, ε²))
//	Largest     = max |update| / learning rate, weight decay aside
//	ZeroV       = share of the elements whose stored v is 0 while their stored m is not
//
// √MeanSquares is the RMS of StableAdamW (arXiv 2304.13013), whose debiased moments equal m̂ and v̂ of
// AdamW's bias correction. An RMS far above 1 says that the gradients have outgrown the second
// moments, so that the update is too large. AdamW clips it by MeanSquares.
//
// ZeroV counts the values before this update, dequantized: elements whose v has underflowed divide
// their m by this step's gradient alone. All outputs are 0 if Skip is set.
//
// If each tensor is one of Parts equal parts of a larger tensor, MeanSquares and ZeroV are this
// part's share: the sum over the ranks is that of the whole. Largest takes their maximum.
type UpdateStats struct {
	Grad   []*Tensor `op:"in"`
	Master []*Tensor `op:"in"`
	M1     []*Tensor `op:"in"`
	M2     []*Tensor `op:"in"`
	Step   *Tensor   `op:"in"` // I32 [1], after StepGate
	Coef   *Tensor   `op:"in"`
	Skip   *Tensor   `op:"in"`

	MeanSquares *Tensor `op:"out"` // F32 [len]
	Largest     *Tensor `op:"out"` // F32 [len]
	ZeroV       *Tensor `op:"out"` // F32 [len]

	Beta1, Beta2, Eps, L2 float32
	EpsForm               EpsForm
	Parts                 int // 1 for whole tensors
}

func (o *UpdateStats) check() error {
	var c checker
	c.moments(o.Grad, o.Master, o.M1, o.M2)
	if c.err != nil {
		return c.err
	}
	c.coefficients(o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm)
	c.ints("Step", o.Step, 1)
	c.scalar("Coef", o.Coef)
	c.ints("Skip", o.Skip, 1)
	c.vector("MeanSquares", o.MeanSquares, len(o.Grad))
	c.vector("Largest", o.Largest, len(o.Grad))
	c.vector("ZeroV", o.ZeroV, len(o.Grad))
	c.that(o.Parts > 0, "Parts is %d, expected 1 or more", o.Parts)
	return c.err
}

// moments checks the lists of AdamW: gradients, master weights and moments.
func (c *checker) moments(grad, master, m1, m2 []*Tensor) {
	n := len(grad)
	c.that(n > 0, "the list of tensors is empty")
	for _, list := range []struct {
		name string
		ts   []*Tensor
	}{{"Master", master}, {"M1", m1}, {"M2", m2}} {
		c.that(len(list.ts) == n, "%s has %d tensors, Grad has %d", list.name, len(list.ts), n)
	}
	if c.err != nil {
		return
	}
	for i, g := range grad {
		c.gradient("Grad", g)
		c.wide("Master", master[i])
		c.that(master[i].Block == PerTensor, "Master is %s with blocks of %s: only moments take block scales", master[i], master[i].Block)
		c.state("Master", master[i], g)
		c.state("M1", m1[i], g)
		c.state("M2", m2[i], g)
	}
}

// gradient checks a gradient, which NaN must reach and which has one scale at most.
func (c *checker) gradient(name string, g *Tensor) {
	c.that(g.DType.HoldsMoments(), "%s is %s, expected a floating-point format that has NaN", name, g)
	c.hasScale(name, g)
	c.that(g.Block == PerTensor, "%s is %s with blocks of %s: a gradient takes one scale", name, g, g.Block)
}

// hasScale checks that a gradient or an optimizer state t has a scale if and only if its format takes one.
func (c *checker) hasScale(name string, t *Tensor) {
	plain := t.DType == fp8.F32 || t.DType == fp8.BF16
	c.that(plain == (t.Scale == nil), "%s is %s: F32 and BF16 take no scale, every other format needs one", name, t)
}

// state checks a master weight or a moment t with gradient g.
func (c *checker) state(name string, t, g *Tensor) {
	c.that(t.DType.HoldsMoments(), "%s is %s, expected a floating-point format that has NaN", name, t)
	c.stored(name, t, "Grad", g)
	c.that(t.Block == PerTensor || t.Cols() == g.Cols(), "%s is %s with blocks of %s, Grad has rows of another length: %s", name, t, t.Block, g)
	c.that(!t.Expand || t.Block != PerTensor && t.DType.IsQuantized(), "%s is %s and expanded, which takes FP8 and block scales", name, t)
}

// stored checks the size and the scales of an optimizer state t that x updates.
func (c *checker) stored(name string, t *Tensor, from string, x *Tensor) {
	c.that(t.Elems() == x.Elems() && t.Contiguous(), "%s is %s, %s is %s", name, t, from, x)
	c.hasScale(name, t)
	if t.Block != PerTensor {
		c.that(t.Block.Rows == 1 && t.Block.Cols > 0, "%s is %s with blocks of %s, expected blocks within a row (1xN)", name, t, t.Block)
		c.that(t.Scale != nil, "%s is %s with blocks of %s, but has no scale", name, t, t.Block)
	}
}

// checkExpanded refuses expanded tensors in ops that would read their scales as scale_inv.
func checkExpanded(op Op, operands []Operand) error {
	switch op.(type) {
	case *AdamW, *UpdateStats:
		return nil
	}
	for _, o := range operands {
		if o.Tensor.Expand {
			return fmt.Errorf("%s: %s is expanded: only AdamW and UpdateStats take such a tensor", o.Field, o.Tensor)
		}
	}
	return nil
}

// coefficients checks those of AdamW.
func (c *checker) coefficients(beta1, beta2, eps, l2 float32, form EpsForm) {
	c.that(form <= EpsCorrected, "unknown form of eps %d", uint8(form))
	c.that(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas are %v and %v, expected [0, 1)", beta1, beta2)
	c.that(l2 >= 0, "L2 is %v, expected 0 (off) or more", l2)
	c.that(eps > 0, "Eps is %v, expected a positive number", eps)
}
