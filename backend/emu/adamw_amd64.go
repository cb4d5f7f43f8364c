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
	var largest [3][16]uint32
	switch n = wholeVectors(len(grad)); {
	case n == 0:
		return 0, amax
	case haveAVX512:
		adamUpdateAVX512(k, &p[0], &m[0], &v[0], &grad[0], n, &largest)
	default:
		adamUpdateAVX2(k, &p[0], &m[0], &v[0], &grad[0], n, &largest)
	}
	for i := range largest {
		amax[i] = math.Float32frombits(slices.Max(largest[i][:]))
	}
	return n, amax
}

// adamUpdateAVX512 takes a multiple of 16 elements, above 0, and writes the
// largest magnitudes of p, m and v by lane, as bits.
//
//go:noescape
func adamUpdateAVX512(rule *adamRule, p, m, v, grad *float32, n int, largest *[3][16]uint32)

// adamUpdateAVX2 fills eight of the sixteen lanes.
//
//go:noescape
func adamUpdateAVX2(rule *adamRule, p, m, v, grad *float32, n int, largest *[3][16]uint32)
