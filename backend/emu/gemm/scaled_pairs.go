package gemm

import (
	"math"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file multiplies pairs of BF16 (pairs.go) by their block scales (scaled.go). Scales of up
// to eight bits and scaled elements are BF16 values, so words are multiplied by words of pairs
// of scales. The scales of a run are scanned before it: where they let a scaled element, a
// product or a sum leave the range of normal numbers, the run uses FP32.

// scanScales is the number of scales that a task scans.
const scanScales = 1 << 12

// pairsTakeScales reports whether runs of g may multiply pairs.
func (g *GEMM) pairsTakeScales() bool {
	return g.kernel.Pairs != nil && bf16TableOf(g.a.DType) != nil && bf16TableOf(g.b.DType) != nil
}

// scaledChoice returns the choice for a GEMM whose elements are scaled.
func (g *GEMM) scaledChoice() (c pairChoice) {
	operands, scales := [2]*memory.Matrix{&g.a, &g.b}, [2]*memory.BlockScales{&g.scaled.a, &g.scaled.b}
	for i, s := range scales {
		c.scanned[i] = pool.CeilDiv(len(s.Codes), scanScales)
	}
	c.scan = func(worker, i, task int) {
		var seen [256]bool
		x, s := operands[i], scales[i]
		zeros := s.DType.IsForScales() // casts give blocks of zeros code 0, which is 2^-127
		from := task * scanScales
		for at, code := range s.Codes[from:min(from+scanScales, len(s.Codes))] {
			if code > 0 || !zeros || !blockIsZero(x, s, from+at) {
				seen[code] = true
			}
		}
		g.workers[worker].scaleLimits[i].include(s.DType, &seen)
	}
	c.exact = func() bool {
		var unit, largest [2]float64 // of the scaled elements
		for i, x := range operands {
			all := noScales
			for w := range g.workers {
				l := &g.workers[w].scaleLimits[i]
				all = scaleLimits{min(all.unit, l.unit), max(all.largest, l.largest)}
			}
			unit[i], largest[i] = all.unit*float64(x.DType.Smallest()), all.largest*float64(x.DType.Max())
		}
		return min(unit[0], unit[1], unit[0]*unit[1]) >= smallestNormal && largest[0]*largest[1] <= math.MaxFloat32
	}
	return c
}

// scaleLimits are a number of which all scales are multiples, and their largest magnitude.
type scaleLimits struct{ unit, largest float64 }

var noScales = scaleLimits{unit: math.Inf(1)}

// include adds the scales whose codes of d are seen. Zeros are multiples of every number. NaN
// has no limits: it gives NaN in pairs too.
func (l *scaleLimits) include(d fp8.DType, seen *[256]bool) {
	mantissa := d.Format().Mantissa
	for code, v := range d.Table() {
		if v := math.Abs(float64(v)); seen[code] && v > 0 {
			l.unit = min(l.unit, math.Ldexp(1, math.Ilogb(v)-mantissa))
			l.largest = max(l.largest, v)
		}
	}
}

// blockIsZero reports whether all elements of x that have block scale at are zero.
func blockIsZero(x *memory.Matrix, s *memory.BlockScales, at int) bool {
	i0, rows, j0, cols := 0, x.Rows, 0, x.Cols
	if s.Cols > 0 {
		j0, cols = at%s.Across*s.Cols, min(cols, (at%s.Across+1)*s.Cols)
	}
	if s.Rows > 0 {
		i0, rows = at/s.Across*s.Rows, min(rows, (at/s.Across+1)*s.Rows)
	}
	for i := i0; i < rows; i++ {
		for j := j0; j < cols; j++ {
			if !isZero(x, i*x.LD+j) {
				return false
			}
		}
	}
	return true
}

// scalePairsAlong is scaleAlong for words.
func (g *GEMM) scalePairsAlong(worker int, dst []float32, step int, s *memory.BlockScales, i, l, rows, depth int) {
	scales := g.workers[worker].scales[:g.words(depth)]
	var word [1]float32
	for r := range rows {
		for at := 0; at < len(scales); {
			n, second := sameWords(s.Cols, l+2*at, depth-2*at)
			pairScales(word[:], s, i+r, l+2*at, second, false)
			for end := at + n; at < end; at++ {
				scales[at] = word[0]
			}
		}
		g.pairs.scale(dst[r*step:][:len(scales)], scales)
	}
}

// scalePairsDown is scaleDown for words, with room for the scales of a row.
func (g *GEMM) scalePairsDown(scales, dst []float32, step int, s *memory.BlockScales, trans bool, i, l, depth int) {
	for at := 0; 2*at < depth; {
		n, second := sameWords(alongK(*s, trans), l+2*at, depth-2*at)
		pairScales(scales, s, i, l+2*at, second, trans)
		for end := at + n; at < end; at++ {
			g.pairs.scale(dst[at*step:][:len(scales)], scales)
		}
	}
}

// pairScales writes words of the scales at upper and lower of k, of the operand's rows from
// row i on, or of its columns if trans.
func pairScales(dst []float32, s *memory.BlockScales, i, upper, lower int, trans bool) {
	expandScales(dst, s, i, upper, trans)
	for r, x := range dst {
		y := x
		if lower != upper {
			y = s.Block(scaleIndex(s, i+r, lower, trans))
		}
		dst[r] = pairOf(x, y)
	}
}

// sameWords returns the number of words, of depth elements of k from l on, that have the
// scales of the first one, and an element of k that has the scale of its second element. run
// elements share a scale, as in runAt.
func sameWords(run, l, depth int) (n, second int) {
	if n = runAt(run, l, depth); n == 1 && depth > 1 {
		return 1, l + 1
	}
	return max(1, n/2), l
}
