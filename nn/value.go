package nn

import (
	"cmp"
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Value is a tensor in one pass, in the copies of its slot. It is open while the op that
// computes it is being recorded, and closed when its copies can be read.
type Value struct {
	slot   *Slot
	copies []*backend.Tensor

	casts   []backend.Cast    // of the op that computes it
	later   []int             // copies that are cast from the finished result
	wide    *backend.Tensor   // the copy in the compute format, or nil
	rotated []*backend.Tensor // what a rotated copy is cast from; nil for other copies

	// If ranks have the rows of some tokens each: the copies of all tokens that GEMMs read, by copy, and
	// those that are cast from all tokens.
	whole    []*backend.Tensor
	gathered []int
	complete bool // it has all tokens already
}

// Store appends the op that computes a slot's tensor [rows, cols] and the casts after it.
// op returns the op that stores its result through out.
func (p *Pass) Store(s *Slot, rows, cols int, op func(out []backend.Cast) backend.Op) *Value {
	v := p.Open(s, rows, cols)
	p.Add(op(v.casts))
	p.Close(v)
	return v
}

// Open prepares a value [rows, cols], whose casts the op that computes it takes. Close must
// follow the op. Store is simpler for an op with one result.
//
// Casts whose scale is known before the op become its epilogue. A current scale
// needs the amax of the tensor or of its blocks, and a rotation the elements of other
// tokens, so those copies are cast from a stored copy in the compute format.
func (p *Pass) Open(s *Slot, rows, cols int) *Value { return p.open(s, rows, cols, nil) }

// open is Open. Unless nil, wide is the tensor itself, stored in the compute format: the
// copy in this format, and what the other copies are cast from.
func (p *Pass) open(s *Slot, rows, cols int, wide *backend.Tensor) *Value {
	v := &Value{slot: s, copies: make([]*backend.Tensor, len(s.casts)), rotated: make([]*backend.Tensor, len(s.casts)), wide: wide}
	for i, c := range s.casts {
		if wide != nil && c.DType == p.compute {
			v.copies[i] = wide
			continue
		}
		if p.Mode == Frozen && (c.blockScaled() && c.Block.Rows != 1 || c.Hadamard.On()) {
			continue // tokens share scales: only a backward reads this copy
		}
		if slices.Contains(s.whole, c) && !p.gathersCast(c) {
			v.gathered = append(v.gathered, i)
			continue
		}
		t := p.root.Temp(s.name+"."+s.names[i], c.stored(), rows, cols)
		v.copies[i] = t
		switch {
		case !c.DType.IsQuantized():
			v.casts = append(v.casts, c.cast(t))
			if c.DType == p.compute {
				v.wide = t
			}
		case p.scaling(c) == recipe.Current || c.Hadamard.On():
			v.later = append(v.later, i)
		default:
			v.casts = append(v.casts, p.cast(s, i, t))
		}
	}
	measured := p.Health != nil && s.hasQuantized()
	if (len(v.later) > 0 || len(v.gathered) > 0 || measured) && v.wide == nil {
		v.wide = p.root.Temp(s.name+"."+p.compute.String(), p.compute, rows, cols)
		v.casts = append(v.casts, backend.Cast{Out: v.wide})
	}
	return v
}

// castStored appends the casts of x, which is stored in the compute format, to a slot's
// copies.
func (p *Pass) castStored(s *Slot, x *backend.Tensor) *Value {
	v := p.open(s, x.Rows(), x.Cols(), x)
	if len(v.casts) > 0 {
		p.Add(&backend.Quantize{X: x, Out: v.casts})
	}
	p.Close(v)
	return v
}

// Casts returns the casts through which the op that computes an open value stores it.
func (v *Value) Casts() []backend.Cast { return v.casts }

// Close appends what follows the op that computed the values: rotations, the amax, the
// scales and the casts of current scaling, and the telemetry of a health pass.
func (p *Pass) Close(values ...*Value) {
	for _, v := range values {
		p.castLater(v)
		for i, t := range v.copies {
			if t != nil {
				p.castHealth(v.slot, i, cmp.Or(v.rotated[i], v.wide), t)
			}
		}
		if v.slot.whole != nil && !v.complete {
			p.gatherCopies(v)
		}
	}
}

// gatherCopies appends what GEMMs read of a value of which each rank has some tokens.
func (p *Pass) gatherCopies(v *Value) {
	v.whole = make([]*backend.Tensor, len(v.copies))
	for i, t := range v.copies {
		if t != nil && slices.Contains(v.slot.whole, v.slot.casts[i]) {
			v.whole[i] = p.gatherTokens(t)
		}
	}
	if len(v.gathered) == 0 {
		return
	}
	all := &Value{slot: v.slot, copies: make([]*backend.Tensor, len(v.copies)), rotated: make([]*backend.Tensor, len(v.copies)), complete: true}
	if i := v.slot.index(plain(p.compute)); i >= 0 {
		all.wide = v.whole[i]
	}
	if all.wide == nil {
		all.wide = p.gatherTokens(v.wide)
	}
	for _, i := range v.gathered {
		v.whole[i] = p.root.Temp(v.slot.name+"."+v.slot.names[i], v.slot.casts[i].stored(), all.wide.Rows(), all.wide.Cols())
		all.copies[i] = v.whole[i]
	}
	all.later = v.gathered
	p.Close(all)
}

// As returns the copy that c describes, of all tokens. It panics if the slot was declared without c.
func (v *Value) As(c Copy) *backend.Tensor {
	i := v.index(c)
	if v.whole != nil && v.whole[i] != nil {
		return v.whole[i]
	}
	return v.copies[i]
}

func (v *Value) index(c Copy) int {
	i := v.slot.index(c)
	if i < 0 {
		panic(fmt.Sprintf("nn: slot %s has no copy %s: declare the slot with the copies of all its readers", v.slot.name, c))
	}
	return i
}

// Plain returns the copy in the compute format, of the rank's own tokens if it has some of a batch.
func (p *Pass) Plain(v *Value) *backend.Tensor { return v.copies[v.index(plain(p.compute))] }

// scaling returns the scaling of a copy in the pass's mode. Per-row and block
// scales are current in every mode.
func (p *Pass) scaling(c Copy) recipe.Scaling {
	switch {
	case c.Scaling == recipe.Unit || c.Scaling == recipe.Constant:
		return c.Scaling
	case c.blockScaled() || p.Mode == Calibrate:
		return recipe.Current
	case p.Mode == Frozen:
		return recipe.Delayed
	}
	if c.Scaling == recipe.Direction {
		return recipe.Current
	}
	return c.Scaling
}

// hasCurrentScale reports whether copy i of the slot has a scale for the whole tensor that is
// chosen from the tensor's own amax.
func (p *Pass) hasCurrentScale(s *Slot, i int) bool {
	return s.recs[i] != nil && p.scaling(s.casts[i]) == recipe.Current
}

// cast returns the cast of copy i of the slot, whose scale is known before the op.
func (p *Pass) cast(s *Slot, i int, t *backend.Tensor) backend.Cast {
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

func (p *Pass) rounded(c Copy, cast backend.Cast) backend.Cast {
	if c.Rounding == fp8.Stochastic {
		cast.Rounding, cast.Control, cast.Tokens = fp8.Stochastic, p.Control, true
	}
	return cast
}

// castLater appends the casts of the finished result and of its rotations.
func (p *Pass) castLater(v *Value) {
	var done []recipe.Hadamard
	for _, i := range v.later {
		if h := v.slot.casts[i].Hadamard; !slices.Contains(done, h) {
			done = append(done, h)
			p.castRotated(v, h)
		}
	}
}

// castRotated appends the rotation h of the finished result, if h rotates, and the casts of
// the copies that have it.
func (p *Pass) castRotated(v *Value, h recipe.Hadamard) {
	var amax *backend.Tensor
	x, name := v.wide, v.slot.name
	if h.On() {
		name += "." + hadamardName(h)
		x = p.rotate(v.wide, h, name)
	}
	q := &backend.Quantize{X: x}
	for _, i := range v.later {
		c, r, t := v.slot.casts[i], v.slot.recs[i], v.copies[i]
		if c.Hadamard != h {
			continue
		}
		if h.On() {
			v.rotated[i] = x
		}
		if p.scaling(c) != recipe.Current {
			q.Out = append(q.Out, p.cast(v.slot, i, t))
			continue
		}
		cast, inverse, suffix := backend.Cast{Out: t}, &t.Scale, ".scale_inv"
		if c.blockScaled() {
			c.declareScale(t, p.root.Temp)
			cast, inverse, suffix = c.blockCast(t), &t.Outer, ".outer"
		}
		switch {
		case r == nil:
		case p.Mode == Frozen:
			cast.Scale, *inverse = r.scale, r.scaleInv
		default:
			if amax == nil {
				amax = p.root.Temp(name+".amax", fp8.F32, 1)
				if p.Add(&backend.Amax{X: x, Out: amax}); !v.complete {
					p.maxOverParts(amax)
				}
			}
			cast.Scale = p.root.Temp(t.Name+".scale", fp8.F32, 1)
			*inverse = p.root.Temp(t.Name+suffix, fp8.F32, 1)
			from, seen := amax, r.amax
			if c.Scaling == recipe.Direction {
				from, seen, cast.Amax = p.clipDirection(c, r, x, amax, t.Name), nil, r.amax
			}
			p.Add(&backend.UpdateScale{
				History: from, Seen: seen, Scale: cast.Scale, ScaleInv: *inverse,
				Limit: c.Limit(), Pow2: c.pow2(), Outer: c.Scale.Outer,
			})
		}
		q.Out = append(q.Out, p.rounded(c, cast))
	}
	p.Add(q)
}

// rotate appends the rotation h of x along its columns, stored in the compute format.
func (p *Pass) rotate(x *backend.Tensor, h recipe.Hadamard, name string) *backend.Tensor {
	t := p.root.Temp(name, p.compute, x.Rows(), x.Cols())
	op := &backend.Hadamard{X: x, Out: []backend.Cast{{Out: t}}, Size: h.Size, Columns: true, Signs: h.Mask()}
	if h.Signs == recipe.SeedSigns {
		op.Control = p.Control
	}
	p.Add(op)
	return t
}
