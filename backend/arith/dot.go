package arith

import (
	"cmp"

	"octet/fp8"
)

// Block is the number of codes that share a scale in the MX formats (OCP
// Microscaling 1.0, section 5.2).
const Block = 32

// Operand is one side of a dot product: codes of a format of up to eight bits, one in a byte.
type Operand struct {
	Codes []uint8
	DType fp8.DType
	// Scales multiply Codes, one for each run of Along; nil: none. They are codes of the
	// format Scale. An Along of 0 and an Invalid Scale are those of MX: Block and E8M0.
	Scales []uint8
	Along  int
	Scale  fp8.DType
}

// Encoding returns how the operand is stored.
func (o *Operand) Encoding() fp8.Encoding {
	if o.Scales == nil {
		return fp8.Encoding{DType: o.DType, Scale: fp8.F32}
	}
	return fp8.Encoding{DType: o.DType, Across: 1, Along: cmp.Or(o.Along, Block), Scale: cmp.Or(o.Scale, fp8.E8M0)}
}

// scale returns the block scale of code l.
func (o *Operand) scale(l int) float32 {
	if o.Scales == nil {
		return 1
	}
	e := o.Encoding()
	return e.Scale.Float32(uint32(o.Scales[l/e.Along]))
}

// Dot returns the dot product of a and b, which have equally many codes: a chain of
// fused sums, k ascending. promoted applies the model's promotion.
//
// If the model has MX and both operands have block scales, the scales multiply the
// products inside the fused sums. Otherwise each block has its own sum, as
// backend.MatMul specifies: it is multiplied by the product of its two scales and
// added to the total, both in FP32, rounded to nearest.
//
// A NaN result always has the bits 0x7fffffff, on every host. Dot panics if the model does
// not multiply the operands: see SumOf.
func (m *Model) Dot(a, b Operand, promoted bool) float32 {
	return m.dot(a, b, promoted, watcher{})
}

// watcher has callbacks for the steps of a dot product; nil ones are skipped.
type watcher struct {
	fused  func(s *Sum, g fusedGroup, c, result float32)
	joined func(total, part, scale, result float32)
}

// fusedGroup is what a fused sum adds up.
type fusedGroup struct {
	first          int // of its products
	a, b           []float32
	minA, minB     float32
	scale          float64   // of all products
	scaleA, scaleB []float32 // with Sum.Exact: of Exact products each
	minScale       float32
}

// fuse returns the fused sum of a group and an addend.
func (s *Sum) fuse(g *fusedGroup, c float32) float32 {
	if s.Exact > 0 {
		return s.FuseExact(g.a, g.b, g.scaleA, g.scaleB, g.minScale, c)
	}
	return s.Fuse(g.a, g.b, g.minA, g.minB, g.scale, c)
}

func (m *Model) dot(a, b Operand, promoted bool, watch watcher) (total float32) {
	s := m.SumOf(a.Encoding(), b.Encoding())
	inside := s.scalesInside(a, b)
	x, y := a.DType.Table(), b.DType.Table()
	g := fusedGroup{minA: s.MinPower(a.DType), minB: s.MinPower(b.DType), minScale: s.MinPower(a.Encoding().Scale)}
	values, scales := make([]float32, 2*s.Group), make([]float32, 2*s.Group)
	run := m.run(a, b, promoted)
	for from, end := 0, 0; from < len(a.Codes); from = end {
		part := float32(0)
		end = len(a.Codes)
		if run > 0 {
			end = min(end, from+run)
		}
		for l := from; l < end; l += s.Group {
			n := min(s.Group, end-l)
			g.first, g.a, g.b, g.scale = l, values[:n], values[s.Group:][:n], 1
			for i := range n {
				g.a[i], g.b[i] = x[a.Codes[l+i]], y[b.Codes[l+i]]
			}
			if s.Exact > 0 {
				g.scaleA, g.scaleB = scales[:0], scales[s.Group:][:0]
				for i := l; i < l+n; i += s.Exact {
					g.scaleA, g.scaleB = append(g.scaleA, a.scale(i)), append(g.scaleB, b.scale(i))
				}
			} else if inside {
				g.scale = float64(a.scale(l)) * float64(b.scale(l))
			}
			sum := s.fuse(&g, part)
			if watch.fused != nil {
				watch.fused(s, g, part, sum)
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
func (s *Sum) scalesInside(a, b Operand) bool {
	return s.MX && a.Scales != nil && b.Scales != nil
}

// run returns the number of products after which a partial sum is added to the total;
// 0: one sum is the result.
func (m *Model) run(a, b Operand, promoted bool) (run int) {
	if promoted {
		run = m.Promote
	}
	if s := m.SumOf(a.Encoding(), b.Encoding()); (a.Scales == nil && b.Scales == nil) || s.scalesInside(a, b) {
		return run
	}
	block := Block
	for run%block > 0 { // a sum lies inside one block and one promotion interval
		block /= 2
	}
	return block
}
