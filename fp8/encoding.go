package fp8

import (
	"fmt"
	"slices"
)

// Encoding says how a GEMM operand is stored: the format of its codes, the blocks of
// elements that share a scale, and the format of the scales.
type Encoding struct {
	DType DType
	// A block has Across elements across the GEMM's dimension K and Along along it. 0 is
	// the whole extent, so the zero values are per-tensor scales.
	Across, Along int
	Scale         DType // of the scales; Invalid in a format without scales
	Outer         bool  // an FP32 scale of the whole tensor, beside the others
}

// String returns "bf16", "e4m3 tensor fp32" or "e2m1 1x16 e4m3+fp32".
func (e Encoding) String() string {
	if e.Scale == Invalid {
		return e.DType.String()
	}
	text := fmt.Sprintf("%s %s %s", e.DType, e.Granularity(), e.Scale)
	if e.Outer {
		text += "+" + F32.String()
	}
	return text
}

// Granularity returns "tensor", "row", or the block's size across and along K, "1x128".
func (e Encoding) Granularity() string {
	switch {
	case e.Across == 0 && e.Along == 0:
		return "tensor"
	case e.Across == 1 && e.Along == 0:
		return "row"
	}
	return fmt.Sprintf("%dx%d", e.Across, e.Along)
}

// takes reports whether an operand that is stored as x suits e, an entry of a device's list.
// An entry without a scale format takes any scales. A block of several rows or columns
// suits an entry whose blocks have fewer: equal scales are repeated.
func (e Encoding) takes(x Encoding) bool {
	if e.Scale == Invalid {
		return e.DType == x.DType
	}
	return e.DType == x.DType && e.Scale == x.Scale && e.Outer == x.Outer && e.Along == x.Along &&
		(e.Across == x.Across || e.Across > 0 && x.Across%e.Across == 0)
}

// Multiplies reports whether a device whose GEMMs multiply these pairs of operands of up to
// eight bits multiplies a by b. A pair without scale formats has any scales. A nil list has
// all pairs of floating-point formats and all pairs of integer formats, with any scales.
func Multiplies(pairs [][2]Encoding, a, b Encoding) bool {
	if pairs == nil {
		return a.DType.IsQuantized() && b.DType.IsQuantized() && a.DType.IsInteger() == b.DType.IsInteger()
	}
	return slices.ContainsFunc(pairs, func(p [2]Encoding) bool { return p[0].takes(a) && p[1].takes(b) })
}

// CommonPairs returns the pairs that devices with the lists a and b both multiply.
func CommonPairs(a, b [][2]Encoding) [][2]Encoding {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	both := [][2]Encoding{}
	for _, p := range slices.Concat(a, b) {
		if Multiplies(a, p[0], p[1]) && Multiplies(b, p[0], p[1]) && !slices.Contains(both, p) {
			both = append(both, p)
		}
	}
	return both
}

// PerTensor returns pairs of formats with an FP32 scale for each tensor, for lists of what
// a device multiplies.
func PerTensor(formats ...[2]DType) (pairs [][2]Encoding) {
	for _, f := range formats {
		pairs = append(pairs, [2]Encoding{{DType: f[0], Scale: F32}, {DType: f[1], Scale: F32}})
	}
	return pairs
}
