package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// AdamW processes spans of all tensors in parallel. It visits a tensor with one scale
// twice: to find its amax, and to store it with the scale that follows from it. Both
// visits compute the new values from the old codes in the same way, so they see the
// same bits. The second visit updates a tensor without a scale, or with a scale per
// block of a row, in place.
//
// The stored scale is scale_inv, 1/s rounded to float32, where
// s = fp8.ScaleFor(amax, limit, pow2); codes are round(x·s). A state that keeps its
// scale_inv f is stored with s = 1/f; if f is 0, as in a tensor never written, with
// s = f = 1.

// adamSpan is the elements of a span: its codes and FP32 values fit the first-level
// cache.
const adamSpan = 1024

// minEpsToFlush is far above the root of any second moment that simd.KeepNormal
// flushes to zero: beside a larger Eps such a root changes nothing.
const minEpsToFlush = 0x1p-40

type adamTensor struct {
	grad  memory.Matrix
	cols  int          // of grad
	state [3]adamState // master, first and second moment
	codes *adamCodes   // nil if the formats of the states have no codes path
	keep  uint32       // simd.AdamW.Keep
}

func (t *adamTensor) hasAmax() bool {
	return t.state[0].hasAmax() || t.state[1].hasAmax() || t.state[2].hasAmax()
}

// adamW is a bound AdamW.
type adamW struct {
	*binder
	op     *backend.AdamW
	list   []adamTensor
	all    []span       // of the second visit
	scaled []span       // of the first visit
	found  [][3]float32 // the amaxes of each span in scaled
	length int          // of the longest span

	control, step, skip []int32
	coef, amaxes        []float32
	written             []*extents

	rule                  simd.AdamW // of this run
	firstVisit, lastVisit func()
	revisit               func(worker, tensor int) // revisitMaxima, bound once because binding allocates
}

var _ = implementOp(row{blockScaled: []string{"M1", "M2"}, keepsExtents: true}, func(b *binder, _ *backend.Node, o *backend.AdamW) (kernel, error) {
	return compute(b.adamW(o)), nil
})

func (b *binder) adamW(o *backend.AdamW) func() {
	a := &adamW{
		binder: b, op: o, all: adamSpans(o), list: make([]adamTensor, len(o.Grad)),
		control: b.i32(o.Control), step: b.i32(o.Step), skip: b.i32(o.Skip),
		coef: b.f32(o.Coef), amaxes: b.f32(o.Amaxes),
		written: b.extentsOf(slices.Concat(o.Master, o.M1, o.M2)),
	}
	for i := range a.list {
		b.adamTensor(&a.list[i], o, i)
	}
	for _, s := range a.all {
		a.length = max(a.length, s.n)
		t := &a.list[s.tensor]
		if !t.hasAmax() {
			continue
		}
		if t.codes != nil && s.row == 0 && s.col == 0 {
			t.codes.bounds.startAt(len(a.scaled))
		}
		a.scaled = append(a.scaled, s)
	}
	a.found = make([][3]float32, len(a.scaled))
	b.pool.Reserve(4 * a.length)
	a.firstVisit = b.eachSpan(len(a.scaled), a.visit)
	a.lastVisit = b.eachSpan(len(a.all), a.store)
	a.revisit = a.revisitMaxima
	return a.run
}

// adamTensor binds t to parameter i of the op.
func (b *binder) adamTensor(t *adamTensor, o *backend.AdamW, i int) {
	t.grad, t.cols, t.keep = b.matrix(o.Grad[i]), o.Grad[i].Cols(), simd.KeepAll
	for j, x := range []*backend.Tensor{o.Master[i], o.M1[i], o.M2[i]} {
		t.state[j] = b.adamState(o, x)
	}
	t.state[2].floor = o.FloorV
	if (o.M1Scale[i] == nil || o.M2Scale[i] == nil) && o.Eps > minEpsToFlush {
		t.keep = simd.KeepNormal
	}
	if t.codes = t.newCodes(); t.codes != nil {
		t.codes.bounds = b.newBounds(o.Master[i], o.M1[i], o.M2[i], o.Grad[i])
	}
}

func (a *adamW) run() {
	if a.skip[0] != 0 {
		return
	}
	ctl := backend.ControlFrom(a.control)
	a.rule = adamRule(a.op, ctl.LR, a.coef[0], a.step[0])
	for i := range a.list {
		a.list[i].codes.read(&a.rule)
	}
	if !a.op.AmaxGiven {
		a.findAmaxes()
	}
	if a.op.AmaxOnly {
		return
	}
	for i := range a.list {
		t, amax, first := &a.list[i], a.amaxes[3*i:][:3], uint64(0)
		if a.op.Shard {
			first = uint64(ctl.Rank) * uint64(a.op.Grad[i].Elems())
		}
		for j := range t.state {
			t.state[j].prepare(amax[j], ctl, first)
		}
		t.codes.write(amax)
	}
	for _, e := range a.written {
		e.known = false
	}
	a.lastVisit()
	for i := range a.list {
		t := &a.list[i]
		if t.codes.notes() {
			t.codes.bounds.noted()
		}
		for j := range t.state {
			t.state[j].writeScale(a.amaxes[3*i+j])
		}
	}
}

// gradient returns the element at which a span begins, and its gradient.
func (a *adamW) gradient(worker int, s *span) (at int, grad []float32) {
	t := &a.list[s.tensor]
	return s.row*t.cols + s.col, t.grad.Piece(a.pool.Scratch[worker][3*a.length:], s.row, s.col, s.n)
}

