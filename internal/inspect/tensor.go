package inspect

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
	"octet/recipe"
)

// Tensor describes a tensor of a checkpoint. Amax and Zeros are nil if the tensor is empty
// or not floating-point.
type Tensor struct {
	File      string         `json:"file"`
	Name      string         `json:"name"`
	Format    string         `json:"format"`
	Shape     []int          `json:"shape"`
	Amax      *writers.Float `json:"amax,omitempty"`  // the largest finite magnitude of the codes, scaled; nil if the number of scales does not fit
	Zeros     *writers.Float `json:"zeros,omitempty"` // share of the elements
	NotFinite int64          `json:"not_finite"`      // number of elements

	dtype fp8.DType
	idle  int64 // elements of rows that have only zeros, such as those of tokens that never came
}

// weightScale is the suffix of the scale of an exported weight, after the module's name.
const weightScale = ".weight_scale"

// expansion is the suffix of the fp8.Expansion of each block of a moment, after its name.
const expansion = ".expansion"

// Elements returns the number of elements.
func (t Tensor) Elements() int64 { return checkpoint.Tensor{Shape: t.Shape}.Elems() }

// IsScale reports whether a tensor is a scale of another one, or an amax history.
func (t Tensor) IsScale() bool {
	return slices.ContainsFunc([]string{".scale", ".scale_inv", expansion, historySuffix, weightScale, ".input_scale"}, func(suffix string) bool { return strings.HasSuffix(t.Name, suffix) })
}

// chunk is the number of elements read at a time.
const chunk = 64 << 10

// measure reads a tensor with rows of cols elements and passes the size of each piece to count.
func measure(from *checkpoint.Tensors, t checkpoint.Tensor, cols int64, count func(n int64)) (Tensor, error) {
	m := Tensor{Name: t.Name, Format: t.DType.String(), Shape: t.Shape, dtype: t.DType}
	n := m.Elements()
	if !t.DType.IsFloat() || n == 0 {
		return m, nil
	}
	s, err := scalesOf(from, t)
	if err != nil {
		return m, err
	}
	amax, zeros := 0.0, int64(0)
	at, inRow := int64(0), int64(0)
	err = eachChunk(from, t, func(x []float32, codes []byte) {
		count(int64(len(codes)))
		for _, v := range x {
			if at%cols == 0 {
				inRow = 0
			}
			if at++; v == 0 {
				inRow++
			}
			if inRow == cols {
				m.idle += cols
			}
			switch a := max(v, -v); { // NaN for NaN
			case a == 0:
				zeros++
			case a <= math.MaxFloat32:
				amax = max(amax, s.value(at-1, a))
			default:
				m.NotFinite++
			}
		}
	})
	if err != nil {
		return m, err
	}
	share := writers.Float(float64(zeros) / float64(n))
	m.Zeros = &share
	if len(s.inv) > 0 {
		largest := writers.Float(float32(amax))
		m.Amax = &largest
	}
	return m, nil
}

// scales are the scale_inv of a tensor: one, or one for each block of a row of its matrix. A
// block of an expanded tensor has an fp8.Expansion in place of scale_inv.
type scales struct {
	inv         []float32
	cols, block int64
	expanded    bool
}

// scalesOf returns the scale_inv of a tensor: 1 for a tensor without, and none if their
// number does not fit the tensor, as in files that Octet did not write.
func scalesOf(from *checkpoint.Tensors, t checkpoint.Tensor) (scales, error) {
	scale, ok := from.Lookup(strings.TrimSuffix(t.Name, ".master") + ".scale_inv")
	if !ok {
		scale, ok = from.Lookup(strings.TrimSuffix(t.Name, ".weight") + weightScale)
	}
	var s scales
	if !ok {
		scale, ok = from.Lookup(t.Name + expansion)
		s.expanded = ok
	}
	if !ok || scale.DType != fp8.F32 {
		return scales{inv: []float32{1}}, nil
	}
	if n := scale.Elems() / s.size(); n != 1 || s.expanded {
		if len(t.Shape) > 0 {
			s.cols = int64(t.Shape[len(t.Shape)-1])
		}
		at := slices.IndexFunc(recipe.MomentBlocks, func(block int) bool {
			s.block = int64(block)
			return s.cols > 0 && n == t.Elems()/s.cols*s.blocks()
		})
		if at < 0 {
			return scales{}, nil
		}
	}
	err := eachChunk(from, scale, func(x []float32, _ []byte) { s.inv = append(s.inv, x...) })
	return s, err
}

// size returns the number of values for each block.
func (s scales) size() int64 {
	if s.expanded {
		return fp8.ExpansionElems
	}
	return 1
}

// of returns the values for an element's block; none if there are none.
func (s scales) of(i int64) []float32 {
	if len(s.inv) <= 1 {
		return s.inv
	}
	return s.inv[(i/s.cols*s.blocks()+i%s.cols/s.block)*s.size():][:s.size()]
}

// value returns the value of an element with this decoded code; the code itself without scales.
func (s scales) value(i int64, code float32) float64 {
	switch of := s.of(i); {
	case len(of) == 0:
		return float64(code)
	case s.expanded:
		x := []float32{code}
		fp8.Expansion(of).Expand(x)
		return float64(x[0])
	default:
		return float64(code) * float64(of[0])
	}
}

// blocks returns the number of blocks in a row; the last one may be shorter.
func (s scales) blocks() int64 { return (s.cols + s.block - 1) / s.block }

// eachChunk streams the values and codes of a floating-point tensor.
func eachChunk(from *checkpoint.Tensors, t checkpoint.Tensor, do func(x []float32, codes []byte)) error {
	r, err := from.Reader(t.Name)
	if err != nil {
		return err
	}
	size := t.DType.Size()
	left := t.Elems()
	codes, x := make([]byte, min(chunk, left)*int64(size)), make([]float32, min(chunk, left))
	for left > 0 {
		n := min(chunk, left)
		if _, err := io.ReadFull(r, codes[:n*int64(size)]); err != nil {
			return fmt.Errorf("reading it: %w", err)
		}
		t.DType.Decode(x[:n], codes[:n*int64(size)])
		do(x[:n], codes[:n*int64(size)])
		left -= n
	}
	return nil
}
