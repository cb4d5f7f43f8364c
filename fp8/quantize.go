package fp8

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Quantize8 writes the code of src[i]·scale to dst[i], one code in a byte also in formats
// of fewer bits: one float32 multiplication, then one saturating cast to d, rounded to
// nearest even. It returns the amax of src before scaling, where saturation cannot hide
// growth; see MaxAmax for NaN and infinity.
//
// With nonTemporal, Quantize8 writes whole cache lines of codes with non-temporal
// stores, which bypass the caches, if dst starts at a cache line and the processor has
// AVX-512. That is faster if the codes would leave the caches before their next use.
// Such stores are weakly ordered on amd64: run an SFENCE or a locked instruction
// before another thread reads dst. The codes do not depend on nonTemporal.
//
// Quantize8 panics if dst is shorter than src or d is not a quantized format
// (DType.IsQuantized).
func Quantize8(dst []uint8, src []float32, d DType, scale float32, nonTemporal bool) (amax float32) {
	f := d.quantizedRow("Quantize8")
	dst = dst[:len(src)]
	n, amax := quantize8Vectors(dst, src, f, scale, nonTemporal && f.bytes)
	f.fromBytes(dst[:n])
	return MaxAmax(amax, quantizeGo(dst[n:], src[n:], f, scale))
}

// Requantize8 casts codes of the format from, BF16 or F16, to codes of the quantized
// format to. It dequantizes src with scaleInv and quantizes the values with scale, as Quantize8
// does, without a float32 copy in memory. It returns the amax of the dequantized values.
//
// Requantize8 panics if dst is shorter than src, from is neither BF16 nor F16, or to is
// not a quantized format.
func Requantize8(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32, nonTemporal bool) (amax float32) {
	checkRequantize("Requantize8", from, to)
	dst = dst[:len(src)]
	f := rows[to]
	n, amax := requantize8Vectors(dst, src, from, f, scaleInv, scale, nonTemporal && f.bytes)
	f.fromBytes(dst[:n])
	return MaxAmax(amax, requantize8Go(dst[n:], src[n:], from, to, scaleInv, scale))
}

func requantize8Go(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32) (amax float32) {
	for len(src) > 0 { // the loop skips clearing buffer if src is empty
		var buffer [256]float32
		x := decode16(&buffer, src, from, scaleInv)
		amax = MaxAmax(amax, Quantize8(dst[:len(x)], x, to, scale, false))
		dst, src = dst[len(x):], src[len(x):]
	}
	return amax
}

// Requantize8Stochastic is Requantize8 with stochastic rounding; key and index are those
// of Quantize8Stochastic.
func Requantize8Stochastic(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32, key, index uint64, nonTemporal bool) (amax float32) {
	checkRequantize("Requantize8Stochastic", from, to)
	dst = dst[:len(src)]
	odd := oddFirst(index, len(src))
	f := rows[to]
	n, amax := requantize8StochasticVectors(dst[odd:], src[odd:], from, f, scaleInv, scale, key, index+uint64(odd), nonTemporal && f.bytes)
	f.fromBytes(dst[odd:][:n])
	amax = MaxAmax(amax, requantize8StochasticGo(dst[:odd], src[:odd], from, to, scaleInv, scale, key, index))
	rest := odd + n
	return MaxAmax(amax, requantize8StochasticGo(dst[rest:], src[rest:], from, to, scaleInv, scale, key, index+uint64(rest)))
}

func requantize8StochasticGo(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32, key, index uint64) (amax float32) {
	for len(src) > 0 {
		var buffer [256]float32
		x := decode16(&buffer, src, from, scaleInv)
		amax = MaxAmax(amax, Quantize8Stochastic(dst[:len(x)], x, to, scale, key, index, false))
		dst, src, index = dst[len(x):], src[len(x):], index+uint64(len(x))
	}
	return amax
}

func checkRequantize(call string, from, to DType) {
	to.quantizedRow(call)
	if from != BF16 && from != F16 {
		panic(fmt.Sprintf("fp8: %s: source format is %s, must be bf16 or fp16", call, from))
	}
}

// decode16 dequantizes the first elements of src with scaleInv, as many as buffer holds.
func decode16(buffer *[256]float32, src []uint16, from DType, scaleInv float32) []float32 {
	n := min(len(src), len(buffer))
	x := buffer[:n]
	if from == F16 {
		Dequantize16(x, src[:n], scaleInv)
		return x
	}
	DecodeBF16(x, src[:n])
	for i := range x {
		x[i] *= scaleInv
	}
	return x
}

