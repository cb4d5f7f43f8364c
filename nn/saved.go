package nn

import (
	"octet/backend"
)

// This file stores the inputs of norms and activations in the format of
// [recipe.Activations], so that the backward keeps fewer bytes. Forward and backward read the
// same codes, dequantized just before the op. The residual stream continues in the compute
// format. The gradient passes the cast unchanged.

// savedSlot declares the slot of an activation that the backward reads: one copy, without
// Recipe.Activations in the compute format.
func (b *Base) savedSlot(name string) *Slot {
	c := Copy{Cast: b.Recipe.Activations.Cast(b.Recipe.Compute)}
	if c.DType.IsQuantized() {
		c.Block.Rows, c.Block.Cols = c.Granularity.Block()
	}
	return b.Slot(name, c)
}

// save appends the cast of x to a slot of savedSlot. It returns the value that the backward
// reads, and what the forward reads.
func (p *Pass) save(s *Slot, x *backend.Tensor) (*Value, *backend.Tensor) {
	v := p.castStored(s, x)
	return v, p.read(v, ".forward")
}

// read appends the dequantization of a value that save returned, and returns the result, in
// the compute format, whose name ends in suffix.
func (p *Pass) read(v *Value, suffix string) *backend.Tensor {
	t := v.copies[0]
	if !v.slot.casts[0].DType.IsQuantized() {
		return t
	}
	out := p.root.Temp(t.Name+suffix, p.compute, t.Rows(), t.Cols())
	p.Add(&backend.Quantize{X: t, Out: []backend.Cast{{Out: out}}})
	return out
}
