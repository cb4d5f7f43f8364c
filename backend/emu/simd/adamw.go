package simd

import (
	"math"
	"slices"
)

// AdamW holds the coefficients of one step. With g the gradient times Coef, the moments
// become m·Beta1 + g·Rest1 and v·Beta2 + g²·Rest2, and the parameter
// p·Decay − Rate·m/(√v·RootScale + Epsilon).
type AdamW struct {
	Coef               float32
	Beta1, Rest1       float32 // β1 and 1−β1
	Beta2, Rest2       float32
	Decay, Rate        float32
	RootScale, Epsilon float32
	Keep               uint32 // KeepAll or KeepNormal
}

// Values of Keep, a bit mask: a moment with none of these bits is flushed to zero.
// Without gradient a moment in FP32 would decay to a subnormal value and, because of
// rounding, stay there; amd64 processors take twenty times as long for subnormals.
// KeepNormal has the upper four bits of the exponent: all values from 2^-111 on have one
// of them, and so does NaN.
const (
	KeepAll    = math.MaxUint32
	KeepNormal = 0x78000000
)

// Update replaces parameters p and moments m and v by their new values and returns the
// largest magnitudes of these, ordered as in MaxMagnitudes. grad gives the length.
func (a *AdamW) Update(p, m, v, grad []float32) (amax [3]float32) {
	p, m, v = p[:len(grad)], m[:len(grad)], v[:len(grad)]
	n := wholeVectors(len(grad))
	var lanes [3][16]uint32
	if haveVectors && n > 0 {
		adamWVectors(a, &p[0], &m[0], &v[0], &grad[0], n, &lanes)
	}
	for i, rest := range a.updateGo(p[n:], m[n:], v[n:], grad[n:]) {
		amax[i] = math.Float32frombits(max(magnitude(rest), slices.Max(lanes[i][:])))
	}
	return amax
}

// adamWVectors sets lanes, as many as a vector has, to the bits of the largest magnitudes
// of p, m and v, and leaves the other lanes as they are.
//
//go:noescape
func adamWVectors(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32)

func (a *AdamW) updateGo(p, m, v, grad []float32) (amax [3]float32) {
	p, m, v = p[:len(grad)], m[:len(grad)], v[:len(grad)]
	var top [3]uint32
	for i, g := range grad {
		g *= a.Coef
		mi := a.kept(float32(a.Beta1*m[i]) + float32(a.Rest1*g))
		vi := a.kept(float32(a.Beta2*v[i]) + float32(a.Rest2*float32(g*g)))
		root := float32(math.Sqrt(float64(vi)))
		direction := mi / (float32(root*a.RootScale) + a.Epsilon)
		pi := float32(p[i]*a.Decay) - float32(a.Rate*direction)
		p[i], m[i], v[i] = pi, mi, vi
		top = [3]uint32{max(top[0], magnitude(pi)), max(top[1], magnitude(mi)), max(top[2], magnitude(vi))}
	}
	for i, bits := range top {
		amax[i] = math.Float32frombits(bits)
	}
	return amax
}

func (a *AdamW) kept(moment float32) float32 {
	if math.Float32bits(moment)&a.Keep == 0 {
		return 0
	}
	return moment
}
