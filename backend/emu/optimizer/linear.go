package optimizer

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// Linear is an update of one tensor by the equations of backend.LinearUpdate, which explains
// the fields of the same names. As AdamW, it visits a tensor with one scale twice.
type Linear struct {
	X     memory.Matrix // without gaps
	State State
	Next  []float32 // nil: not wanted

	Keep, Decay, Gain, Rate float32
	Rounding                fp8.Rounding
	Pow2                    bool

	Control, Skip []int32
	Coef          []float32 // nil is 1

	pool   *pool.Pool
	all    []span
	length int       // of the longest span
	found  []float32 // the amax of each span
	a, b   float32   // of this run
}

// Bind returns a function that runs the update on p and allocates nothing.
func (l Linear) Bind(p *pool.Pool) func() {
	s := &l.State
	s.out, s.limit, s.pow2 = cast.Encoder{DType: s.DType, Rounding: l.Rounding}, s.DType.Max(), l.Pow2
	if s.Block > 0 {
		l.all = rowSpans(s.Rows, s.Cols, blockSpan(s.Block))
	} else {
		l.all = rowSpans(1, s.Rows*s.Cols, spanElems)
	}
	for _, at := range l.all {
		l.length = max(l.length, at.n)
	}
	l.pool, l.found = p, make([]float32, len(l.all))
	p.Reserve(2 * l.length)
	find, store := eachSpan(p, len(l.all), l.find), eachSpan(p, len(l.all), l.store)
	return func() {
		if l.Skip[0] != 0 {
			clear(l.Next)
			return
		}
		ctl, coef := backend.ControlFrom(l.Control), 1.0
		if l.Coef != nil {
			coef = float64(l.Coef[0])
		}
		lr := float64(ctl.LR)
		l.a = float32(float64(l.Keep) - lr*float64(l.Decay))
		l.b = float32(coef * (float64(l.Gain) - lr*float64(l.Rate)))
		amax := float32(0)
		if s.hasAmax() {
			find()
			for _, x := range l.found {
				amax = fp8.MaxAmax(amax, x)
			}
		}
		s.prepare(amax, ctl, 0)
		s.Extents.Forget()
		store()
		s.writeScale(amax)
	}
}

// update returns a span's new values, its part of X, and its first element.
func (l *Linear) update(worker int, s *span) (state, x []float32, at int) {
	buffer := l.pool.Scratch[worker]
	state, at = buffer[:s.n], s.row*l.State.Cols+s.col
	x = l.X.Piece(buffer[l.length:], 0, at, s.n)
	if l.State.Block > 0 {
		l.State.loadBlocks(state, s, at, l.State.Cols)
	} else {
		l.State.Load(state, 0, at)
	}
	l.combine(state, state, x)
	return state, x, at
}

// combine sets to to a·from + b·x.
func (l *Linear) combine(to, from, x []float32) {
	from, x = from[:len(to)], x[:len(to)]
	for i := range to {
		to[i] = float32(l.a*from[i]) + float32(l.b*x[i])
	}
}

// find finds the amax of a span.
func (l *Linear) find(worker, i int) {
	x, _, _ := l.update(worker, &l.all[i])
	l.found[i] = fp8.Amax(x)
}

// store updates a span.
func (l *Linear) store(worker, i int) {
	s, state := &l.all[i], &l.State
	fresh, x, at := l.update(worker, s)
	if l.Next != nil {
		l.combine(l.Next[at:at+s.n], fresh, x)
	}
	switch {
	case state.Block > 0:
		state.storeBlocks(fresh, s, at, state.Cols)
	case state.DType == fp8.F32:
		copy(state.F32[at:], fresh)
	default:
		state.store(&state.out, fresh, at)
	}
}
