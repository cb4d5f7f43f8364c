package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// copySpec describes a copy of a tensor that a GEMM reads: the recipe's cast, and
// the block of the stored tensor that shares a scale.
type copySpec struct {
	recipe.Cast
	block backend.ScaleBlock
}

// plain returns a copy in format d without scales.
func plain(d fp8.DType) copySpec { return copySpec{Cast: recipe.Cast{DType: d}} }

// blockScaled reports whether the copy has per-row or block scales. The op that casts
// computes them, so there is no amax to record.
func (s copySpec) blockScaled() bool { return s.block != backend.PerTensor }

// pow2 reports whether the scales are rounded down to powers of two.
func (s copySpec) pow2() bool { return s.Scale == recipe.Pow2 }

// declareScale declares the block scales of t, a copy as s describes it.
func (s copySpec) declareScale(t *backend.Tensor, declare func(name string, d fp8.DType, shape ...int) *backend.Tensor) {
	d := fp8.F32
	if s.Scale == recipe.E8M0 {
		d = fp8.E8M0
	}
	rows, cols := s.block.ScaleShape(t.Rows(), t.Cols())
	t.Block, t.Scale = s.block, declare(t.Name+".scale_inv", d, rows, cols)
}

// blockCast returns the cast that stores t with block scales.
func (s copySpec) blockCast(t *backend.Tensor) backend.Cast {
	c := backend.Cast{Out: t, ScaleInv: t.Scale}
	if s.Scale != recipe.E8M0 {
		c.Limit, c.Pow2 = s.Limit(), s.pow2()
	}
	return c
}

// slot is a tensor that GEMMs read, with one copy for each distinct cast that its
// readers need. The copies are determined when the model is built.
type slot struct {
	name  string
	casts []copySpec
	names []string  // names of the copies: the format, and more where two have the same
	recs  []*record // nil for copies without a scale and for those with block scales
	rows  []int     // rows of Health.Casts; 0 for copies that are not FP8
}

// slot declares the slot of an activation or gradient, with these copies.
func (s *Scales) slot(name string, c ...copySpec) *slot { return s.declare(name, false, c) }

// weightSlot declares the slot of a weight that CastWeights casts once per update.
func (s *Scales) weightSlot(name string, c ...copySpec) *slot { return s.declare(name, true, c) }

func (s *Scales) declare(name string, weight bool, casts []copySpec) *slot {
	sl := &slot{name: name}
	for _, c := range casts {
		if sl.index(c) >= 0 {
			continue
		}
		copyName := c.DType.String()
		if c.blockScaled() {
			copyName += "." + c.block.String()
		}
		for _, more := range []string{c.Scaling.String() + "." + c.Rounding.String(), c.Scale.String()} {
			if slices.Contains(sl.names, copyName) {
				copyName += "." + more
			}
		}
		var r *record
		if c.DType.IsFP8() && !c.blockScaled() {
			r = s.record(name, copyName, c.Cast, weight)
		}
		s.add(sl, c, copyName, r)
	}
	return sl
}

// add appends a copy to a slot.
func (s *Scales) add(sl *slot, c copySpec, copyName string, r *record) {
	row := 0
	if c.DType.IsFP8() {
		row = len(s.measured)
		s.measured = append(s.measured, measuredCast{sl.name + "." + copyName, r, c.blockScaled()})
	}
	sl.casts, sl.names = append(sl.casts, c), append(sl.names, copyName)
	sl.recs, sl.rows = append(sl.recs, r), append(sl.rows, row)
}

// hasFP8 reports whether any copy is FP8.
func (s *slot) hasFP8() bool {
	return slices.ContainsFunc(s.casts, func(c copySpec) bool { return c.DType.IsFP8() })
}

func (s *slot) index(c copySpec) int { return slices.Index(s.casts, c) }

// copySet holds the copies of one slot in one pass.
type copySet struct {
	slot   *slot
	copies []*backend.Tensor
}

// as returns the copy that c describes. The slot was declared with it.
func (o *copySet) as(c copySpec) *backend.Tensor { return o.copies[o.slot.index(c)] }

// plain returns the copy in the compute format.
func (p *Pass) plain(o *copySet) *backend.Tensor { return o.as(plain(p.compute)) }

