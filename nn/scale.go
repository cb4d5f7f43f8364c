package nn

import (
	"cmp"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// record is the scale state of one tensor in one FP8 format, named after what
// the tensor is ("layers.3.mlp.input"): readers that share the tensor share
// the record. Its fields are views into the packed tensors of Scales.
type record struct {
	name   string
	cast   recipe.Cast
	weight bool
	limit  float32

	amax     *backend.Tensor // this step's maximum
	scale    *backend.Tensor
	scaleInv *backend.Tensor
}

// Scales is the scale state of a model, packed into four tensors so that one
// reduction over ranks and one kernel serve all records:
//
//	fp8.amax          Stash [n]          maxima of this step
//	fp8.amax_history  State [window, n]  newest update first
//	fp8.scale         State [n]          multiplies before the cast
//	fp8.scale_inv     State [n]          dequantises
//
// Records lie in ranges of equal limit, activations and gradients first,
// weights last: a micro-batch clears the first part, an update the second.
type Scales struct {
	window  int
	records []*record
	one     *backend.Tensor // the constant scale of unit scaling

	Amax, History, Scale, ScaleInv *backend.Tensor
	firstWeight                    int
}

// record registers a tensor that will be cast; asking twice returns the same.
func (s *Scales) record(name string, c recipe.Cast, weight bool) *record {
	for _, r := range s.records {
		if r.name == name && r.cast.DType == c.DType {
			return r
		}
	}
	r := &record{name: name, cast: c, weight: weight, limit: c.Limit()}
	s.records = append(s.records, r)
	return r
}

// pack lays the records out and declares the tensors.
func (s *Scales) pack(vars *backend.Vars) {
	n := len(s.records)
	if n == 0 {
		return
	}
	slices.SortStableFunc(s.records, func(a, b *record) int {
		if a.weight != b.weight {
			if a.weight {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.limit, b.limit)
	})
	s.Amax = vars.Tensor(backend.Stash, "fp8.amax", fp8.F32, n)
	s.History = vars.Tensor(backend.State, "fp8.amax_history", fp8.F32, s.window, n)
	s.Scale = vars.Tensor(backend.State, "fp8.scale", fp8.F32, n)
	s.ScaleInv = vars.Tensor(backend.State, "fp8.scale_inv", fp8.F32, n)
	s.firstWeight = n
	for i, r := range s.records {
		if r.weight {
			s.firstWeight = min(s.firstWeight, i)
		}
		name := r.name + "." + r.cast.DType.String()
		r.amax = s.Amax.Slice(name+".amax", i, 1)
		r.scale = s.Scale.Slice(name+".scale", i, 1)
		r.scaleInv = s.ScaleInv.Slice(name+".scale_inv", i, 1)
	}
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
// frozen to it. skip may be nil.
func (s *Scales) update(p *backend.Program, skip *backend.Tensor) {
	if len(s.records) == 0 {
		return
	}
	p.Add(&backend.PushHistory{Value: s.Amax, Skip: skip, History: s.History})
	for from := 0; from < len(s.records); {
		to := from
		for to < len(s.records) && s.records[to].limit == s.records[from].limit {
			to++
		}
		name := s.records[from].name
		p.Add(&backend.UpdateScale{
			History:  s.History.Columns(name+".history", from, to-from),
			Skip:     skip,
			Scale:    s.Scale.Slice(name+".scales", from, to-from),
			ScaleInv: s.ScaleInv.Slice(name+".scale_invs", from, to-from),
			Limit:    s.records[from].limit, Pow2: true, Keep: true,
		})
		from = to
	}
}

// Record is the public view of one record, for checkpoints and telemetry.
type Record struct {
	Name                  string
	DType                 fp8.DType
	Weight                bool
	Amax, Scale, ScaleInv *backend.Tensor // F32 [1] each
}

// Records lists the scale records in their packed order.
func (s *Scales) Records() []Record {
	list := make([]Record, len(s.records))
	for i, r := range s.records {
		list[i] = Record{r.name, r.cast.DType, r.weight, r.amax, r.scale, r.scaleInv}
	}
	return list
}
