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
)

// Tensor is a tensor of a checkpoint and what its values are like. The measures
// are nil where it holds no real numbers, or none at all.
type Tensor struct {
	File      string         `json:"file"`
	Name      string         `json:"name"`
	Format    string         `json:"format"`
	Shape     []int          `json:"shape"`
	Amax      *writers.Float `json:"amax,omitempty"`  // the largest finite magnitude, times the one scale that dequantises it; nil where it has several
	Zeros     *writers.Float `json:"zeros,omitempty"` // share of the elements
	NotFinite int64          `json:"not_finite"`      // elements

	dtype fp8.DType
}

// Elements is the number of elements.
func (t Tensor) Elements() int64 { return elements(t.Shape) }

// IsScale reports whether a tensor is a scale of another one, or the history that
// it follows from.
func (t Tensor) IsScale() bool {
	return slices.ContainsFunc([]string{".scale", ".scale_inv", historySuffix}, func(suffix string) bool { return strings.HasSuffix(t.Name, suffix) })
}

func elements(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

// chunk is how many elements are read at a time.
const chunk = 64 << 10

// measure reads a tensor.
func measure(from *checkpoint.Tensors, t checkpoint.Tensor) (Tensor, error) {
	m := Tensor{Name: t.Name, Format: t.DType.String(), Shape: t.Shape, dtype: t.DType}
	n := m.Elements()
	if !t.DType.IsFloat() || n == 0 {
		return m, nil
	}
	amax, zeros := float32(0), int64(0)
	err := eachChunk(from, t, func(x []float32, _ []byte) {
		for _, v := range x {
			switch a := max(v, -v); { // NaN for NaN
			case a == 0:
				zeros++
			case a <= math.MaxFloat32:
				amax = max(amax, a)
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
	scaleInv, single, err := scaleOf(from, t.Name)
	if single {
		largest := writers.Float(amax * scaleInv)
		m.Amax = &largest
	}
	return m, err
}

// scaleOf is the factor that dequantises a tensor, 1 for one without; single is
// false for one with many, by blocks.
func scaleOf(from *checkpoint.Tensors, name string) (scaleInv float32, single bool, err error) {
	scale, ok := from.Lookup(strings.TrimSuffix(name, ".master") + ".scale_inv")
	if !ok || scale.DType != fp8.F32 {
		return 1, true, nil
	}
	if elements(scale.Shape) != 1 {
		return 0, false, nil
	}
	err = eachChunk(from, scale, func(x []float32, _ []byte) { scaleInv = x[0] })
	return scaleInv, true, err
}

// eachChunk streams a tensor of real numbers: its values, and their codes.
func eachChunk(from *checkpoint.Tensors, t checkpoint.Tensor, do func(x []float32, codes []byte)) error {
	r, err := from.Reader(t.Name)
	if err != nil {
		return err
	}
	size := t.DType.Size()
	left := elements(t.Shape)
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
