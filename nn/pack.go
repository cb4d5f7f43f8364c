package nn

import (
	"errors"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Packed lists the state tensors that hold many records side by side.
func (m *Model) Packed() []*backend.Tensor {
	var list []*backend.Tensor
	for _, t := range []*backend.Tensor{m.Scales.Scale, m.Scales.ScaleInv, m.Scales.History, m.ChannelHistory} {
		if t != nil {
			list = append(list, t)
		}
	}
	return list
}

// column is a named range of columns of a packed tensor.
type column struct {
	name    string
	from, n int
}

// columns says what the columns of a packed state tensor are, under names that
// do not change when layers or formats come and go; nil for any other tensor.
// Checkpoints store the parts, not the packing.
func (m *Model) columns(t *backend.Tensor) []column {
	var list []column
	switch t {
	case nil:
	case m.Scales.Scale, m.Scales.ScaleInv, m.Scales.History:
		kind := map[*backend.Tensor]string{
			m.Scales.Scale: "scale", m.Scales.ScaleInv: "scale_inv", m.Scales.History: "amax_history",
		}[t]
		for i, r := range m.Scales.records {
			list = append(list, column{r.name + "." + kind, i, 1})
		}
	case m.ChannelHistory:
		for _, l := range m.layers {
			list = append(list, l.mlp.channelColumns()...)
		}
	}
	return list
}

// Unpack calls emit for every named part of a packed tensor's values: F32,
// [rows, part] with one row for a vector.
func (m *Model) Unpack(t *backend.Tensor, values []float32, emit func(name string, shape []int, part []float32)) {
	width := t.Cols()
	for _, c := range m.columns(t) {
		part := make([]float32, 0, t.Rows()*c.n)
		for row := range t.Rows() {
			part = append(part, values[row*width+c.from:row*width+c.from+c.n]...)
		}
		shape := []int{t.Rows(), c.n}
		if t.Rows() == 1 {
			shape = shape[1:]
		}
		emit(c.name, shape, part)
	}
}

// ErrNoTensor is what a get of Pack wraps where there is nothing under the name.
var ErrNoTensor = errors.New("there is no tensor")

// Pack is the inverse: get returns the part of a name, ErrNoTensor, or nil for one that
// starts anew, with a scale of 1 and an empty history. A history that was saved
// with another window is cut, or filled up with zeros behind the oldest update.
//
// Where get has nothing for a cast, but for the same tensor in another FP8
// format, as a device with other formats left it, the history is that one's, and
// the scale what an update would choose from it. What get could not read is not looked
// for elsewhere: its error is returned.
func (m *Model) Pack(t *backend.Tensor, get func(name string) ([]float32, error)) ([]float32, error) {
	width := t.Cols()
	values := make([]float32, t.Elems())
	for _, c := range m.columns(t) {
		part, err := get(c.name)
		if none(part, err) && t != m.ChannelHistory {
			converted, failure := m.Scales.converted(t, m.Scales.records[c.from], get)
			if converted != nil || failure != nil {
				part, err = converted, failure
			}
		}
		if err != nil {
			return nil, err
		}
		if part == nil {
			if t == m.Scales.Scale || t == m.Scales.ScaleInv {
				values[c.from] = 1
			}
			continue
		}
		if len(part)%c.n != 0 || len(part) == 0 {
			return nil, fmt.Errorf("%s has %d values, expected a multiple of %d", c.name, len(part), c.n)
		}
		for row := range min(t.Rows(), len(part)/c.n) {
			copy(values[row*width+c.from:row*width+c.from+c.n], part[row*c.n:])
		}
	}
	return values, nil
}

// converted is a record's part of a packed tensor, from the history of the same
// tensor in another format; nil if there is none.
func (s *Scales) converted(t *backend.Tensor, r *record, get func(name string) ([]float32, error)) ([]float32, error) {
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		history, err := get(r.slot + "." + d.String() + ".amax_history")
		if none(history, err) {
			continue
		}
		if err != nil || t == s.History {
			return history, err
		}
		scale := float32(1)
		if r.cast.Scaling != recipe.Unit {
			scale, _ = fp8.ScaleFor(fp8.Amax(history[:min(s.window(r), len(history))]), r.cast.Limit(), r.cast.Scale == recipe.Pow2)
		}
		if t == s.ScaleInv {
			scale = 1 / scale
		}
		return []float32{scale}, nil
	}
	return nil, nil
}

// none says that get has nothing, which it could have read.
func none(part []float32, err error) bool {
	return part == nil && (err == nil || errors.Is(err, ErrNoTensor))
}
