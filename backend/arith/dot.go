package arith

import "octet/fp8"

// Block is how many codes share a scale in the MX formats (OCP Microscaling 1.0,
// section 5.2).
const Block = 32

// Operand is one side of a dot product: codes of an FP8 format.
type Operand struct {
	Codes []uint8
	DType fp8.DType
	// Scales are codes of E8M0, one for each Block codes, that multiply them; nil: none.
	Scales []uint8
}

// scale is what multiplies code l.
func (o *Operand) scale(l int) float32 {
	if o.Scales == nil {
		return 1
	}
	return fp8.E8M0.Float32(uint32(o.Scales[l/Block]))
}

// Dot is the dot product of as many codes each: fused sums in a row, k ascending.
// promoted asks for the promotion that the model has.
//
// Block scales of both operands multiply the products inside the sums if the model
// has MX. Else, as backend.MatMul says, each block has a sum of its own, which joins
// the total in FP32: multiplied by the product of its two scales, both operations
// rounded to nearest.
//
// Every NaN has the bits 0x7fffffff, on every host.
func (m *Model) Dot(a, b Operand, promoted bool) float32 {
	return m.dot(a, b, promoted, watcher{})
}

// watcher sees the steps of a dot product.
type watcher struct {
	fused  func(first int, x, y []float32, scale float64, c, result float32)
	joined func(total, part, factor, result float32)
}

func (m *Model) dot(a, b Operand, promoted bool, watch watcher) (total float32) {
	s, inside := &m.Sum, m.scalesInside(a, b)
	x, y := a.DType.Table(), b.DType.Table()
	leastA, leastB := s.Least(a.DType), s.Least(b.DType)
	group := make([]float32, 2*s.Group)
	run := m.run(a, b, promoted)
	for from, end := 0, 0; from < len(a.Codes); from = end {
		part := float32(0)
		end = len(a.Codes)
		if run > 0 {
			end = min(end, from+run)
		}
		for l := from; l < end; l += s.Group {
			n := min(s.Group, end-l)
			left, right := group[:n], group[s.Group:][:n]
			for i := range n {
				left[i], right[i] = x[a.Codes[l+i]], y[b.Codes[l+i]]
			}
			scale := 1.0
			if inside {
				scale = float64(a.scale(l)) * float64(b.scale(l))
			}
			sum := s.Fuse(left, right, leastA, leastB, scale, part)
			if watch.fused != nil {
				watch.fused(l, left, right, scale, part, sum)
			}
			part = sum
		}
		if run == 0 {
			return part
		}
		factor := float32(1)
		if !inside {
			factor = a.scale(from) * b.scale(from)
		}
		joined := total + float32(part*factor)
		if joined != joined {
			joined = canonicalNaN
		}
		if watch.joined != nil {
			watch.joined(total, part, factor, joined)
		}
		total = joined
	}
	return total
}

// scalesInside says whether block scales take part in the sums.
func (m *Model) scalesInside(a, b Operand) bool {
	return m.Sum.MX && a.Scales != nil && b.Scales != nil
}

// run is after how many products a sum joins the total; 0: after all, as it is.
func (m *Model) run(a, b Operand, promoted bool) (run int) {
	if promoted {
		run = m.Promote
	}
	if (a.Scales == nil && b.Scales == nil) || m.scalesInside(a, b) {
		return run
	}
	block := Block
	for run%block > 0 { // neither a block nor what is promoted is cut
		block /= 2
	}
	return block
}
