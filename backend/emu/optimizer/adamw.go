package optimizer

import (
	"math"
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// spanElems is the elements of a span: its codes and FP32 values fit the first-level
// cache.
const spanElems = 1024

// minEpsToFlush is far above the root of any second moment that simd.KeepNormal
// flushes to zero: beside a larger Eps such a root changes nothing.
const minEpsToFlush = 0x1p-40

// AdamW is an update of parameters by the equations of backend.AdamW, which explains the
// fields of the same names. Bind prepares it; set the exported fields before.
//
// A run processes spans of all tensors in parallel. It visits a tensor with one scale
// twice: to find its amax, and to store it with the scale that follows from it. Both
// visits compute the new values from the old codes in the same way, so they see the
// same bits. The second visit updates a tensor without a scale, or with a scale per
// block of a row, in place.
//
// The stored scale is scale_inv, 1/s rounded to float32, where
// s = fp8.ScaleFor(amax, limit, pow2); codes are round(x·s). A state that keeps its
// scale_inv f is stored with s = 1/f; if f is 0, as in a tensor never written, with
// s = f = 1.
type AdamW struct {
	Params []Param

	Beta1, Beta2, Eps, WeightDecay float32
	L2, ClipRMS                    float32
	EpsForm                        backend.EpsForm
	Rounding                       fp8.Rounding
	Pow2, FloorV                   bool
	AmaxOnly, AmaxGiven, Shard     bool
	Split                          backend.Group

	Control      []int32   // the words of backend.Control, read in each run
	Step, Skip   []int32   // one element each
	Coef, Amaxes []float32 // one element; three for each of Params
	MeanSquares  []float32 // one element for each of Params, with ClipRMS

	pool   *pool.Pool
	all    []span       // of the second visit
	scaled []span       // of the first visit
	found  [][3]float32 // the amaxes of each span in scaled
	length int          // of the longest span

	firstVisit, lastVisit func()
	revisit               func(worker, param int) // revisitMaxima, bound once because binding allocates
}

// Param is a parameter with its gradient.
type Param struct {
	Grad    memory.Matrix
	Extents *Extents // of Grad; nil: none. A matrix with gaps between its rows has none
	States  [3]State // master, first and second moment; those with a Block have Grad's shape

	codes *codes     // nil if the formats of the states have no codes path
	keep  uint32     // simd.AdamW.Keep
	rule  simd.AdamW // of this run
}

func (t *Param) hasAmax() bool {
	return t.States[0].hasAmax() || t.States[1].hasAmax() || t.States[2].hasAmax()
}

// Bind returns a function that runs the update on p and allocates nothing.
func (a AdamW) Bind(p *pool.Pool) func() {
	a.bind(p)
	return a.run
}

// bind prepares visits.
func (a *AdamW) bind(p *pool.Pool) {
	a.Params = slices.Clone(a.Params)
	a.pool, a.all = p, paramSpans(a.Params)
	for i := range a.Params {
		a.Params[i].bind(a)
	}
	for _, s := range a.all {
		a.length = max(a.length, s.n)
		t := &a.Params[s.tensor]
		if !t.hasAmax() {
			continue
		}
		if t.codes != nil && s.row == 0 && s.col == 0 {
			t.codes.bounds.startAt(len(a.scaled))
		}
		a.scaled = append(a.scaled, s)
	}
	a.found = make([][3]float32, len(a.scaled))
	p.Reserve(4 * a.length)
	a.firstVisit = eachSpan(p, len(a.scaled), a.visit)
	a.lastVisit = eachSpan(p, len(a.all), a.store)
	a.revisit = a.revisitMaxima
}

func (t *Param) bind(a *AdamW) {
	for j := range t.States {
		s := &t.States[j]
		s.out = cast.Encoder{DType: s.DType, Rounding: a.Rounding}
		s.limit, s.pow2 = s.DType.Max(), a.Pow2
	}
	t.States[2].floor = a.FloorV
	t.keep = simd.KeepAll
	if (t.States[1].Scale == nil || t.States[2].Scale == nil) && a.Eps > minEpsToFlush {
		t.keep = simd.KeepNormal
	}
	if a.L2 != 0 {
		return // the codes path has no term for it
	}
	if t.codes = t.newCodes(); t.codes != nil {
		t.codes.bounds = t.newBounds()
	}
}

func (a *AdamW) run() {
	if a.Skip[0] != 0 {
		return
	}
	ctl := backend.ControlFrom(a.Control)
	for i := range a.Params {
		t := &a.Params[i]
		t.rule = a.ruleFor(a.rateOf(i, ctl.LR), a.Coef[0], a.Step[0])
		t.codes.read(&t.rule)
	}
	if !a.AmaxGiven {
		a.findAmaxes()
	}
	if a.AmaxOnly {
		return
	}
	for i := range a.Params {
		t, amax, first := &a.Params[i], a.Amaxes[3*i:][:3], uint64(0)
		if a.Shard {
			first = uint64(a.Split.Index(int(ctl.Rank))) * uint64(t.Grad.Rows*t.Grad.Cols)
		}
		for j := range t.States {
			t.States[j].prepare(amax[j], ctl, first)
			t.States[j].Extents.Forget()
		}
		t.codes.write(amax)
	}
	a.lastVisit()
	for i := range a.Params {
		t := &a.Params[i]
		if t.codes.notes() {
			t.codes.bounds.noted()
		}
		for j := range t.States {
			t.States[j].writeScale(a.Amaxes[3*i+j])
		}
	}
}

// rateOf returns the learning rate of a parameter.
func (a *AdamW) rateOf(param int, lr float32) float64 {
	if a.ClipRMS == 0 {
		return float64(lr)
	}
	return float64(lr) / max(1, math.Sqrt(float64(a.MeanSquares[param]))/float64(a.ClipRMS))
}

// gradient returns the element at which a span begins, and its gradient.
func (a *AdamW) gradient(worker int, s *span) (at int, grad []float32) {
	t := &a.Params[s.tensor]
	return s.row*t.Grad.Cols + s.col, t.Grad.Piece(a.pool.Scratch[worker][3*a.length:], s.row, s.col, s.n)
}

// update computes a span's new states from its old ones and its gradient. If inPlace,
// it overwrites states in FP32.
func (a *AdamW) update(worker int, s *span, inPlace bool) (x [3][]float32, amax [3]float32) {
	x, grad, rule := a.load(worker, s, inPlace)
	return x, rule.Update(x[0], x[1], x[2], grad)
}

// load returns a span's states and its gradient, with the rule that updates them.
func (a *AdamW) load(worker int, s *span, inPlace bool) (x [3][]float32, grad []float32, rule simd.AdamW) {
	t, buffer := &a.Params[s.tensor], a.pool.Scratch[worker]
	at, grad := a.gradient(worker, s)
	for i := range x {
		state := &t.States[i]
		x[i] = buffer[i*a.length:][:s.n]
		switch {
		case state.DType == fp8.F32 && inPlace:
			x[i] = state.F32[at : at+s.n]
		case state.Block > 0:
			state.loadBlocks(x[i], s, at, t.Grad.Cols)
		default:
			state.Load(x[i], 0, at)
		}
	}
	rule = t.rule
	rule.Keep = t.keep
	if a.L2 != 0 {
		sum := buffer[3*a.length:][:s.n] // perhaps grad itself
		for i, g := range grad {
			sum[i] = float32(rule.Coef*g) + float32(a.L2*x[0][i])
		}
		grad, rule.Coef = sum, 1
	}
	return x, grad, rule
}

// findAmaxes is the first visit. It starts with the spans that had the amaxes in the
// last run, so that the bounds can exclude most other blocks.
func (a *AdamW) findAmaxes() {
	clear(a.Amaxes)
	if len(a.scaled) == 0 {
		return
	}
	a.pool.Run(len(a.Params), a.revisit)
	a.firstVisit()
	for i, found := range a.found {
		tensor := a.scaled[i].tensor
		t := &a.Params[tensor]
		for j, x := range found {
			top := &a.Amaxes[3*tensor+j]
			if larger := fp8.MaxAmax(*top, x); larger != *top && t.States[j].hasAmax() {
				*top = larger
				if t.codes != nil {
					t.codes.bounds.spans[j] = i
				}
			}
		}
	}
}

// revisitMaxima visits the spans that had a tensor's amaxes in the last run.
func (a *AdamW) revisitMaxima(worker, param int) {
	c := a.Params[param].codes
	if c == nil || !c.bounds.usable {
		return
	}
	top := a.Amaxes[3*param:][:3]
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

// visit finds the amaxes of a span, without the blocks that cannot have them.
func (a *AdamW) visit(worker, i int) {
	s := a.scaled[i]
	t, at, end := &a.Params[s.tensor], s.col, s.col+s.n // a tensor with bounds is one row
	var amax [3]float32
	for from, to := t.codes.unbounded(at, end); from < to; from, to = t.codes.unbounded(to, end) {
		s.col, s.n = from, to-from
		for j, x := range a.amaxesOf(worker, s) {
			amax[j] = fp8.MaxAmax(amax[j], x)
		}
	}
	a.found[i] = amax
}

// amaxesOf computes the amaxes of a span.
func (a *AdamW) amaxesOf(worker int, s span) [3]float32 {
	n, amax := a.Params[s.tensor].codes.amaxes(a.gradient(worker, &s))
	if s.col, s.n = s.col+n, s.n-n; s.n > 0 {
		_, rest := a.update(worker, &s, false)
		for j, x := range rest {
			amax[j] = fp8.MaxAmax(amax[j], x)
		}
	}
	return amax
}

// store updates a span.
func (a *AdamW) store(worker, i int) {
	s := a.all[i]
	t := &a.Params[s.tensor]
	at, grad := a.gradient(worker, &s)
	whole := s.n
	n := t.codes.store(at, grad)
	if s.col, s.n = s.col+n, s.n-n; s.n > 0 {
		x, _ := a.update(worker, &s, true)
		for j, x := range x {
			if state := &t.States[j]; state.Block > 0 {
				state.storeBlocks(x, &s, at+n, t.Grad.Cols)
			} else {
				state.store(&state.out, x, at+n)
			}
		}
	}
	if t.codes.notes() {
		t.codes.note(at, whole)
	}
}

// paramSpans cuts the tensors into spans. Where scales belong to blocks of a row, a span
// stays within a row.
func paramSpans(params []Param) (list []span) {
	for i := range params {
		t := &params[i]
		one := spans([]memory.Matrix{t.Grad}, spanElems)
		if b1, b2 := t.States[1].Block, t.States[2].Block; b1 > 0 || b2 > 0 {
			one = rowSpans(t.Grad.Rows, t.Grad.Cols, blockSpan(b1, b2))
		}
		for _, s := range one {
			s.tensor = i
			list = append(list, s)
		}
	}
	return list
}

// blockSpan returns the longest span up to spanElems that cuts no block, or one block if
// that is longer.
func blockSpan(blocks ...int) int {
	n := 1
	for _, b := range blocks {
		if b > 0 && n%b != 0 {
			n *= b
		}
	}
	return max(1, spanElems/n) * n
}

// ruleFor returns the coefficients of one run, computed in float64.
func (a *AdamW) ruleFor(rate float64, coef float32, step int32) simd.AdamW {
	beta1, beta2 := float64(a.Beta1), float64(a.Beta2)
	correction1 := 1 - math.Pow(beta1, float64(step))
	root2 := math.Sqrt(1 - math.Pow(beta2, float64(step)))
	r := simd.AdamW{
		Coef:  coef,
		Beta1: a.Beta1, Rest1: float32(1 - beta1),
		Beta2: a.Beta2, Rest2: float32(1 - beta2),
		Decay:   float32(1 - rate*float64(a.WeightDecay)),
		Epsilon: a.Eps,
		Keep:    simd.KeepAll,
	}
	switch a.EpsForm {
	case backend.EpsCorrected:
		r.Rate, r.RootScale = float32(rate/correction1), float32(1/root2)
	default:
		r.Rate, r.RootScale = float32(rate*root2/correction1), 1
	}
	return r
}
