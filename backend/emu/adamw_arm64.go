//go:build !noasm

package emu

import (
	"math"
	"slices"
)

// updateVectors is updateGo for as many of the first elements as fill vectors,
// and says how many.
func (k *adamRule) updateVectors(p, m, v, grad []float32) (n int, amax [3]float32) {
	p, m, v = p[:len(grad)], m[:len(grad)], v[:len(grad)]
	n = wholeVectors(len(grad))
	if n == 0 {
		return 0, amax
	}
	var largest [3][4]uint32
	adamUpdateNEON(k, &p[0], &m[0], &v[0], &grad[0], n, &largest)
	for i := range largest {
		amax[i] = math.Float32frombits(slices.Max(largest[i][:]))
	}
	return n, amax
}

// adamUpdateNEON takes a multiple of 4 elements, above 0, and writes the
// largest magnitudes of p, m and v by lane, as bits.
//
//go:noescape
func adamUpdateNEON(rule *adamRule, p, m, v, grad *float32, n int, largest *[3][4]uint32)
