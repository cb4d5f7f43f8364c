package nn

import (
	"errors"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Packed lists the state tensors that concatenate the state of many casts or layers.
func (b *Base) Packed() []*backend.Tensor {
	var list []*backend.Tensor
	for _, t := range []*backend.Tensor{b.Scales.Scale, b.Scales.ScaleInv, b.Scales.History, b.ChannelHistory} {
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

// columns returns the column ranges of a packed state tensor, nil for any other
// tensor. Their names do not depend on which other layers and formats there are:
// checkpoints store these ranges, not the packed tensor.
func (b *Base) columns(t *backend.Tensor) []column {
	var list []column
	switch t {
	case nil:
	case b.Scales.Scale, b.Scales.ScaleInv, b.Scales.History:
		kind := map[*backend.Tensor]string{
			b.Scales.Scale: "scale", b.Scales.ScaleInv: "scale_inv", b.Scales.History: "amax_history",
		}[t]
		for i, r := range b.Scales.records {
			list = append(list, column{r.name + "." + kind, i, 1})
		}
	case b.ChannelHistory:
		for _, l := range b.mlps {
			list = append(list, l.channelColumns()...)
		}
	}
	return list
}

// Unpack calls emit for every named column range of a packed tensor's values,
// with shape [rows, columns], or [columns] if the tensor has one row.
func (b *Base) Unpack(t *backend.Tensor, values []float32, emit func(name string, shape []int, part []float32)) {
	width := t.Cols()
	for _, c := range b.columns(t) {
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

// ErrNoTensor is wrapped by the get function of Pack for a name that does not exist.
var ErrNoTensor = errors.New("there is no tensor")

// Pack returns the values of a packed tensor; it is the inverse of Unpack. get returns
// the values of a name, ErrNoTensor, or nil for those that start with a scale of 1 and an
// empty history. A saved history with another window is truncated, or padded with zeros
// after the oldest update. Scales that never change need none.
//
// A device with other FP8 formats may have saved a record under another format. Where
// get has nothing for a record but has the history of the same tensor in another FP8
// format, Pack takes that history, and the scale that an update would choose from it.
// Any other error of get is returned.
func (b *Base) Pack(t *backend.Tensor, get func(name string) ([]float32, error)) ([]float32, error) {
	width := t.Cols()
	values := make([]float32, t.Elems())
	for _, c := range b.columns(t) {
		part, err := get(c.name)
		if missing(part, err) && t != b.ChannelHistory {
			converted, failure := b.Scales.converted(t, b.Scales.records[c.from], get)
			if converted != nil || failure != nil {
				part, err = converted, failure
			}
		}
		if errors.Is(err, ErrNoTensor) && t != b.ChannelHistory && b.Scales.records[c.from].known() {
			part, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		if part == nil {
			if t == b.Scales.Scale || t == b.Scales.ScaleInv {
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

// converted returns a record's values of a packed tensor, derived from the history
// of the same tensor in another format; nil if there is none.
func (s *Scales) converted(t *backend.Tensor, r *record, get func(name string) ([]float32, error)) ([]float32, error) {
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		history, err := get(r.slot + "." + d.String() + ".amax_history")
		if missing(history, err) {
			continue
		}
		if err != nil || t == s.History {
			return history, err
		}
		scale := float32(1)
		if r.cast.Scaling != recipe.Unit {
			amax := fp8.Amax(history[:min(r.window(), len(history))])
			if scale, _ = fp8.ScaleFor(amax, r.cast.Limit(), r.cast.Scale == recipe.Pow2); r.cast.Scale.Outer {
				scale = fp8.OuterScale(amax, r.cast.Limit())
			}
		}
		if t == s.ScaleInv {
			scale = 1 / scale
		}
		return []float32{scale}, nil
	}
	return nil, nil
}

// missing reports whether get found nothing, as opposed to failing to read it.
func missing(part []float32, err error) bool {
	return part == nil && (err == nil || errors.Is(err, ErrNoTensor))
}
