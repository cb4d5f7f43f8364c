package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// AdamW works through spans of all tensors in parallel. A tensor with a scale
// is visited twice: to find its amax, and to store it by the scale that
// follows. Both visits compute the new values from the old codes in the same
// way, so that they see the same bits. A tensor without one is updated in
// place.
//
// The stored scale is the dequantising factor, 1/s rounded to float32, of
// s = fp8.ScaleFor(amax, limit, false); codes are round(x·s). What keeps its
// scale f is stored with s = 1/f, and with s = f = 1 if f is 0, as in a tensor
// that nobody has written.
//
// Element i of the master's, first moment's and second moment's amaxes are
// elements 3i, 3i+1 and 3i+2 of Scratch; 0 for a tensor without a scale.

// adamSpan keeps what AdamW holds of a span, codes and FP32, in the first-level
// cache.
const adamSpan = 1024

// adamState is one of the three stored tensors of a parameter.
type adamState struct {
	in       rows
	out      boundCast
	scaleInv []float32 // nil for F32
	limit    float32   // the format's largest value
}

type adamTensor struct {
	grad  rows
	cols  int          // of grad
	state [3]adamState // master, first and second moment
}

func (t *adamTensor) scaled() bool {
	return t.state[0].scaleInv != nil || t.state[1].scaleInv != nil || t.state[2].scaleInv != nil
}

func (b *binder) adamState(t *backend.Tensor, r fp8.Rounding) adamState {
	m := b.matrixOf(t)
	return adamState{
		in:  b.rows(t),
		out: boundCast{dtype: m.dtype, u16: m.u16, u8: m.u8, name: fp8.NameKey(t.Name), rounding: r},

		scaleInv: b.f32(t.Scale), limit: t.DType.Max(),
	}
}

func (b *binder) adamW(o *backend.AdamW) func() {
	list := make([]adamTensor, len(o.Grad))
	all := spans(o.Grad, adamSpan)
	var scaled []span
	for i, g := range o.Grad {
		list[i] = adamTensor{grad: b.rows(g), cols: g.Cols(), state: [3]adamState{
			b.adamState(o.Master[i], o.Rounding),
			b.adamState(o.M1[i], o.Rounding),
			b.adamState(o.M2[i], o.Rounding),
		}}
	}
	for _, s := range all {
		if list[s.tensor].scaled() {
			scaled = append(scaled, s)
		}
	}
	control, step := b.i32(o.Control), b.i32(o.Step)
	coef, skip, amaxes := b.f32(o.Coef), b.i32(o.Skip), b.f32(o.Scratch)
	partial := make([][3]float32, len(scaled))
	b.pool.reserve(4 * adamSpan)
	var rule simd.AdamW

	// load reads a span's states and gradient, but leaves states where they are
	// if they hold FP32 and inPlace allows to write to them.
	load := func(worker int, s *span, inPlace bool) (x [3][]float32, grad []float32) {
		t, buffer := &list[s.tensor], b.pool.scratch[worker]
		at := s.row*t.cols + s.col
		for i := range x {
			in := &t.state[i].in
			x[i] = buffer[i*adamSpan:][:s.n]
			if in.dtype == fp8.F32 && inPlace {
				x[i] = in.f32[at : at+s.n]
			} else {
				in.load(x[i], 0, at)
			}
		}
		return x, t.grad.piece(buffer[3*adamSpan:], s.row, s.col, s.n)
	}
	findAmaxes := b.eachSpan(len(scaled), func(worker, i int) {
		x, grad := load(worker, &scaled[i], false)
		partial[i] = rule.Update(x[0], x[1], x[2], grad)
	})
	store := b.eachSpan(len(all), func(worker, i int) {
		s := &all[i]
		t := &list[s.tensor]
		at := s.row*t.cols + s.col
		x, grad := load(worker, s, true)
		rule.Update(x[0], x[1], x[2], grad)
		for i, x := range x {
			switch out := &t.state[i].out; out.dtype {
			case fp8.F32:
			case fp8.F16:
				out.encode16(out.u16[at:at+s.n], x, 0, at)
			default:
				out.encode8(out.u8[at:at+s.n], x, 0, at)
			}
		}
	})
	return func() {
		if skip[0] != 0 {
			return
		}
		ctl := readControl(control)
		rule = adamRule(o, ctl.LR, coef[0], step[0])
		findAmaxes()
		clear(amaxes)
		for i, p := range partial {
			tensor := scaled[i].tensor
			for j, a := range p {
				if list[tensor].state[j].scaleInv != nil {
					amaxes[3*tensor+j] = fp8.MaxAmax(amaxes[3*tensor+j], a)
				}
			}
		}
		for i := range list {
			for j := range list[i].state {
				list[i].state[j].prepare(amaxes[3*i+j], ctl)
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

// prepare chooses the scale and the random stream that codes are stored with.
func (s *adamState) prepare(amax float32, ctl backend.Control) {
	s.out.factor = 1
	if s.scaleInv != nil {
		scale, ok := fp8.ScaleFor(amax, s.limit, false)
		if old := s.scaleInv[0]; !ok && old != 0 {
			scale = 1 / old
		}
		s.out.factor = scale
	}
	s.out.key = fp8.StreamKey(ctl.Seed, ctl.Step, s.out.name)
}

// writeScale records the scale of the new codes, once all old ones are read.
func (s *adamState) writeScale(amax float32) {
	if s.scaleInv == nil {
		return
	}
	if _, ok := fp8.ScaleFor(amax, s.limit, false); ok || s.scaleInv[0] == 0 {
		s.scaleInv[0] = 1 / s.out.factor
	}
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
	}
	switch o.EpsForm {
	case backend.EpsCorrected:
		r.Rate, r.RootFactor = float32(rate/correction1), float32(1/root2)
	default:
		r.Rate, r.RootFactor = float32(rate*root2/correction1), 1
	}
	return r
}
