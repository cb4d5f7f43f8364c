package nn

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Copy describes a copy of a tensor that a GEMM reads: the recipe's cast, and the block of
// the stored tensor that shares a scale. Hadamard rotates along the columns of the tensor,
// since only wgrad reads rotated copies. Layers return the copies that they read.
type Copy struct {
	recipe.Cast
	Block    backend.ScaleBlock
	Constant float32 // the scale of scaling [recipe.Constant]; 0 for other scaling
}

// plain returns a copy in format d without scales.
func plain(d fp8.DType) Copy { return Copy{Cast: recipe.Cast{DType: d}} }

// stored returns the format of the copy's elements in memory: BF16 for one that BF16
// contains, such as E8M5, to which a cast rounds.
func (s Copy) stored() fp8.DType { return s.DType.Format().Container }

// cast returns the cast that stores t, without scales.
func (s Copy) cast(t *backend.Tensor) backend.Cast {
	c := backend.Cast{Out: t}
	if s.DType != t.DType {
		c.Precision = s.DType
	}
	return c
}

// blockScaled reports whether the copy has per-row or block scales, which the op that casts
// computes.
func (s Copy) blockScaled() bool { return s.Block != backend.PerTensor }

// tensorScaled reports whether the copy has a scale for the whole tensor, with or without
// finer scales, and so an amax to record.
func (s Copy) tensorScaled() bool {
	return s.DType.IsQuantized() && (!s.blockScaled() || s.Scale.Outer)
}

// pow2 reports whether the scales are rounded down to powers of two.
func (s Copy) pow2() bool { return s.Scale == recipe.Pow2 }

// declareScale declares the block scales of t, a copy as s describes it.
func (s Copy) declareScale(t *backend.Tensor, declare func(name string, d fp8.DType, shape ...int) *backend.Tensor) {
	rows, cols := s.Block.ScaleShape(t.Rows(), t.Cols())
	t.Block, t.Scale = s.Block, declare(t.Name+".scale_inv", s.Scale.DType, rows, cols)
}

// blockCast returns the cast that stores t with block scales.
func (s Copy) blockCast(t *backend.Tensor) backend.Cast {
	c := backend.Cast{Out: t, ScaleInv: t.Scale, Rule: s.Scale.Rule}
	if s.Scale.DType == fp8.F32 {
		c.Limit = s.Limit()
	}
	return c
}

// Slot is a declared tensor that GEMMs read, with one copy for each distinct Copy that its
// readers need.
type Slot struct {
	name  string
	casts []Copy
	names []string  // names of the copies: the format, and more where two have the same
	recs  []*record // nil for copies without a scale for the whole tensor
	rows  []int     // rows of Health.Casts; 0 for copies that are not FP8
	whole []Copy    // those of all tokens, if a rank has some: see tokenSlot
}

// Slot declares an activation or gradient, whose name is its path ("layers.3.mlp.input"),
// with the copies that its readers need. Equal copies are shared. Slot panics after Build.
func (b *Base) Slot(name string, readers ...Copy) *Slot {
	b.declaring("slot " + name)
	return b.Scales.declare(name, false, readers)
}

// Plain returns the copy in the recipe's compute format, without scales.
func (b *Base) Plain() Copy { return plain(b.Recipe.Compute) }

// declare declares a slot; weight marks one that CastWeights casts once per update.
func (s *Scales) declare(name string, weight bool, casts []Copy) *Slot {
	sl := &Slot{name: name}
	for _, c := range casts {
		if sl.index(c) >= 0 {
			continue
		}
		copyName := c.DType.String()
		if c.blockScaled() {
			copyName += "." + c.Block.String()
		}
		if c.Hadamard.On() {
			copyName += "." + hadamardName(c.Hadamard)
		}
		for _, more := range []string{
			c.Scaling.String() + "." + c.Rounding.String(), c.Scale.String(), fmt.Sprintf("history%d.margin%d", c.History, c.Margin),
		} {
			if slices.Contains(sl.names, copyName) {
				copyName += "." + more
			}
		}
		var r *record
		if c.tensorScaled() {
			r = s.record(name, copyName, c, weight)
		}
		s.add(sl, c, copyName, r)
	}
	return sl
}

// hadamardName returns the part of a copy's name that tells its rotation from others.
func hadamardName(h recipe.Hadamard) string { return fmt.Sprintf("hadamard%d%s", h.Size, h.Signs) }

// add appends a copy to a slot.
func (s *Scales) add(sl *Slot, c Copy, copyName string, r *record) {
	row := 0
	if c.DType.IsQuantized() {
		row = len(s.measured)
		s.measured = append(s.measured, measuredCast{sl.name + "." + copyName, r, c.blockScaled()})
	}
	sl.casts, sl.names = append(sl.casts, c), append(sl.names, copyName)
	sl.recs, sl.rows = append(sl.recs, r), append(sl.rows, row)
}

// hasQuantized reports whether any copy is in a quantized format.
func (s *Slot) hasQuantized() bool {
	return slices.ContainsFunc(s.casts, func(c Copy) bool { return c.DType.IsQuantized() })
}

func (s *Slot) index(c Copy) int { return slices.Index(s.casts, c) }
