package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// stored is how an operand lies in memory for a product: the recipe's cast,
// and which elements of the tensor as it is stored share a scale.
type stored struct {
	recipe.Cast
	block backend.ScaleBlock
}

// plain is a copy without scales.
func plain(d fp8.DType) stored { return stored{Cast: recipe.Cast{DType: d}} }

// byBlock reports whether the copy has more scales than one. They come from
// its own elements, so that there is no amax to record.
func (s stored) byBlock() bool { return s.block != backend.PerTensor }

// pow2 reports whether the scales are rounded down to powers of two.
func (s stored) pow2() bool { return s.Scale == recipe.Pow2 }

// declareScale gives t, a copy of this kind, scales of its own by block.
func (s stored) declareScale(t *backend.Tensor, declare func(name string, d fp8.DType, shape ...int) *backend.Tensor) {
	d := fp8.F32
	if s.Scale == recipe.E8M0 {
		d = fp8.E8M0
	}
	rows, cols := s.block.ScaleShape(t.Rows(), t.Cols())
	t.Block, t.Scale = s.block, declare(t.Name+".scale_inv", d, rows, cols)
}

// blockCast stores t with scales by block.
func (s stored) blockCast(t *backend.Tensor) backend.Cast {
	c := backend.Cast{Out: t, ScaleInv: t.Scale}
	if s.Scale != recipe.E8M0 {
		c.Limit, c.Pow2 = s.Limit(), s.pow2()
	}
	return c
}

// slot is a tensor that products read: one copy for each distinct way in which
// its readers want it stored. It is decided when the model is built.
type slot struct {
	name  string
	casts []stored
	names []string  // of the copies, by cast: the format, and more where that is not all
	recs  []*record // nil for copies without a scale, or with many
	rows  []int     // of Health.Casts; 0 for copies that are not FP8
}

// slot declares an activation or a gradient, for readers that want these copies.
func (s *Scales) slot(name string, casts ...stored) *slot { return s.declare(name, false, casts) }

// weightSlot declares a weight that CastWeights casts, and not every micro-batch.
func (s *Scales) weightSlot(name string, casts ...stored) *slot { return s.declare(name, true, casts) }

func (s *Scales) declare(name string, weight bool, casts []stored) *slot {
	sl := &slot{name: name}
	for _, c := range casts {
		if sl.index(c) >= 0 {
			continue
		}
		copyName := c.DType.String()
		if c.byBlock() {
			copyName += "." + c.block.String()
		}
		for _, more := range []string{c.Scaling.String() + "." + c.Rounding.String(), c.Scale.String()} {
			if slices.Contains(sl.names, copyName) {
				copyName += "." + more
			}
		}
		var r *record
		if c.DType.IsFP8() && !c.byBlock() {
			r = s.record(name, copyName, c.Cast, weight)
		}
		s.add(sl, c, copyName, r)
	}
	return sl
}

// add appends a copy to a slot.
func (s *Scales) add(sl *slot, c stored, copyName string, r *record) {
	row := 0
	if c.DType.IsFP8() {
		row = len(s.measured)
		s.measured = append(s.measured, measuredCast{sl.name + "." + copyName, r, c.byBlock()})
	}
	sl.casts, sl.names = append(sl.casts, c), append(sl.names, copyName)
	sl.recs, sl.rows = append(sl.recs, r), append(sl.rows, row)
}

// hasFP8 reports whether a copy is FP8.
func (s *slot) hasFP8() bool {
	return slices.ContainsFunc(s.casts, func(c stored) bool { return c.DType.IsFP8() })
}

func (s *slot) index(c stored) int { return slices.Index(s.casts, c) }

// operand holds the copies of one slot in one pass.
type operand struct {
	slot   *slot
	copies []*backend.Tensor
}

// as is the copy that a reader asked for when the model was built.
func (o *operand) as(c stored) *backend.Tensor { return o.copies[o.slot.index(c)] }

// plain is the copy in the compute format.
func (p *Pass) plain(o *operand) *backend.Tensor { return o.as(plain(p.compute)) }

// emission is an operand being produced: an op stores its result through
// casts, done appends what current scaling needs after it.
type emission struct {
	operand
	casts []backend.Cast
	later []int // copies whose scales come from the finished result
	wide  *backend.Tensor
}

// emit prepares the casts of a slot for an op whose result is rows × cols.
// Copies whose scale is known before the op become its epilogue. A current
// scale needs the amax of the tensor, or of its blocks, so those copies are
// cast from a stored compute-format copy.
func (p *Pass) emit(s *slot, rows, cols int) *emission {
	e := &emission{operand: operand{slot: s, copies: make([]*backend.Tensor, len(s.casts))}}
	for i, c := range s.casts {
		if p.Mode == Frozen && c.byBlock() && c.block.Rows != 1 {
			continue // scales that tokens share: for the backward
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

// scaling is what the mode makes of the recipe's choice. A scale that belongs
// to one token is its own in every mode.
func (p *Pass) scaling(c stored) recipe.Scaling {
	switch {
	case c.Scaling == recipe.Unit:
		return recipe.Unit
	case c.byBlock() || p.Mode == Calibrate:
		return recipe.Current
	case p.Mode == Frozen:
		return recipe.Delayed
	}
	return c.Scaling
}

// cast stores copy i of the slot with a scale that is known beforehand.
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

func (p *Pass) rounded(c stored, cast backend.Cast) backend.Cast {
	if c.Rounding == fp8.Stochastic {
		cast.Rounding, cast.Control, cast.Tokens = fp8.Stochastic, p.Control, true
	}
	return cast
}

// done appends the amax, the scales and the casts of current scaling, and what
// is measured, and returns the finished operand.
func (e *emission) done(p *Pass) *operand {
	e.castLater(p)
	for i, t := range e.copies {
		p.castHealth(e.slot, i, e.wide, t)
	}
	return &e.operand
}

func (e *emission) castLater(p *Pass) {
	if len(e.later) == 0 {
		return
	}
	var amax *backend.Tensor
	q := &backend.Quantize{X: e.wide}
	for _, i := range e.later {
		c, r, t := e.slot.casts[i], e.slot.recs[i], e.copies[i]
		if c.byBlock() {
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
