package arith

import "octet/fp8"

// Block is the number of codes that share a scale in the MX formats (OCP
// Microscaling 1.0, section 5.2).
const Block = 32

// Operand is one side of a dot product: codes of an FP8 format.
type Operand struct {
	Codes []uint8
	DType fp8.DType
	// Scales are E8M0 codes that multiply Codes, one for each run of Block; nil: none.
	Scales []uint8
}

// scale returns the block scale of code l.
func (o *Operand) scale(l int) float32 {
	if o.Scales == nil {
		return 1
	}
	return fp8.E8M0.Float32(uint32(o.Scales[l/Block]))
}

// Dot returns the dot product of a and b, which have equally many codes: a chain of
// fused sums, k ascending. promoted applies the model's promotion.
//
// If the model has MX and both operands have block scales, the scales multiply the
// products inside the fused sums. Otherwise each block has its own sum, as
// backend.MatMul specifies: it is multiplied by the product of its two scales and
// added to the total, both in FP32, rounded to nearest.
//
// A NaN result always has the bits 0x7fffffff, on every host.
func (m *Model) Dot(a, b Operand, promoted bool) float32 {
	return m.dot(a, b, promoted, watcher{})
}

// watcher has callbacks for the steps of a dot product; nil ones are skipped.
type watcher struct {
	fused  func(first int, x, y []float32, scale float64, c, result float32)
	joined func(total, part, scale, result float32)
}

func (m *Model) dot(a, b Operand, promoted bool, watch watcher) (total float32) {
	s, inside := &m.Sum, m.scalesInside(a, b)
	x, y := a.DType.Table(), b.DType.Table()
	minA, minB := s.MinPower(a.DType), s.MinPower(b.DType)
	values := make([]float32, 2*s.Group)
	run := m.run(a, b, promoted)
	for from, end := 0, 0; from < len(a.Codes); from = end {
		part := float32(0)
		end = len(a.Codes)
		if run > 0 {
			end = min(end, from+run)
		}
		for l := from; l < end; l += s.Group {
			n := min(s.Group, end-l)
			left, right := values[:n], values[s.Group:][:n]
			for i := range n {
				left[i], right[i] = x[a.Codes[l+i]], y[b.Codes[l+i]]
			}
			scale := 1.0
			if inside {
				scale = float64(a.scale(l)) * float64(b.scale(l))
			}
			sum := s.Fuse(left, right, minA, minB, scale, part)
			if watch.fused != nil {
				watch.fused(l, left, right, scale, part, sum)
			}
			part = sum
		}
		if run == 0 {
			return part
		}
		scale := float32(1)
		if !inside {
			scale = a.scale(from) * b.scale(from)
		}
		joined := total + float32(part*scale)
		if joined != joined {
			joined = canonicalNaN
		}
		if watch.joined != nil {
			watch.joined(total, part, scale, joined)
		}
		total = joined
	}
	return total
}

// scalesInside reports whether block scales multiply products inside the fused sums.
func (m *Model) scalesInside(a, b Operand) bool {
	return m.Sum.MX && a.Scales != nil && b.Scales != nil
}

// run returns the number of products after which a partial sum is added to the total;
// 0: one sum is the result.
func (m *Model) run(a, b Operand, promoted bool) (run int) {
	if promoted {
		run = m.Promote
	}
	if (a.Scales == nil && b.Scales == nil) || m.scalesInside(a, b) {
		return run
	}
	block := Block
	for run%block > 0 { // a sum lies inside one block and one promotion interval
		block /= 2
	}
	return block
}
