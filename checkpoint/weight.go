package checkpoint

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"octet/fp8"
)

// weightPiece is the number of elements that Weight converts at a time, so that they
// fit the cache.
const weightPiece = 1 << 14

// Weight returns a model tensor as float32 [Elems], row-major, converted from its
// storage format. It multiplies FP8 values by their scale (weight_scale, which
// dequantizes). An infinity or NaN is an error that names the tensor and the element.
func (s *Tensors) Weight(name string) ([]float32, error) {
	t, ok := s.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: there is no tensor %q", s.path, name)
	}
	return s.WeightRows(name, 0, rowsOf(t.Shape))
}

// WeightRows is Weight of the rows from and to, without to, see [Tensors.ReadRows].
func (s *Tensors) WeightRows(name string, from, to int) ([]float32, error) {
	t, ok := s.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: there is no tensor %q", s.path, name)
	}
	rows := s.rows[s.byName[name]]
	if from < 0 || to < from || to > rows.n {
		return nil, fmt.Errorf("%s: tensor %q has %d rows: there are no rows %d to %d", s.path, name, rows.n, from, to)
	}
	scale := float32(1)
	switch {
	case t.DType.IsQuantized() && !t.DType.IsInteger():
		var err error
		if scale, err = s.scale(scaleName(name, weightScale)); err != nil {
			return nil, err
		}
	case !t.DType.IsWide():
		return nil, fmt.Errorf("%s: tensor %q is stored as %v, which is not a format of weights", s.path, name, t.DType)
	}
	r := io.NewSectionReader(rows, int64(from)*rows.rowBytes, int64(to-from)*rows.rowBytes)
	at := 0 // elements before the piece
	if rows.n > 0 {
		at = int(t.Elems()) / rows.n * from
	}
	x, raw := make([]float32, int(r.Size())/t.DType.Size()), make([]byte, weightPiece*t.DType.Size())
	for piece := range slices.Chunk(x, weightPiece) {
		raw := raw[:len(piece)*t.DType.Size()]
		if _, err := io.ReadFull(r, raw); err != nil {
			return nil, fmt.Errorf("%s: reading tensor %q: %w", s.path, name, err)
		}
		t.DType.Decode(piece, raw)
		if scale != 1 {
			for i := range piece {
				piece[i] *= scale
			}
		}
		if !(fp8.Amax(piece) <= math.MaxFloat32) {
			i := slices.IndexFunc(piece, notFinite)
			return nil, fmt.Errorf("%s: tensor %q is damaged: element %d is %v; octet inspect counts such elements", s.path, name, at+i, piece[i])
		}
		at += len(piece)
	}
	return x, nil
}

func notFinite(x float32) bool { return x-x != 0 }

// Suffixes of the scales of an FP8 linear layer, as in compressed-tensors. Both scales
// dequantize.
const (
	weightScale = ".weight_scale"
	inputScale  = ".input_scale"
)

func scaleName(weight, kind string) string { return strings.TrimSuffix(weight, ".weight") + kind }

// scale returns the positive finite value of a tensor with one element.
func (s *Tensors) scale(name string) (float32, error) {
	t, ok := s.Lookup(name)
	switch {
	case !ok:
		return 0, fmt.Errorf("%s: there is no tensor %q: octet reads FP8 weights with one scale per tensor", s.path, name)
	case t.Elems() != 1:
		return 0, fmt.Errorf("%s: tensor %q holds %d scales: octet reads FP8 weights with one scale per tensor", s.path, name, t.Elems())
	case !t.DType.IsWide():
		return 0, fmt.Errorf("%s: tensor %q is stored as %v: octet reads scales in fp32, bf16 or fp16", s.path, name, t.DType)
	}
	raw, x := make([]byte, t.DType.Size()), make([]float32, 1)
	if err := s.ReadInto(name, raw); err != nil {
		return 0, err
	}
	t.DType.Decode(x, raw)
	if !(x[0] > 0 && x[0] <= math.MaxFloat32) {
		return 0, fmt.Errorf("%s: tensor %q holds the scale %v: expected a positive finite number", s.path, name, x[0])
	}
	return x[0], nil
}
