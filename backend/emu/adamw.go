package emu

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// AdamW works through spans of all tensors in parallel. A tensor with one scale
// is visited twice: to find its amax, and to store it by the scale that
// follows. Both visits compute the new values from the old codes in the same
// way, so that they see the same bits. A tensor without a scale, or with a scale
// for each block of a row, is updated in place by the second visit.
//
// The stored scale is the dequantising factor, 1/s rounded to float32, of
// s = fp8.ScaleFor(amax, limit, pow2); codes are round(x·s). What keeps its
// scale f is stored with s = 1/f, and with s = f = 1 if f is 0, as in a tensor
// that nobody has written.

// adamSpan keeps what AdamW holds of a span, codes and FP32, in the first-level
// cache.
const adamSpan = 1024

// largestTiny is far above the root of a second moment that simd.KeepNormal drops:
// with a larger Eps it makes no difference whether it is there.
const largestTiny = 0x1p-40

type adamTensor struct {
	grad  rows
	cols  int          // of grad
	state [3]adamState // master, first and second moment
	codes *adamCodes   // nil unless it can update the states
	keep  uint32       // simd.AdamW.Keep
}

func (t *adamTensor) hasAmax() bool {
	return t.state[0].hasAmax() || t.state[1].hasAmax() || t.state[2].hasAmax()
}

// adamW is the op, bound.
type adamW struct {
	*binder
	op     *backend.AdamW
	list   []adamTensor
	all    []span       // of the second visit
	scaled []span       // of the first
	found  [][3]float32 // the amaxes in those
	length int          // of the longest span

	control, step, skip []int32
	coef, amaxes        []float32
	written             []*extents

	rule                  simd.AdamW // of this run
	firstVisit, lastVisit func()
	visitFound            func(worker, tensor int) // bound once: that allocates
}

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
	b.pool.reserve(4 * a.length)
	a.firstVisit = b.eachSpan(len(a.scaled), a.visit)
	a.lastVisit = b.eachSpan(len(a.all), a.store)
	a.visitFound = a.visitWhereFound
	return a.run
}

// adamTensor binds t to parameter i of the op.
func (b *binder) adamTensor(t *adamTensor, o *backend.AdamW, i int) {
	t.grad, t.cols, t.keep = b.rows(o.Grad[i]), o.Grad[i].Cols(), simd.KeepAll
	for j, x := range []*backend.Tensor{o.Master[i], o.M1[i], o.M2[i]} {
		t.state[j] = b.adamState(o, x)
	}
	t.state[2].floor = o.FloorV
	if (o.M1Scale[i] == nil || o.M2Scale[i] == nil) && o.Eps > largestTiny {
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
	ctl := readControl(a.control)
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

// gradient is where a span begins and its gradient.
func (a *adamW) gradient(worker int, s *span) (at int, grad []float32) {
	t := &a.list[s.tensor]
	return s.row*t.cols + s.col, t.grad.piece(a.pool.scratch[worker][3*a.length:], s.row, s.col, s.n)
}

// update loads a span's states and gradient and computes the new states, those in FP32
// in place if inPlace allows to write to them.
func (a *adamW) update(worker int, s *span, inPlace bool) (x [3][]float32, amax [3]float32) {
	t, buffer := &a.list[s.tensor], a.pool.scratch[worker]
	at, grad := a.gradient(worker, s)
	for i := range x {
		state := &t.state[i]
		x[i] = buffer[i*a.length:][:s.n]
		switch {
		case state.in.dtype == fp8.F32 && inPlace:
			x[i] = state.in.f32[at : at+s.n]
		case state.block > 0:
			state.loadBlocks(x[i], s, at, t.cols)
		default:
			state.in.load(x[i], 0, at)
		}
	}
	rule := a.rule
	rule.Keep = t.keep
	return x, rule.Update(x[0], x[1], x[2], grad)
}

// findAmaxes is the first visit. What the last run found is looked at first.
func (a *adamW) findAmaxes() {
	clear(a.amaxes)
	if len(a.scaled) == 0 {
		return
	}
	a.pool.run(len(a.list), a.visitFound)
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

func (a *adamW) visitWhereFound(worker, tensor int) {
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

// adamSpans cuts the tensors into spans: rows apart where scales belong to
// parts of a row.
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

// blockSpan is the largest span that cuts no block.
func blockSpan(blocks ...int) int {
	n := 1
	for _, b := range blocks {
		if b > 0 && n%b != 0 {
			n *= b
		}
	}
	return max(1, adamSpan/n) * n
}

// adamRule is the arithmetic of one run, computed in float64.
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
		r.Rate, r.RootFactor = float32(rate/correction1), float32(1/root2)
	default:
		r.Rate, r.RootFactor = float32(rate*root2/correction1), 1
	}
	return r
}
