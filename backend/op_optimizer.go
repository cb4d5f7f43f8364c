package backend

import (
	"slices"

	"octet/fp8"
)

// SumSquares is Out = Σ over all tensors of Σ X²: the gradient norm, squared. With InverseNorm
// it is 1/√Σ, which is 1 for zeros: the scale_inv that reads X as a tensor of norm 1. A gradient has
// one of the formats of AdamW.Grad.
type SumSquares struct {
	X   []*Tensor `op:"in"`
	Out *Tensor   `op:"out"`

	InverseNorm bool
}

func (o *SumSquares) check() error {
	var c checker
	for _, x := range o.X {
		c.gradient("X", x)
	}
	c.scalar("Out", o.Out)
	return c.err
}

// StepGate decides on the device whether the update happens. Skip is set if SumSquares
// or any recorded amax is not finite. Step counts the updates that happened, for the
// bias corrections.
//
//	GradNorm = √SumSquares / LossScale
//	Coef     = min(1, Clip/(GradNorm + 1e-6)) / LossScale     as torch.nn.utils.clip_grad_norm_; 1/LossScale if Clip is 0
//
// LossScale, a power of two by which the loss's gradient was multiplied, is 1 if nil. After
// that StepGate chooses the next one, as torch.amp.GradScaler does: half of it if Skip is
// set, twice after each GrowthSteps updates without a skip between them, counted in
// GoodSteps. It stays between 2^-126 and 2^126, so that it and its inverse are normal.
type StepGate struct {
	SumSquares *Tensor `op:"in"`
	Amax       *Tensor `op:"in,optional"`    // F32 [n]
	Step       *Tensor `op:"inout"`          // I32 [1]
	GradNorm   *Tensor `op:"out"`            // F32 [1]
	Coef       *Tensor `op:"out"`            // F32 [1]
	Skip       *Tensor `op:"out"`            // I32 [1]
	LossScale  *Tensor `op:"inout,optional"` // F32 [1]
	GoodSteps  *Tensor `op:"inout,optional"` // I32 [1], given with LossScale

	Clip        float32
	GrowthSteps int // 0 without LossScale
}

// The limits of StepGate's LossScale.
const (
	MinLossScale = 0x1p-126
	MaxLossScale = 0x1p126
)

func (o *StepGate) check() error {
	var c checker
	c.scalar("SumSquares", o.SumSquares)
	if o.Amax != nil {
		c.vector("Amax", o.Amax, o.Amax.Elems())
	}
	c.ints("Step", o.Step, 1)
	c.scalar("GradNorm", o.GradNorm)
	c.scalar("Coef", o.Coef)
	c.ints("Skip", o.Skip, 1)
	c.that((o.LossScale == nil) == (o.GoodSteps == nil), "LossScale and GoodSteps belong together: give both or neither")
	if o.LossScale != nil && o.GoodSteps != nil {
		c.scalar("LossScale", o.LossScale)
		c.ints("GoodSteps", o.GoodSteps, 1)
		c.that(o.GrowthSteps > 0, "GrowthSteps is %d, expected a positive number", o.GrowthSteps)
	} else {
		c.that(o.GrowthSteps == 0, "GrowthSteps is %d, but belongs to a LossScale", o.GrowthSteps)
	}
	c.that(o.Clip >= 0, "Clip is %v, expected 0 (off) or more", o.Clip)
	return c.err
}

// EpsForm selects where Adam's ε is added.
type EpsForm uint8

const (
	// EpsHat: lr·√(1−β2ᵗ)/(1−β1ᵗ) · m/(√v + ε), the paper's code.
	EpsHat EpsForm = iota
	// EpsCorrected: lr/(1−β1ᵗ) · m/(√v/√(1−β2ᵗ) + ε), as in PyTorch.
	EpsCorrected
)

func (e EpsForm) String() string { return [...]string{"hat", "corrected"}[e] }

