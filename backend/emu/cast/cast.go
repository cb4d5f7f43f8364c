// Package cast stores the FP32 results of ops: rounded once, in all requested formats,
// row-major or transposed, without a wider copy in memory. An op binds an Output and
// stores rows to it (Output.Store); Quantize casts a whole matrix, also with block scales.
package cast

import (
	"octet/backend/emu/memory"
	"octet/fp8"
)

// Cast is one stored copy of a result, in bound memory: see backend.Cast.
type Cast struct {
	Out       memory.Matrix // the copy; its rows are the result's columns if Transpose
	Transpose bool
	Scale     []float32 // multiplies the result, before block scales; one element; nil is 1
	Amax      []float32 // one element: the maximum so far; nil: not wanted

	Precision fp8.DType // that BF16 contains; Invalid: Out's own
	Rounding  fp8.Rounding
	Overflow  fp8.Overflow
	Stream    uint64  // of random bits: the fp8.NameKey of its name
	Control   []int32 // words of backend.Control, which supply seed, step and token
	Tokens    bool    // rows are tokens: random bits follow the global token index

	// Block scales of Out, which the cast computes; see Quantize. The zero value is none.
	Blocks memory.BlockScales
	Rule   fp8.ScaleRule
	Limit  float32
}

// blocked reports whether c computes block scales.
func (c *Cast) blocked() bool { return c.Blocks.Rows > 0 || c.Blocks.Cols > 0 }

// shape returns the rows and columns of the result.
func (c *Cast) shape() (rows, cols int) {
	if c.Transpose {
		return c.Out.Cols, c.Out.Rows
	}
	return c.Out.Rows, c.Out.Cols
}

// Encoder casts FP32 values to one format, in memory that the caller gives. Scale, Key
// and Base may change from run to run.
type Encoder struct {
	DType     fp8.DType
	Precision fp8.DType // of backend.Cast
	Rounding  fp8.Rounding
	Overflow  fp8.Overflow // of F16; others overflow as their formats do
	Scale     float32      // multiplies the values; 1 if F16 does not saturate
	Key       uint64       // of the random stream: fp8.StreamKey
	Base      uint64       // random index of element 0
}

// Encode16 casts x, which begins at element at, to BF16 or F16. For F16 it returns the
// largest magnitude in x, for BF16 0.
func (e *Encoder) Encode16(dst []uint16, x []float32, at uint64) (amax float32) {
	stochastic := e.Rounding == fp8.Stochastic
	switch overflows := e.Overflow == fp8.NonSaturating; {
	case e.DType == fp8.F16 && overflows && stochastic:
		return fp8.EncodeF16Stochastic(dst, x, e.Key, e.Base+at)
	case e.DType == fp8.F16 && overflows:
		return fp8.EncodeF16(dst, x)
	case e.DType == fp8.F16 && stochastic:
		return fp8.Quantize16Stochastic(dst, x, e.Scale, e.Key, e.Base+at)
	case e.DType == fp8.F16:
		return fp8.Quantize16(dst, x, e.Scale)
	case e.Precision != fp8.Invalid:
		fp8.EncodeBF16As(dst, x, e.Precision)
	case stochastic:
		fp8.EncodeBF16Stochastic(dst, x, e.Key, e.Base+at)
	default:
		fp8.EncodeBF16(dst, x)
	}
	return 0
}

// Encode8 casts x, which begins at element at, to FP8 and returns the largest magnitude
// in x. If stream, it stores past the caches.
func (e *Encoder) Encode8(dst []uint8, x []float32, at uint64, stream bool) (amax float32) {
	if e.Rounding == fp8.Stochastic {
		return fp8.Quantize8Stochastic(dst, x, e.DType, e.Scale, e.Key, e.Base+at, stream)
	}
	return fp8.Quantize8(dst, x, e.DType, e.Scale, stream)
}

// encode4 is Encode8 for formats of four bits, of which two codes share a byte of dst.
func (e *Encoder) encode4(dst []uint8, x []float32, at uint64) (amax float32) {
	var codes [256]uint8
	for len(x) > 0 {
		n := min(len(x), len(codes))
		amax = fp8.MaxAmax(amax, e.Encode8(codes[:n], x[:n], at, false))
		fp8.Pack4(dst, codes[:n])
		dst, x, at = dst[(n+1)/2:], x[n:], at+uint64(n)
	}
	return amax
}

// requantize8 is Encode8 for values in BF16 or F16, of format d, times scaleInv.
func (e *Encoder) requantize8(dst []uint8, x []uint16, d fp8.DType, scaleInv float32, at uint64, stream bool) (amax float32) {
	if e.Rounding == fp8.Stochastic {
		return fp8.Requantize8Stochastic(dst, x, d, e.DType, scaleInv, e.Scale, e.Key, e.Base+at, stream)
	}
	return fp8.Requantize8(dst, x, d, e.DType, scaleInv, e.Scale, stream)
}