// update computes a span's new states from its old ones and its gradient. If inPlace,
// it overwrites states in FP32.
func (a *adamW) update(worker int, s *span, inPlace bool) (x [3][]float32, amax [3]float32) {
	t, buffer := &a.list[s.tensor], a.pool.Scratch[worker]
	at, grad := a.gradient(worker, s)
	for i := range x {
		state := &t.state[i]
		x[i] = buffer[i*a.length:][:s.n]
		switch {
		case state.in.DType == fp8.F32 && inPlace:
			x[i] = state.in.F32[at : at+s.n]
		case state.block > 0:
			state.loadBlocks(x[i], s, at, t.cols)
		default:
			state.in.Load(x[i], 0, at)
		}
	}
	rule := a.rule
	rule.Keep = t.keep
	return x, rule.Update(x[0], x[1], x[2], grad)
}

// findAmaxes is the first visit. It starts with the spans that had the amaxes in the
// last run, so that the bounds can exclude most other blocks.
func (a *adamW) findAmaxes() {
	clear(a.amaxes)
	if len(a.scaled) == 0 {
		return
	}
	a.pool.Run(len(a.list), a.revisit)
	a.firstVisit()
	for i, found := range a.found {
		tensor := a.scaled[i].tensor
		t := &a.list[tensor]
		for j, x := range found {
			top := &a.amaxes[3*tensor+j]
			if larger := fp8.MaxAmax(*top, x); larger != *top && t.state[j].hasAmax() {
				*top = larger
				if t.codes != nil {
					t.codes.bounds.spans[j] = i
				}
			}
		}
	}
}

// revisitMaxima visits the spans that had a tensor's amaxes in the last run.
func (a *adamW) revisitMaxima(worker, tensor int) {
	c := a.list[tensor].codes
	if c == nil || !c.bounds.usable {
		return
	}
	top := a.amaxes[3*tensor:][:3]
	for k, i := range c.bounds.spans {
		if !slices.Contains(c.bounds.spans[:k], i) {
			a.visit(worker, i)
		}
		for j, x := range a.found[i] {
			top[j] = fp8.MaxAmax(top[j], x)
		}
	}
	c.bounds.found([3]float32(top))
}

// visit finds the amaxes of a span.
func (a *adamW) visit(worker, i int) {
	s := a.scaled[i]
	n, amax := a.list[s.tensor].codes.amaxes(a.gradient(worker, &s))
	if s.col, s.n = s.col+n, s.n-n; s.n > 0 {
		_, rest := a.update(worker, &s, false)
		for j, x := range rest {
			amax[j] = fp8.MaxAmax(amax[j], x)
		}
	}
	a.found[i] = amax
}

// store updates a span.
func (a *adamW) store(worker, i int) {
	s := a.all[i]
	t := &a.list[s.tensor]
	at, grad := a.gradient(worker, &s)
	whole := s.n
	n := t.codes.store(at, grad)
	if s.col, s.n = s.col+n, s.n-n; s.n > 0 {
		x, _ := a.update(worker, &s, true)
		for j, x := range x {
			if state := &t.state[j]; state.block > 0 {
				state.storeBlocks(x, &s, at+n, t.cols)
			} else {
				state.store(&state.out, x, at+n)
			}
		}
	}
	if t.codes.notes() {
		t.codes.note(at, whole)
	}
}

// adamSpans cuts the tensors into spans. Where scales belong to blocks of a row, a span
// stays within a row.
func adamSpans(o *backend.AdamW) (list []span) {
	for i, g := range o.Grad {
		one := spans([]*backend.Tensor{g}, adamSpan)
		if o.M1[i].Block != backend.PerTensor || o.M2[i].Block != backend.PerTensor {
			one = rowSpans(g.Rows(), g.Cols(), blockSpan(o.M1[i].Block.Cols, o.M2[i].Block.Cols))
		}
		for _, s := range one {
			s.tensor = i
			list = append(list, s)
		}
	}
	return list
}

// blockSpan returns the longest span up to adamSpan that cuts no block, or one block if
// that is longer.
func blockSpan(blocks ...int) int {
	n := 1
	for _, b := range blocks {
		if b > 0 && n%b != 0 {
			n *= b
		}
	}
	return max(1, adamSpan/n) * n
}

// adamRule returns the coefficients of one run, computed in float64.
func adamRule(o *backend.AdamW, lr, coef float32, step int32) simd.AdamW {
	beta1, beta2, rate := float64(o.Beta1), float64(o.Beta2), float64(lr)
	correction1 := 1 - math.Pow(beta1, float64(step))
	root2 := math.Sqrt(1 - math.Pow(beta2, float64(step)))
	r := simd.AdamW{
		Coef:  coef,
		Beta1: o.Beta1, Rest1: float32(1 - beta1),
		Beta2: o.Beta2, Rest2: float32(1 - beta2),
		Decay:   float32(1 - rate*float64(o.WeightDecay)),
		Epsilon: o.Eps,
		Keep:    simd.KeepAll,
	}
	switch o.EpsForm {
	case backend.EpsCorrected:
		r.Rate, r.RootScale = float32(rate/correction1), float32(1/root2)
	default:
		r.Rate, r.RootScale = float32(rate*root2/correction1), 1
	}
	return r
}
