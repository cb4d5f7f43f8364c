package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Mode is how casts get their scales while a pass is recorded.
type Mode uint8

const (
	// Train follows the recipe and records amaxes.
	Train Mode = iota
	// Calibrate makes every delayed scale current, to fill empty histories.
	Calibrate
	// Frozen takes every scale from the state that updates left behind and
	// records nothing: evaluation and generation, where a maximum over tokens
	// would let the past see the future.
	Frozen
)

// Pass is one pass over the model while it is being recorded: the program
// and what the layers must know of the batch. Layers keep no state of it.
type Pass struct {
	*backend.Program
	Mode       Mode
	Batch, Seq int             // sequences, and tokens of each
	Control    *backend.Tensor // step.control
	First      bool            // first micro-batch of a step: gradients are written, not added
	Last       bool            // last micro-batch: gradients are complete and reduced over ranks
	Ranks      int
	Cache      *Cache // keys and values of earlier positions; nil in training
	compute    fp8.DType
	scales     *Scales
	root       *backend.Program // for temps whose name is already a full path
}

// Tokens is the number of rows of every activation.
func (p *Pass) Tokens() int { return p.Batch * p.Seq }

// at returns the pass at a module's path.
func (p *Pass) at(scope string) *Pass {
	q := *p
	q.Program = p.Program.At(scope)
	return &q
}

// backward returns the pass with nodes marked as backward.
func (p *Pass) backward() *Pass {
	q := *p
	q.Program = p.Program.Phase(backend.Backward)
	return &q
}

// inBlock returns the pass whose nodes form a block.
func (p *Pass) inBlock(name string) *Pass {
	q := *p
	q.Program = p.Program.Block(name)
	return &q
}

// temp declares a temp in the compute format.
func (p *Pass) temp(name string, rows, cols int) *backend.Tensor {
	return p.Temp(name, p.compute, rows, cols)
}

// store is the plain cast into the compute format.
func (p *Pass) store(name string, rows, cols int) (*backend.Tensor, []backend.Cast) {
	t := p.temp(name, rows, cols)
	return t, []backend.Cast{{Out: t}}
}

// slot is a tensor that products read: one copy for each distinct cast that
// its readers ask for. It is decided when the model is built.
type slot struct {
	name  string
	casts []recipe.Cast
	names []string  // of the copies, by cast: the format, and more where that is taken
	recs  []*record // nil for formats without a scale
}

// slot declares one, for readers that want these casts.
func (s *Scales) slot(name string, weight bool, casts ...recipe.Cast) *slot {
	sl := &slot{name: name}
	for _, c := range casts {
		if sl.index(c) >= 0 {
			continue
		}
		copyName := c.DType.String()
		if slices.Contains(sl.names, copyName) {
			copyName += "." + c.Scaling.String() + "." + c.Rounding.String()
		}
		var r *record
		if c.DType.IsFP8() {
			r = s.record(name+"."+copyName, c, weight)
		}
		sl.casts = append(sl.casts, c)
		sl.names = append(sl.names, copyName)
		sl.recs = append(sl.recs, r)
	}
	return sl
}

func (s *slot) index(c recipe.Cast) int {
	for i, have := range s.casts {
		if have == c {
			return i
		}
	}
	return -1
}

// operand holds the copies of one slot in one pass.
type operand struct {
	slot   *slot
	copies []*backend.Tensor
}

// as is the copy that a reader asked for when the model was built.
func (o *operand) as(c recipe.Cast) *backend.Tensor { return o.copies[o.slot.index(c)] }

// plain is the copy in the compute format.
func (p *Pass) plain(o *operand) *backend.Tensor { return o.as(recipe.Cast{DType: p.compute}) }

// emission is an operand being produced: an op stores its result through
// casts, done appends what current scaling needs after it.
type emission struct {
	operand
	casts []backend.Cast
	later []int // copies that need the amax first
	wide  *backend.Tensor
}

// emit prepares the casts of a slot for an op whose result is rows × cols.
// Copies whose scale is known before the op become its epilogue. A current
// scale needs the tensor's own amax, so those copies are cast from a stored
// compute-format copy.
func (p *Pass) emit(s *slot, rows, cols int) *emission {
	e := &emission{operand: operand{slot: s, copies: make([]*backend.Tensor, len(s.casts))}}
	for i, c := range s.casts {
		t := p.root.Temp(s.name+"."+s.names[i], c.DType, rows, cols)
		e.copies[i] = t
		if !c.DType.IsFP8() {
			e.casts = append(e.casts, backend.Cast{Out: t})
			if c.DType == p.compute {
				e.wide = t
			}
			continue
		}
		if p.scaling(c) == recipe.Current {
			e.later = append(e.later, i)
			continue
		}
		e.casts = append(e.casts, p.cast(s, i, t))
	}
	if len(e.later) > 0 && e.wide == nil {
		e.wide = p.root.Temp(s.name+"."+p.compute.String(), p.compute, rows, cols)
		e.casts = append(e.casts, backend.Cast{Out: e.wide})
	}
	return e
}

// scaling is what the mode makes of the recipe's choice.
func (p *Pass) scaling(c recipe.Cast) recipe.Scaling {
	switch {
	case c.Scaling == recipe.Unit:
		return recipe.Unit
	case p.Mode == Calibrate:
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

func (p *Pass) rounded(c recipe.Cast, cast backend.Cast) backend.Cast {
	if c.Rounding == fp8.Stochastic {
		cast.Rounding, cast.Control, cast.Tokens = fp8.Stochastic, p.Control, true
	}
	return cast
}

// done appends the amax, the scale and the cast of current scaling, and
// returns the finished operand.
func (e *emission) done(p *Pass) *operand {
	if len(e.later) == 0 {
		return &e.operand
	}
	amax := p.root.Temp(e.slot.name+".amax", fp8.F32, 1)
	p.Add(&backend.Amax{X: e.wide, Out: amax})
	q := &backend.Quantize{X: e.wide}
	for _, i := range e.later {
		c, r, t := e.slot.casts[i], e.slot.recs[i], e.copies[i]
		scale := p.root.Temp(t.Name+".scale", fp8.F32, 1)
		t.Scale = p.root.Temp(t.Name+".scale_inv", fp8.F32, 1)
		p.Add(&backend.UpdateScale{
			History: amax, Seen: r.amax, Scale: scale, ScaleInv: t.Scale,
			Limit: c.Limit(), Pow2: true,
		})
		q.Out = append(q.Out, p.rounded(c, backend.Cast{Out: t, Scale: scale}))
	}
	p.Add(q)
	return &e.operand
}
