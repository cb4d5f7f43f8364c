package nn

import (
	"cmp"
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// runningWindow is the amax history window of frozen scales, in updates
// (method.md). An all-time maximum would keep the worst early spike forever.
const runningWindow = 16

// record is the scale state of one cast of one tensor, named after the tensor
// and the format ("layers.3.mlp.input.e4m3"). Readers of the same cast of a
// tensor share its record. Its tensors are views of the packed ones of Scales.
type record struct {
	name   string
	slot   string // name of the tensor
	cast   recipe.Cast
	weight bool
	fixed  float32 // the scale of constant scaling

	amax     *backend.Tensor // this step's maximum
	scale    *backend.Tensor
	scaleInv *backend.Tensor
	distance *backend.Tensor // of a clipped gradient, in the last micro-batch; nil for other scaling
}

// measuredCast is a cast that a health pass measures.
type measuredCast struct {
	name   string
	rec    *record // nil if the cast computes its own scales
	blocks bool    // per-row or block scales
}

// updatedLike reports whether one UpdateScale op can choose both scales.
func (r *record) updatedLike(q *record) bool {
	return r.cast.Scaling == q.cast.Scaling && r.cast.Limit() == q.cast.Limit() && r.cast.Scale == q.cast.Scale && r.cast.History == q.cast.History
}

// Scales is the scale state of a model, packed into four tensors so that one
// reduction over ranks and a few ops serve all records:
//
//	fp8.amax          Stash [n]          maxima of this step
//	fp8.amax_history  State [window, n]  newest update first
//	fp8.scale         State [n]          multiplies before the cast
//	fp8.scale_inv     State [n]          dequantizes
//
// The window is the longest of all records; each reads the rows of its own. Records are
// sorted into ranges of equal scaling, limit, scale format and window, with
// activations and gradients before weights: a micro-batch clears the maxima of
// the former, an update those of the latter. Per-row and block scales have no
// record: they do not outlive the copy that they belong to.
type Scales struct {
	records  []*record
	measured []measuredCast
	one      *backend.Tensor // the constant 1 of unit scaling

	constants []*backend.Tensor // Input [1]: the scales of constant scaling and their inverses

	Amax, History, Scale, ScaleInv *backend.Tensor
	Distance                       *backend.Tensor // Stash [casts with scaling direction]: see directionClip
	firstWeight                    int
}

// known reports whether the scale is known before any amax.
func (r *record) known() bool {
	return r.cast.Scaling == recipe.Unit || r.cast.Scaling == recipe.Constant
}

// record registers the scale state of a slot's copy copyName.
func (s *Scales) record(slot, copyName string, c Copy, weight bool) *record {
	r := &record{name: slot + "." + copyName, slot: slot, cast: c.Cast, weight: weight, fixed: c.Constant}
	s.records = append(s.records, r)
	return r
}

// Empty reports whether there are no records.
func (s *Scales) Empty() bool { return len(s.records) == 0 }

// pack sorts the records and declares the packed tensors.
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
			compareBools(a.cast.Scale != recipe.Pow2, b.cast.Scale != recipe.Pow2),
			cmp.Compare(a.cast.History, b.cast.History),
		)
	})
	window := runningWindow
	for _, r := range s.records {
		window = max(window, r.window())
	}
	s.Amax = vars.Tensor(backend.Stash, "fp8.amax", fp8.F32, n)
	s.History = vars.Tensor(backend.State, "fp8.amax_history", fp8.F32, window, n)
	s.Scale = vars.Tensor(backend.State, "fp8.scale", fp8.F32, n)
	s.ScaleInv = vars.Tensor(backend.State, "fp8.scale_inv", fp8.F32, n)
	s.packDistances(vars)
	s.firstWeight = n
	for i, r := range s.records {
		if r.weight {
			s.firstWeight = min(s.firstWeight, i)
		}
		r.amax = s.Amax.Slice(r.name+".amax", i, 1)
		r.scale = s.Scale.Slice(r.name+".scale", i, 1)
		r.scaleInv = s.ScaleInv.Slice(r.name+".scale_inv", i, 1)
		if r.cast.Scaling == recipe.Constant {
			r.scale, r.scaleInv = s.constant(vars, r.fixed), s.constant(vars, 1/r.fixed)
		}
	}
}

// constant returns the tensor of a constant, which all records with the same value share.
func (s *Scales) constant(vars *backend.Vars, value float32) *backend.Tensor {
	for _, t := range s.constants {
		if t.Value == value {
			return t
		}
	}
	t := vars.Tensor(backend.Input, fmt.Sprintf("fp8.constant%d", len(s.constants)), fp8.F32, 1)
	t.Value = value
	s.constants = append(s.constants, t)
	return t
}

// packDistances declares the distances of clipped gradients.
func (s *Scales) packDistances(vars *backend.Vars) {
	var clipped []*record
	for _, r := range s.records {
		if r.cast.Scaling == recipe.Direction {
			clipped = append(clipped, r)
		}
	}
	if len(clipped) == 0 {
		return
	}
	s.Distance = vars.Tensor(backend.Stash, "fp8.distance", fp8.F32, len(clipped))
	for i, r := range clipped {
		r.distance = s.Distance.Slice(r.name+".distance", i, 1)
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

// clear zeroes this step's maxima, either of weights or of activations and gradients.
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

// reduceWeights all-reduces the maxima of weights, of which each rank has cast its rows.
func (s *Scales) reduceWeights(p *Pass) {
	if n := len(s.records) - s.firstWeight; n > 0 {
		p.comm().Add(&backend.AllReduce{X: s.Amax.Slice("fp8.amax.weights", s.firstWeight, n), Reduce: backend.ReduceMax})
	}
}

// update pushes the step's maxima into the history and chooses the scale of every
// record from it, unit and constant scales aside. Records of current scaling get a scale too,
// which only frozen passes use. skip may be nil.
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
		if !first.known() {
			p.Add(&backend.UpdateScale{
				History:  s.History.RowRange(0, first.window()).Columns(first.name+".history", from, to-from),
				Skip:     skip,
				Scale:    s.Scale.Slice(first.name+".scales", from, to-from),
				ScaleInv: s.ScaleInv.Slice(first.name+".scale_invs", from, to-from),
				Limit:    first.cast.Limit(), Pow2: first.cast.Scale == recipe.Pow2, Outer: first.cast.Scale.Outer, Keep: true,
			})
		}
		from = to
	}
}

// window returns the amax history window of a record's scale, in updates.
func (r *record) window() int {
	if r.cast.Scaling == recipe.Delayed {
		return r.cast.History
	}
	return runningWindow
}