// AdamW updates lists of tensors; the entries with one index belong together. Master
// and moments may be F32 or BF16, or F16 with a scale, moments also FP8. MasterScale,
// M1Scale and M2Scale list their scales (nil for F32 and BF16). A gradient has the formats of a
// moment and one scale. With g = Coef·Grad + L2·p:
//
//	m = β1·m + (1−β1)·g       v = β2·v + (1−β2)·g²
//	p = p·(1 − lr·WeightDecay) − step(m, v)          see EpsForm; t is Step
//
// With ClipRMS, tensor i takes lr/max(1, √MeanSquares[i]/ClipRMS) in place of lr (StableAdamW).
//
// Scaled tensors get the scale limit/amax of their new values, rounded down to a
// power of two if Pow2. This takes two passes: the first computes only the amaxes, the
// second recomputes the values from the old codes and writes codes and scales. An amax
// of 0 keeps the scale. A moment may have block scales within its rows (Tensor.Block
// 1×n; torchao's n is 256), which takes one pass. A row that is not a multiple of n
// ends with a shorter block; torchao divides the flattened tensor instead.
//
// Blocks of an FP8 moment may be expanded (Tensor.Expand); fp8.ExpansionOf gives the equations.
// The smallest magnitude of such a block does not underflow in E4M3. A block that is not finite keeps its
// expansion. Source: COAT's kernel fp8_adamw_expand (NVlabs/COAT).
//
// The step uses the new m and v before rounding. Stochastic rounding draws its bits
// from the stream named after the tensor, like a Cast without Tokens. With FloorV, a
// positive v that would be stored as 0 is stored as the format's smallest positive
// value. A moment without a scale may flush to 0 below 2^-100. If Skip is set, nothing
// changes.
//
// With Shard, each tensor is this rank's equal part of a larger tensor: element i of n
// has the random bits of element Control.Rank·n + i. With Split, the ranks of a group have the parts,
// others copies of them: it is Split.Index(Control.Rank)·n + i. The scale belongs to the whole
// tensor, so the ranks reduce its amax to their maximum between the two passes. The
// passes are then two ops over the same tensors, the first with AmaxOnly, the second
// with AmaxGiven; no op between them may write those tensors. Between them, element
// 3i+k of Amaxes is the amax of tensor i's master (k = 0), first (1) or second moment
// (2), if that has one scale. All else in Amaxes is undefined.
type AdamW struct {
	Grad        []*Tensor `op:"in"`                // F32, BF16, F16 or FP8 with NaN
	Master      []*Tensor `op:"inout,in=AmaxOnly"` // F32 or BF16, or F16 with a scale
	M1          []*Tensor `op:"inout,in=AmaxOnly"` // F32, BF16, F16 or FP8 with NaN
	M2          []*Tensor `op:"inout,in=AmaxOnly"`
	MasterScale []*Tensor `op:"inout,optional,in=AmaxOnly"` // F32 each: scale_inv; nil for F32 and BF16
	M1Scale     []*Tensor `op:"inout,optional,in=AmaxOnly"`
	M2Scale     []*Tensor `op:"inout,optional,in=AmaxOnly"`
	Control     *Tensor   `op:"in"`
	Step        *Tensor   `op:"in"` // I32 [1], after StepGate
	Coef        *Tensor   `op:"in"`
	Skip        *Tensor   `op:"in"`
	MeanSquares *Tensor   `op:"in,optional"`         // F32 [len], of UpdateStats
	Amaxes      *Tensor   `op:"out,inout=AmaxGiven"` // F32 [3·len]

	Beta1, Beta2, Eps, WeightDecay float32
	L2                             float32 // coupled weight decay, as in Adam
	ClipRMS                        float32 // 0: off
	EpsForm                        EpsForm
	Rounding                       fp8.Rounding
	Pow2, FloorV                   bool
	AmaxOnly, AmaxGiven            bool
	Shard                          bool
	Split                          Group
}

func (o *AdamW) check() error {
	var c checker
	c.moments(o.Grad, o.Master, o.M1, o.M2)
	n := len(o.Grad)
	for _, list := range []struct {
		name      string
		ts, scale []*Tensor
	}{{"Master", o.Master, o.MasterScale}, {"M1", o.M1, o.M1Scale}, {"M2", o.M2, o.M2Scale}} {
		c.that(len(list.scale) == n, "%sScale has %d tensors, Grad has %d", list.name, len(list.scale), n)
		if c.err != nil {
			return c.err
		}
		for i, t := range list.ts {
			c.that(t.Scale == list.scale[i], "%s is %s: its scale must be listed as %sScale", list.name, t, list.name)
			if t.Scale != nil {
				c.vector(list.name+"Scale", t.Scale, t.ScaleElems())
			}
		}
	}
	c.that(o.Rounding <= fp8.Stochastic, "unknown rounding %d", uint8(o.Rounding))
	c.coefficients(o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm)
	c.control(o.Control)
	c.ints("Step", o.Step, 1)
	c.scalar("Coef", o.Coef)
	c.ints("Skip", o.Skip, 1)
	c.vector("Amaxes", o.Amaxes, 3*n)
	c.that(!o.AmaxOnly || !o.AmaxGiven, "AmaxOnly and AmaxGiven are both set: set neither for both passes in one op")
	c.that(o.ClipRMS >= 0, "ClipRMS is %v, expected 0 (off) or more", o.ClipRMS)
	c.that((o.ClipRMS > 0) == (o.MeanSquares != nil), "ClipRMS is %v: give MeanSquares if and only if it is above 0", o.ClipRMS)
	if o.MeanSquares != nil {
		c.vector("MeanSquares", o.MeanSquares, n)
	}
	return c.err
}

// HasAmaxes reports whether any listed tensor has a per-tensor scale, which takes the
// first pass.
func (o *AdamW) HasAmaxes() bool {
	for _, t := range slices.Concat(o.Master, o.M1, o.M2) {
		if t.Scale != nil && t.Block == PerTensor {
			return true
		}
	}
	return false
}
