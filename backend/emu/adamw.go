package emu

import (
	"math"

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

// adamState is one of the three stored tensors of a parameter.
type adamState struct {
	in       rows
	out      boundCast
	scaleInv []float32 // nil for F32 and BF16
	limit    float32   // the format's largest value
	block    int       // elements of a row that share a scale; 0: all share one
	pow2     bool
	floor    bool // a positive value is not stored as 0
}

type adamTensor struct {
	grad  rows
	cols  int          // of grad
	state [3]adamState // master, first and second moment
	codes *adamCodes   // nil unless it can update the states
	keep  uint32       // simd.AdamW.Keep
}

// hasAmax reports whether a first visit must find the state's amax.
func (s *adamState) hasAmax() bool { return s.scaleInv != nil && s.block == 0 }

func (t *adamTensor) hasAmax() bool {
	return t.state[0].hasAmax() || t.state[1].hasAmax() || t.state[2].hasAmax()
}

func (b *binder) adamState(o *backend.AdamW, t *backend.Tensor) adamState {
	m := b.matrixOf(t)
	return adamState{
		in:  b.rows(t),
		out: boundCast{dtype: m.dtype, elements: elements{u16: m.u16, u8: m.u8}, name: fp8.NameKey(t.Name), rounding: o.Rounding},

		scaleInv: b.f32(t.Scale), limit: t.DType.Max(), block: t.Block.Cols, pow2: o.Pow2,
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

func (b *binder) adamW(o *backend.AdamW) func() {
	list := make([]adamTensor, len(o.Grad))
	all, longest := adamSpans(o), 0
	var scaled []span
	for i, g := range o.Grad {
		list[i] = adamTensor{grad: b.rows(g), cols: g.Cols(), state: [3]adamState{
			b.adamState(o, o.Master[i]), b.adamState(o, o.M1[i]), b.adamState(o, o.M2[i]),
		}}
		list[i].state[2].floor = o.FloorV
		list[i].codes = list[i].newCodes()
		list[i].keep = simd.KeepAll
		if (o.M1Scale[i] == nil || o.M2Scale[i] == nil) && o.Eps > largestTiny {
			list[i].keep = simd.KeepNormal
		}
	}
	for _, s := range all {
		longest = max(longest, s.n)
		if list[s.tensor].hasAmax() {
			scaled = append(scaled, s)
		}
	}
	control, step := b.i32(o.Control), b.i32(o.Step)
	coef, skip, amaxes := b.f32(o.Coef), b.i32(o.Skip), b.f32(o.Amaxes)
	partial := make([][3]float32, len(scaled))
	b.pool.reserve(4 * longest)
	var rule simd.AdamW

	// gradient is where a span begins and its gradient.
	gradient := func(worker int, s *span) (at int, grad []float32) {
		t := &list[s.tensor]
		return s.row*t.cols + s.col, t.grad.piece(b.pool.scratch[worker][3*longest:], s.row, s.col, s.n)
	}
	// load reads a span's states and gradient, but leaves states where they are
	// if they hold FP32 and inPlace allows to write to them.
	load := func(worker int, s *span, inPlace bool) (x [3][]float32, grad []float32) {
		t, buffer := &list[s.tensor], b.pool.scratch[worker]
		at, grad := gradient(worker, s)
		for i := range x {
			state := &t.state[i]
			x[i] = buffer[i*longest:][:s.n]
			switch {
			case state.in.dtype == fp8.F32 && inPlace:
				x[i] = state.in.f32[at : at+s.n]
			case state.block > 0:
				state.loadBlocks(x[i], s, at, t.cols)
			default:
				state.in.load(x[i], 0, at)
			}
		}
		return x, grad
	}
	update := func(s *span, x [3][]float32, grad []float32) (amax [3]float32) {
		r := rule
		r.Keep = list[s.tensor].keep
		return r.Update(x[0], x[1], x[2], grad)
	}
	findAmaxes := b.eachSpan(len(scaled), func(worker, i int) {
		s := scaled[i]
		n, amax := list[s.tensor].codes.amaxes(gradient(worker, &s))
		if s.col, s.n = s.col+n, s.n-n; s.n > 0 {
			x, grad := load(worker, &s, false)
			for j, a := range update(&s, x, grad) {
				amax[j] = fp8.MaxAmax(amax[j], a)
			}
		}
		partial[i] = amax
	})
	store := b.eachSpan(len(all), func(worker, i int) {
		s := all[i]
		t := &list[s.tensor]
		n := t.codes.store(gradient(worker, &s))
		if s.col, s.n = s.col+n, s.n-n; s.n == 0 {
			return
		}
		at := s.row*t.cols + s.col
		x, grad := load(worker, &s, true)
		update(&s, x, grad)
		for i, x := range x {
			if state := &t.state[i]; state.block > 0 {
				state.storeBlocks(x, &s, at, t.cols)
			} else {
				state.store(&state.out, x, at)
			}
		}
	})
	return func() {
		if skip[0] != 0 {
			return
		}
		ctl := readControl(control)
		rule = adamRule(o, ctl.LR, coef[0], step[0])
		for i := range list {
			if c := list[i].codes; c != nil {
				c.read(&rule)
			}
		}
		if !o.AmaxGiven {
			findAmaxes()
			clear(amaxes)
			for i, p := range partial {
				tensor := scaled[i].tensor
				for j, a := range p {
					if list[tensor].state[j].hasAmax() {
						amaxes[3*tensor+j] = fp8.MaxAmax(amaxes[3*tensor+j], a)
					}
				}
			}
		}
		if o.AmaxOnly {
			return
		}
		for i := range list {
			first := uint64(0)
			if o.Shard {
				first = uint64(ctl.Rank) * uint64(o.Grad[i].Elems())
			}
			for j := range list[i].state {
				list[i].state[j].prepare(amaxes[3*i+j], ctl, first)
			}
			if c := list[i].codes; c != nil {
				c.write(amaxes[3*i:][:3])
			}
		}
		store()
		for i := range list {
			for j := range list[i].state {
				list[i].state[j].writeScale(amaxes[3*i+j])
			}
		}
	}
}

// prepare chooses the scale and the random stream that codes are stored with;
// first is the index of the first element's random bits.
func (s *adamState) prepare(amax float32, ctl backend.Control, first uint64) {
	s.out.factor = 1
	if s.hasAmax() {
		s.out.factor = s.scaleFor(amax, s.scaleInv[0])
	}
	s.out.key, s.out.base = fp8.StreamKey(ctl.Seed, ctl.Step, s.out.name), first
}

// scaleFor is the scale of values with this amax; one that says nothing keeps
// the old scale.
func (s *adamState) scaleFor(amax, oldInv float32) float32 {
	scale, ok := fp8.ScaleFor(amax, s.limit, s.pow2)
	if !ok && oldInv != 0 {
		scale = 1 / oldInv
	}
	return scale
}

// record is the stored scale that goes with it.
func (s *adamState) record(scaleInv *float32, amax, scale float32) {
	if _, ok := fp8.ScaleFor(amax, s.limit, s.pow2); ok || *scaleInv == 0 {
		*scaleInv = 1 / scale
	}
}

// writeScale records the scale of the new codes, once all old ones are read.
func (s *adamState) writeScale(amax float32) {
	if s.hasAmax() {
		s.record(&s.scaleInv[0], amax, s.out.factor)
	}
}

// store casts x, which begins at element at.
func (s *adamState) store(out *boundCast, x []float32, at int) {
	end := at + len(x)
	switch out.dtype {
	case fp8.F32:
		return
	case fp8.F16, fp8.BF16:
		out.encode16(out.u16[at:end], x, 0, at)
		if s.floor {
			floorCodes(out.u16[at:end], x)
		}
	default:
		out.encode8(out.u8[at:end], x, 0, at)
		if s.floor {
			floorCodes(out.u8[at:end], x)
		}
	}
}

// floorCodes replaces codes of 0 by that of the smallest number where x is
// positive. In every format it is 1.
func floorCodes[C uint8 | uint16](codes []C, x []float32) {
	for i, c := range codes {
		if c == 0 && x[i] > 0 {
			codes[i] = 1
		}
	}
}

// blocks calls f for the parts of a span that share a scale: elements
// [from, to) of it.
func (s *adamState) blocks(sp *span, cols int, f func(scaleInv []float32, from, to int)) {
	first := sp.row * parts(cols, s.block)
	for from := 0; from < sp.n; from += s.block {
		f(s.scaleInv[first+(sp.col+from)/s.block:][:1], from, min(from+s.block, sp.n))
	}
}

func (s *adamState) loadBlocks(x []float32, sp *span, at, cols int) {
	in := s.in
	s.blocks(sp, cols, func(scaleInv []float32, from, to int) {
		in.scale = scaleInv
		in.load(x[from:to], 0, at+from)
	})
}

func (s *adamState) storeBlocks(x []float32, sp *span, at, cols int) {
	out := s.out
	s.blocks(sp, cols, func(scaleInv []float32, from, to int) {
		amax := fp8.Amax(x[from:to])
		out.factor = s.scaleFor(amax, scaleInv[0])
		s.store(&out, x[from:to], at+from)
		s.record(&scaleInv[0], amax, out.factor)
	})
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
