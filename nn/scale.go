package nn

import (
	"cmp"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// runningWindow is how many updates a frozen scale looks back (method.md): an
// all-time maximum would keep the worst early spike for ever.
const runningWindow = 16

// record is the scale state of one cast of one tensor, named after what the
// tensor is and its format ("layers.3.mlp.input.e4m3"): readers that share the
// tensor and want the same cast share the record. Its tensors are views into
// the packed ones of Scales.
type record struct {
	name   string
	slot   string // what the tensor is
	cast   recipe.Cast
	weight bool

	amax     *backend.Tensor // this step's maximum
	scale    *backend.Tensor
	scaleInv *backend.Tensor
}

// measuredCast is a cast that a health pass measures.
type measuredCast struct {
	name   string
	rec    *record // nil where the scales come from the cast's own elements
	blocks bool    // more scales than one
}

// updatedLike reports whether one op chooses both scales.
func (r *record) updatedLike(q *record) bool {
	return r.cast.Scaling == q.cast.Scaling && r.cast.Limit() == q.cast.Limit() && r.cast.Scale == q.cast.Scale
}

// Scales is the scale state of a model, packed into four tensors so that one
// reduction over ranks and a few ops serve all records:
//
//	fp8.amax          Stash [n]          maxima of this step
//	fp8.amax_history  State [window, n]  newest update first
//	fp8.scale         State [n]          multiplies before the cast
//	fp8.scale_inv     State [n]          dequantises
//
// Records lie in ranges of equal scaling, limit and format of the scale,
// activations and gradients first, weights last: a micro-batch clears the first
// part, an update the second. Scales by block have no record: nothing of them
// outlives the copy that they belong to.
type Scales struct {
	delayedWindow int // updates that delayed scaling looks back
	records       []*record
	measured      []measuredCast
	one           *backend.Tensor // the constant scale of unit scaling

	Amax, History, Scale, ScaleInv *backend.Tensor
	firstWeight                    int
}

// record registers a tensor that will be cast, and the name of the copy.
func (s *Scales) record(slot, copyName string, c recipe.Cast, weight bool) *record {
	r := &record{name: slot + "." + copyName, slot: slot, cast: c, weight: weight}
	s.records = append(s.records, r)
	return r
}

// Empty reports whether nothing is scaled.
func (s *Scales) Empty() bool { return len(s.records) == 0 }

// pack lays the records out and declares the tensors.
func (s *Scales) pack(vars *backend.Vars) {
	n := len(s.records)
	if n == 0 {
		return
	}
	slices.SortStableFunc(s.records, func(a, b *record) int {
		return cmp.Or(
			compareBools(a.weight, b.weight),
			cmp.Compare(a.cast.Scaling, b.cast.Scaling),
			cmp.Compare(a.cast.Limit(), b.cast.Limit()),
			cmp.Compare(a.cast.Scale, b.cast.Scale),
		)
	})
	s.Amax = vars.Tensor(backend.Stash, "fp8.amax", fp8.F32, n)
	s.History = vars.Tensor(backend.State, "fp8.amax_history", fp8.F32, max(s.delayedWindow, runningWindow), n)
	s.Scale = vars.Tensor(backend.State, "fp8.scale", fp8.F32, n)
	s.ScaleInv = vars.Tensor(backend.State, "fp8.scale_inv", fp8.F32, n)
	s.firstWeight = n
	for i, r := range s.records {
		if r.weight {
			s.firstWeight = min(s.firstWeight, i)
		}
		r.amax = s.Amax.Slice(r.name+".amax", i, 1)
		r.scale = s.Scale.Slice(r.name+".scale", i, 1)
		r.scaleInv = s.ScaleInv.Slice(r.name+".scale_inv", i, 1)
	}
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// clear zeroes this step's maxima: of weights, or of everything else.
func (s *Scales) clear(p *backend.Program, weights bool) {
	from, to := 0, s.firstWeight
	if weights {
		from, to = s.firstWeight, len(s.records)
	}
	if from < to {
		name := "fp8.amax.activations"
		if weights {
			name = "fp8.amax.weights"
		}
		p.Add(&backend.Fill{Out: s.Amax.Slice(name, from, to-from)})
	}
}

// update pushes the step's maxima into the history and chooses every record's
// scale from it. A current scale is not used in training, but evaluation is
// frozen to it; a unit scale stays what it is. skip may be nil.
func (s *Scales) update(p *backend.Program, skip *backend.Tensor) {
	if s.Empty() {
		return
	}
	p.Add(&backend.PushHistory{Value: s.Amax, Skip: skip, History: s.History})
	for from := 0; from < len(s.records); {
		first := s.records[from]
		to := from
		for to < len(s.records) && s.records[to].updatedLike(first) {
			to++
		}
		if first.cast.Scaling != recipe.Unit {
			p.Add(&backend.UpdateScale{
				History:  s.History.RowRange(0, s.window(first)).Columns(first.name+".history", from, to-from),
				Skip:     skip,
				Scale:    s.Scale.Slice(first.name+".scales", from, to-from),
				ScaleInv: s.ScaleInv.Slice(first.name+".scale_invs", from, to-from),
				Limit:    first.cast.Limit(), Pow2: first.cast.Scale == recipe.Pow2, Keep: true,
			})
		}
		from = to
	}
}

// window is how many updates the scale of a record looks back.
func (s *Scales) window(r *record) int {
	if r.cast.Scaling == recipe.Delayed {
		return s.delayedWindow
	}
	return runningWindow
}