// Quantize8Stochastic is Quantize8 with stochastic rounding. It rounds element i
// with Random(key, index+i), where index is the position of src[0] in its whole
// tensor.
func Quantize8Stochastic(dst []uint8, src []float32, d DType, scale float32, key, index uint64, nonTemporal bool) (amax float32) {
	f := d.quantizedRow("Quantize8Stochastic")
	dst = dst[:len(src)]
	odd := oddFirst(index, len(src))
	n, amax := quantize8StochasticVectors(dst[odd:], src[odd:], f, scale, key, index+uint64(odd), nonTemporal && f.bytes)
	f.fromBytes(dst[odd:][:n])
	return quantizeStochasticRest(dst, src, odd, odd+n, amax, f, scale, key, index)
}

// Quantize16 is Quantize8 for the format F16, saturating at 65504.
func Quantize16(dst []uint16, src []float32, scale float32) (amax float32) {
	dst = dst[:len(src)]
	n, amax := quantize16Vectors(dst, src, scale)
	return MaxAmax(amax, quantizeGo(dst[n:], src[n:], rows[F16], scale))
}

// Quantize16Stochastic is Quantize8Stochastic for the format F16.
func Quantize16Stochastic(dst []uint16, src []float32, scale float32, key, index uint64) (amax float32) {
	dst = dst[:len(src)]
	odd := oddFirst(index, len(src))
	n, amax := quantize16StochasticVectors(dst[odd:], src[odd:], scale, key, index+uint64(odd))
	return quantizeStochasticRest(dst, src, odd, odd+n, amax, rows[F16], scale, key, index)
}

// Dequantize8 writes the value of the code src[i] times scaleInv to dst[i]. d
// is a quantized format or E8M0, with one code in a byte.
//
// Dequantize8 panics if dst is shorter than src or d has more than eight bits.
func Dequantize8(dst []float32, src []uint8, d DType, scaleInv float32) {
	table := d.Table()
	dst = dst[:len(src)]
	n := dequantize8Vectors(dst, src, rows[d], scaleInv)
	for i, code := range src[n:] {
		dst[n+i] = table[code] * scaleInv
	}
}

// Dequantize4 is Dequantize8 for codes of four bits, two in a byte as Pack4 packs them.
//
// Dequantize4 panics if src is shorter than (len(dst)+1)/2 bytes or d has more than four
// bits.
func Dequantize4(dst []float32, src []uint8, d DType, scaleInv float32) {
	if d.row().Store != 4 {
		panic(fmt.Sprintf("fp8: Dequantize4: %s does not have four bits", d))
	}
	var codes [256]uint8
	for len(dst) > 0 {
		n := min(len(dst), len(codes))
		Unpack4(codes[:n], src)
		Dequantize8(dst[:n], codes[:n], d, scaleInv)
		dst, src = dst[n:], src[(n+1)/2:]
	}
}

// Dequantize16 writes the value of the F16 code src[i] times scaleInv to dst[i].
//
// Dequantize16 panics if dst is shorter than src.
func Dequantize16(dst []float32, src []uint16, scaleInv float32) {
	dst = dst[:len(src)]
	n := dequantize16Vectors(dst, src, scaleInv)
	dequantize16Go(dst[n:], src[n:], scaleInv)
}

func dequantize16Go(dst []float32, src []uint16, scaleInv float32) {
	const rebias, smallest = (127 - 15) << 23, (127 - 14) << 23
	dst = dst[:len(src)]
	for i, code := range src {
		b := uint32(code&0x7fff)<<13 + rebias
		if code&0x7c00 == 0x7c00 { // infinity and NaN get float32's top exponent
			b += rebias
		}
		// A subnormal has no implicit bit. Set one, which adds the smallest
		// normal value, then subtract that value.
		var one, implicit uint32
		if code&0x7c00 == 0 {
			one, implicit = 1<<23, smallest
		}
		magnitude := math.Float32frombits(b+one) - math.Float32frombits(implicit)
		b = math.Float32bits(magnitude) | uint32(code>>15)<<31
		dst[i] = math.Float32frombits(b) * scaleInv
	}
}

// quantizedRow returns d's row. It panics, naming the function, if d is not a quantized
// format.
func (d DType) quantizedRow(call string) *format {
	if !d.IsQuantized() {
		panic(fmt.Sprintf("fp8: %s: %s is not a format for quantized elements, such as e4m3", call, d))
	}
	return rows[d]
}

// The plain Go functions (…Go) specify the assembly kernels (…Vectors). A
// kernel casts the leading elements that fill whole vectors and returns their
// number, 0 on machines without vector instructions. Plain Go casts the rest.

// quantizeGo and quantizeStochasticGo work on the bits of |x|. They branch only on
// NaN. Clamping before rounding gives the same codes as saturating after it. The
// masks of shift counts, here and below, tell the compiler that the counts are below
// the width.