// emission is the output of an op as the copies of a slot: the op stores its
// result through casts, then done appends the ops that current scaling needs.
type emission struct {
	copySet
	casts []backend.Cast
	later []int           // copies whose scales depend on the finished result
	wide  *backend.Tensor // the copy in the compute format, or nil
}

// emit prepares the casts of a slot for an op whose result is rows × cols.
// Casts whose scale is known before the op become its epilogue. A current scale
// needs the amax of the tensor or of its blocks, so those copies are cast from a
// stored copy in the compute format.
func (p *Pass) emit(s *slot, rows, cols int) *emission {
	e := &emission{copySet: copySet{slot: s, copies: make([]*backend.Tensor, len(s.casts))}}
	for i, c := range s.casts {
		if p.Mode == Frozen && c.blockScaled() && c.block.Rows != 1 {
			continue // tokens share scales: only a backward reads this copy
		}
		t := p.root.Temp(s.name+"."+s.names[i], c.DType, rows, cols)
		e.copies[i] = t
		switch {
		case !c.DType.IsFP8():
			e.casts = append(e.casts, backend.Cast{Out: t})
			if c.DType == p.compute {
				e.wide = t
			}
		case p.scaling(c) == recipe.Current:
			e.later = append(e.later, i)
		default:
			e.casts = append(e.casts, p.cast(s, i, t))
		}
	}
	measured := p.Health != nil && s.hasFP8()
	if (len(e.later) > 0 || measured) && e.wide == nil {
		e.wide = p.root.Temp(s.name+"."+p.compute.String(), p.compute, rows, cols)
		e.casts = append(e.casts, backend.Cast{Out: e.wide})
	}
	return e
}

// scaling returns the scaling of a copy in the pass's mode. Per-row and block
// scales are current in every mode.
func (p *Pass) scaling(c copySpec) recipe.Scaling {
	switch {
	case c.Scaling == recipe.Unit:
		return recipe.Unit
	case c.blockScaled() || p.Mode == Calibrate:
		return recipe.Current
	case p.Mode == Frozen:
		return recipe.Delayed
	}
	return c.Scaling
}

// cast returns the cast of copy i of the slot, whose scale is known before the op.
func (p *Pass) cast(s *slot, i int, t *backend.Tensor) backend.Cast {
	c, r := s.casts[i], s.recs[i]
	cast := backend.Cast{Out: t, Scale: r.scale}
	t.Scale = r.scaleInv
	if c.Scaling == recipe.Unit {
		cast.Scale, t.Scale = nil, p.scales.one
	}
	if p.Mode != Frozen {
		cast.Amax = r.amax
	}
	return p.rounded(c, cast)
}

func (p *Pass) rounded(c copySpec, cast backend.Cast) backend.Cast {
	if c.Rounding == fp8.Stochastic {
		cast.Rounding, cast.Control, cast.Tokens = fp8.Stochastic, p.Control, true
	}
	return cast
}

// done appends the amax, the scales and the casts of current scaling, and the
// telemetry of a health pass, and returns the copies.
func (e *emission) done(p *Pass) *copySet {
	e.castLater(p)
	for i, t := range e.copies {
		p.castHealth(e.slot, i, e.wide, t)
	}
	return &e.copySet
}

func (e *emission) castLater(p *Pass) {
	if len(e.later) == 0 {
		return
	}
	var amax *backend.Tensor
	q := &backend.Quantize{X: e.wide}
	for _, i := range e.later {
		c, r, t := e.slot.casts[i], e.slot.recs[i], e.copies[i]
		if c.blockScaled() {
			c.declareScale(t, p.root.Temp)
			q.Out = append(q.Out, p.rounded(c, c.blockCast(t)))
			continue
		}
		if amax == nil {
			amax = p.root.Temp(e.slot.name+".amax", fp8.F32, 1)
			p.Add(&backend.Amax{X: e.wide, Out: amax})
		}
		scale := p.root.Temp(t.Name+".scale", fp8.F32, 1)
		t.Scale = p.root.Temp(t.Name+".scale_inv", fp8.F32, 1)
		p.Add(&backend.UpdateScale{
			History: amax, Seen: r.amax, Scale: scale, ScaleInv: t.Scale,
			Limit: c.Limit(), Pow2: c.pow2(),
		})
		q.Out = append(q.Out, p.rounded(c, backend.Cast{Out: t, Scale: scale}))
	}
	p.Add(q)
}
