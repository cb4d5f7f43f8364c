package backend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"octet/fp8"
)

// Values reads an operand and applies its scale and outer scale, as the equations of ops
// do. Integers have no scale.
func Values(m Memory, t *Tensor) ([]float64, error) {
	raw, err := m.Read(t)
	if err != nil {
		return nil, err
	}
	x := make([]float64, t.Elems())
	if t.DType == fp8.I32 {
		for i := range x {
			x[i] = float64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
		return x, nil
	}
	stored := make([]float32, len(x))
	t.DType.Decode(stored, raw)
	for i, v := range stored {
		x[i] = float64(v)
	}
	if t.Scale == nil {
		return x, nil
	}
	scale, err := Values(m, t.Scale)
	if err != nil {
		return nil, err
	}
	outer := 1.0
	if t.Outer != nil {
		factor, err := Values(m, t.Outer)
		if err != nil {
			return nil, err
		}
		outer = factor[0]
	}
	for i := range x {
		x[i] *= scale[t.ScaleIndex(i)] * outer
	}
	return x, nil
}

// NonFinite describes the first op of a run that produced a NaN or an infinity.
type NonFinite struct {
	Node     *Node
	Operands []OperandStats // in the order of the op's fields
}

// OperandStats summarizes one operand after the op ran.
type OperandStats struct {
	Operand
	Elems, NaN, Inf int
	Amax            float64 // over the finite elements
	RMS             float64
}

// Error describes the op and its operands; as an error, a NonFinite can stop a run.
func (f *NonFinite) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is the first op with a non-finite result:", f.Node.Path())
	for _, s := range f.Operands {
		fmt.Fprintf(&b, " %s %s", s.Field, s.Tensor)
		if s.NaN+s.Inf > 0 {
			fmt.Fprintf(&b, " has %d NaN and %d Inf of %d", s.NaN, s.Inf, s.Elems)
		} else {
			fmt.Fprintf(&b, " amax %.3g rms %.3g", s.Amax, s.RMS)
		}
		b.WriteString(";")
	}
	return strings.TrimSuffix(b.String(), ";")
}

// FindNonFinite runs the program op by op and returns the first op that has a NaN or an
// infinity in an operand; nil if there is none. That op either wrote the value or read
// it from a tensor that was non-finite before the run, such as a parameter that is NaN.
//
// Of programs that accumulate into the same tensors, run the first one first: it
// overwrites them. An op that accumulates into a stale non-finite value would be
// returned as well. With several ranks, the ranks that another rank's finding stops
// return that finding.
func FindNonFinite(ctx context.Context, x Executable) (*NonFinite, error) {
	err := x.RunObserved(ctx, func(n *Node, m Memory) error {
		bad := false
		f := &NonFinite{Node: n}
		for _, o := range n.Operands() {
			if !o.Tensor.DType.IsFloat() {
				continue
			}
			raw, err := m.Read(o.Tensor)
			if err != nil {
				return err
			}
			s := statsOf(o, raw)
			bad = bad || s.NaN+s.Inf > 0
			f.Operands = append(f.Operands, s)
		}
		if bad {
			return f
		}
		return nil
	})
	if found := (*NonFinite)(nil); errors.As(err, &found) {
		return found, nil
	}
	return nil, err
}

func statsOf(o Operand, raw []byte) OperandStats {
	s := OperandStats{Operand: o, Elems: o.Tensor.Elems()}
	values := make([]float32, s.Elems)
	o.Tensor.DType.Decode(values, raw)
	sum := 0.0
	for _, v := range values {
		switch x := math.Abs(float64(v)); {
		case math.IsNaN(x):
			s.NaN++
		case math.IsInf(x, 0):
			s.Inf++
		default:
			s.Amax = max(s.Amax, x)
			sum += x * x
		}
	}
	s.RMS = math.Sqrt(sum / float64(max(1, s.Elems-s.NaN-s.Inf)))
	return s
}