func quantizeGo[C uint8 | uint16](dst []C, src []float32, f *format, scale float32) (amax float32) {
	dst = dst[:len(src)]
	smallest, drop, limit, signShift := f.castConstants()
	var top uint32
	for i, x := range src {
		top = max(top, math.Float32bits(x)&^signBit)
		b := math.Float32bits(x * scale)
		if b&^signBit > infBits {
			dst[i] = C(f.nan)
			continue
		}
		code := castNearest(min(b&^signBit, limit), smallest, drop)
		if f.bytes {
			dst[i] = C(code | b&signBit>>(signShift&31))
		} else {
			dst[i] = C(f.signed(code, b))
		}
	}
	return math.Float32frombits(top)
}

func quantizeStochasticGo[C uint8 | uint16](dst []C, src []float32, f *format, scale float32, key, index uint64) (amax float32) {
	dst = dst[:len(src)]
	smallest, drop, limit, signShift := f.castConstants()
	var top uint32
	for i, x := range src {
		top = max(top, math.Float32bits(x)&^signBit)
		b := math.Float32bits(x * scale)
		if b&^signBit > infBits {
			dst[i] = C(f.nan)
			continue
		}
		random := Random(key, index+uint64(i))
		code := castStochastic(min(b&^signBit, limit), smallest, drop, random)
		if f.bytes {
			dst[i] = C(code | b&signBit>>(signShift&31))
		} else {
			dst[i] = C(f.signed(code, b))
		}
	}
	return math.Float32frombits(top)
}

// quantizeStochasticRest casts the elements that the vector kernel left: those before
// from, and those from to on. amax is the kernel's amax.
func quantizeStochasticRest[C uint8 | uint16](dst []C, src []float32, from, to int, amax float32, f *format, scale float32, key, index uint64) float32 {
	amax = MaxAmax(amax, quantizeStochasticGo(dst[:from], src[:from], f, scale, key, index))
	return MaxAmax(amax, quantizeStochasticGo(dst[to:], src[to:], f, scale, key, index+uint64(to)))
}

// castConstants returns the arguments of the two casts below: the float32 bits of the
// smallest normal value and the number of dropped significand bits. It also returns the
// float32 bits of the largest value, and the right shift of the sign bit to the highest
// bit of the code's byte or word.
func (f *format) castConstants() (smallest, drop, limit, signShift uint32) {
	return uint32(127+f.minExponent) << 23, uint32(23 - f.Mantissa), math.Float32bits(f.max), uint32(32 - max(8, f.Bits))
}

// signed returns the code of a magnitude with the sign of the float32 with the bits b.
func (f *format) signed(magnitude, b uint32) uint32 {
	if b&signBit == 0 {
		return magnitude
	}
	return f.negative(magnitude)
}

// fromBytes converts codes from the form that vector kernels write, a magnitude with the
// sign in the highest bit of the byte, to f's own. It handles eight codes at a time.
func (f *format) fromBytes(codes []uint8) {
	if f.bytes {
		return
	}
	const ones = 0x0101010101010101
	for ; len(codes) >= 8; codes = codes[8:] {
		x := binary.LittleEndian.Uint64(codes)
		magnitude, sign := x&(ones*0x7f), x>>7&ones
		if f.Kind == Integer || f.Special == FNUZ || f.Special == P3109 { // there is no -0
			sign &= (magnitude + ones*0x7f) >> 7
		}
		if f.Kind == Integer {
			magnitude = (magnitude ^ sign*uint64(f.sign<<1-1)) + sign
			sign = 0
		}
		binary.LittleEndian.PutUint64(codes, magnitude|sign*uint64(f.sign))
	}
	for i, c := range codes {
		codes[i] = uint8(f.signed(uint32(c&0x7f), uint32(c)<<24))
	}
}

// castNearest rounds the float32 with the bits a to nearest even with one
// float32 addition. The other summand is a power of two whose unit in the last
// place is that of the result, so the adder rounds at the right bit, for normal
// and subnormal results.
func castNearest(a, smallest, drop uint32) uint32 {
	exponent := max(a&infBits, smallest)
	magic := exponent + drop<<23
	sum := math.Float32frombits(a) + math.Float32frombits(magic)
	return math.Float32bits(sum) - magic + (exponent-smallest)>>(drop&31)
}

// castStochastic is format.truncate plus the carry of the random bits. It sets
// the implicit bit of zero and of float32 subnormals too: every format with a
// shorter exponent than float32 shifts them out.
func castStochastic(a, smallest, drop, random uint32) uint32 {
	exponent, smallest := a>>23, smallest>>23
	unit := max(exponent, smallest)
	shift := min(drop+unit-exponent, 63)
	fixed := uint64(a&(1<<23-1)|1<<23)<<32>>(shift&63) + uint64(random)
	return (unit-smallest)<<((23-drop)&31) + uint32(fixed>>32)
}
