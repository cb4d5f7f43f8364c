package fp8

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// edgeCases are values that optimized loops tend to get wrong: the ends of every
// range, ties, and values that reach them only after scaling.
var edgeCases = func() []float32 {
	x := []float32{
		0, 1, 1.0625, 448, 464, 465, 240, 248, 57344, 61439, 61440, 65504, 65520, 0x1p-6, 0x1p-9, 0x1p-10,
		0x1.8p-10, 0x1p-14, 0x1p-16, 0x1p-17, 0x1p-24, 0x1p-25, 0x1p-126, 0x1p-127, 0x1p-149,
		math.MaxFloat32, inf, nan, math.Float32frombits(0x7f800001), math.Float32frombits(0x7fffffff),
	}
	for _, v := range x {
		x = append(x, math.Float32frombits(math.Float32bits(v)|1<<31))
	}
	return x
}()

var scales = []float32{1, 2, 0x1p-8, 3.7, 0x1p126, 0x1p-126, 0x1p-140, 0, -1, inf, nan}

// testVector returns n values, a random mix of edgeCases, values of any exponent and
// values near one.
func testVector(n int, seed uint64) []float32 {
	x := make([]float32, n)
	for i := range x {
		r := randomWord(seed, uint64(i))
		switch r % 3 {
		case 0:
			x[i] = edgeCases[int(r>>8)%len(edgeCases)]
		case 1:
			x[i] = math.Float32frombits(randomWord(seed+1, uint64(i)))
		default:
			x[i] = float32(int32(randomWord(seed+2, uint64(i)))) * 0x1p-30
		}
	}
	return x
}

// TestQuantizeNonTemporal casts to aligned and unaligned destinations, with and without
// a tail, without NaN and with a NaN at the end.
func TestQuantizeNonTemporal(t *testing.T) {
	const key = 7
	memory, index := make([]uint8, 1024), uint64(1<<33-100)
	line := int(-uintptr(unsafe.Pointer(&memory[0])) % 64)
	check := func(n, at int, cast func(dst []uint8, nonTemporal bool) float32) {
		t.Helper()
		want := make([]uint8, n)
		amax := cast(want, false)
		for i := range memory {
			memory[i] = 0xa5
		}
		got := memory[line+at:][:n]
		require.Equal(t, math.Float32bits(amax), math.Float32bits(cast(got, true)))
		require.Equal(t, want, got, "%d codes, %d bytes after the start of a line", n, at)
		for i, code := range memory {
			if i < line+at || i >= line+at+n {
				require.Equal(t, uint8(0xa5), code, "wrote outside the result")
			}
		}
	}
	for _, n := range []int{1, 63, 64, 65, 128, 191, 384, 500} {
		for _, at := range []int{0, 1, 16, 32, 63} {
			numbers := testVector(n, 3)
			for i, x := range numbers {
				if x != x { // a NaN makes plain Go cast everything again
					numbers[i] = 1
				}
			}
			for _, x := range [][]float32{numbers, append(testVector(n-1, 4), nan)} {
				src := make([]uint16, n)
				check(n, at, func(dst []uint8, s bool) float32 { return Quantize8(dst, x, E4M3, 3, s) })
				check(n, at, func(dst []uint8, s bool) float32 { return Quantize8Stochastic(dst, x, E5M2, 3, key, index, s) })
				for _, from := range []DType{BF16, F16} {
					for i, v := range x {
						src[i] = uint16(from.Nearest(v, NonSaturating))
					}
					check(n, at, func(dst []uint8, s bool) float32 { return Requantize8(dst, src, from, E4M3, 1, 3, s) })
					check(n, at, func(dst []uint8, s bool) float32 {
						return Requantize8Stochastic(dst, src, from, E5M2, 1, 3, key, index, s)
					})
				}
			}
		}
	}
}

// guard is the number of elements after a result that no cast may write.
const guard = 40

// checkQuantize compares all slice casts of src with the scalar casts.
func checkQuantize(t *testing.T, src []float32, scale float32, key, index uint64) {
	n := len(src)
	amax := math.Float32bits(Amax(src))
	codes8, codes16 := make([]uint8, n+guard), make([]uint16, n+guard)
	for i := range guard {
		codes8[n+i], codes16[n+i] = 0xa5, 0xa5a5
	}
	for _, d := range kinds {
		require.Equal(t, amax, math.Float32bits(Quantize8(codes8, src, d, scale, false)))
		for i, x := range src {
			require.Equal(t, uint8(d.Nearest(x*scale, Saturate)), codes8[i], "%s: %v · %v", d, x, scale)
		}
		require.Equal(t, amax, math.Float32bits(Quantize8Stochastic(codes8, src, d, scale, key, index, false)))
		for i, x := range src {
			want := d.Stochastic(x*scale, Random(key, index+uint64(i)), Saturate)
			require.Equal(t, uint8(want), codes8[i], "%s: stochastic %v · %v", d, x, scale)
		}
	}
	require.Equal(t, amax, math.Float32bits(Quantize16(codes16, src, scale)))
	for i, x := range src {
		require.Equal(t, uint16(F16.Nearest(x*scale, Saturate)), codes16[i], "f16: %v · %v", x, scale)
	}
	require.Equal(t, amax, math.Float32bits(Quantize16Stochastic(codes16, src, scale, key, index)))
	for i, x := range src {
		want := F16.Stochastic(x*scale, Random(key, index+uint64(i)), Saturate)
		require.Equal(t, uint16(want), codes16[i], "f16: stochastic %v · %v", x, scale)
	}
	EncodeBF16(codes16, src)
	for i, x := range src {
		require.Equal(t, uint16(BF16.Nearest(x, NonSaturating)), codes16[i], "bf16: %v", x)
	}
	EncodeBF16Stochastic(codes16, src, key, index)
	for i, x := range src {
		want := BF16.Stochastic(x, Random(key, index+uint64(i)), NonSaturating)
		require.Equal(t, uint16(want), codes16[i], "bf16: stochastic %v", x)
	}
	for i := range guard {
		require.Equal(t, uint8(0xa5), codes8[n+i], "wrote past len(src)")
		require.Equal(t, uint16(0xa5a5), codes16[n+i], "wrote past len(src)")
	}
}

func TestSlicesMatchScalars(t *testing.T) {
	for _, scale := range scales {
		checkQuantize(t, edgeCases, scale, 5, 1<<33-7) // the word number crosses 2^32
		for n := range 70 {
			checkQuantize(t, testVector(n+n%4, uint64(n))[n%4:], scale, uint64(n)*0x123456789abcdef, 1<<33*uint64(n%5)-uint64(n/2))
		}
	}
}

// TestSlicesMatchScalarsAtBoundaries casts the inputs of TestScalarsMatchOracle,
// in one slice per format.
func TestSlicesMatchScalarsAtBoundaries(t *testing.T) {
	for _, d := range castFormats {
		inputs := castInputs(newOracle(d))
		src := make([]float32, len(inputs))
		for i, b := range inputs {
			src[i] = math.Float32frombits(b | uint32(i)<<31)
		}
		switch d {
		case BF16:
			codes := make([]uint16, len(src))
			EncodeBF16(codes, src)
			for i, x := range src {
				if codes[i] != uint16(d.Nearest(x, NonSaturating)) {
					t.Fatalf("bf16: %v gives %#x", x, codes[i])
				}
			}
		case F16:
			codes := make([]uint16, len(src))
			Quantize16(codes, src, 1)
			for i, x := range src {
				if codes[i] != uint16(d.Nearest(x, Saturate)) {
					t.Fatalf("f16: %v gives %#x", x, codes[i])
				}
			}
			Quantize16Stochastic(codes, src, 1, 1, 0)
			for i, x := range src {
				if codes[i] != uint16(d.Stochastic(x, Random(1, uint64(i)), Saturate)) {
					t.Fatalf("f16: stochastic %v gives %#x", x, codes[i])
				}
			}
		default:
			codes := make([]uint8, len(src))
			Quantize8(codes, src, d, 1, false)
			for i, x := range src {
				if codes[i] != uint8(d.Nearest(x, Saturate)) {
					t.Fatalf("%s: %v gives %#x", d, x, codes[i])
				}
			}
			Quantize8Stochastic(codes, src, d, 1, 1, 0, false)
			for i, x := range src {
				if codes[i] != uint8(d.Stochastic(x, Random(1, uint64(i)), Saturate)) {
					t.Fatalf("%s: stochastic %v gives %#x", d, x, codes[i])
				}
			}
		}
	}
}

func TestStochasticIndependentOfSplit(t *testing.T) {
	src := testVector(1000, 1)
	const key, index = 77, 1<<33 - 300
	whole, pieces := make([]uint8, len(src)), make([]uint8, len(src))
	Quantize8Stochastic(whole, src, E5M2, 1, key, index, false)
	for at := 0; at < len(src); {
		n := min(1+at/3, len(src)-at)
		Quantize8Stochastic(pieces[at:], src[at:at+n], E5M2, 1, key, index+uint64(at), false)
		at += n
	}
	require.True(t, slices.Equal(whole, pieces))
}

// TestDequantizeStaysInBounds dequantizes slices of many lengths and alignments,
// with and without a tail after the last whole vector.
func TestDequantizeStaysInBounds(t *testing.T) {
	got := make([]float32, 100+guard)
	for n := range 70 {
		codes8, codes16 := make([]uint8, n+n%4)[n%4:], make([]uint16, n+n%4)[n%4:]
		for i := range n {
			codes8[i], codes16[i] = uint8(i*37+n), uint16(i*12345+n)
		}
		check := func(d DType, code func(i int) uint32, run func(dst []float32)) {
			for i := range got {
				got[i] = -123
			}
			dst := got[n%5:][:n+guard]
			run(dst)
			for i, v := range dst {
				switch want := float32(-123); {
				case i < n && d.Float32(code(i)) != d.Float32(code(i)):
					require.True(t, v != v, "%s, element %d of %d", d, i, n)
				default:
					if i < n {
						want = d.Float32(code(i))
					}
					require.Equal(t, math.Float32bits(want), math.Float32bits(v), "%s, element %d of %d", d, i, n)
				}
			}
		}
		for _, d := range append([]DType{E8M0}, kinds...) {
			check(d, func(i int) uint32 { return uint32(codes8[i]) }, func(dst []float32) { Dequantize8(dst, codes8, d, 1) })
		}
		word := func(i int) uint32 { return uint32(codes16[i]) }
		check(F16, word, func(dst []float32) { Dequantize16(dst, codes16, 1) })
		check(BF16, word, func(dst []float32) { DecodeBF16(dst, codes16) })
	}
}

func TestDequantize(t *testing.T) {
	same := func(want, got float32, d DType, code int) {
		if want != want {
			require.True(t, got != got, "%s %#x", d, code)
			return
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%s %#x", d, code)
	}
	codes8, codes16 := make([]uint8, 256), make([]uint16, 1<<16)
	for i := range codes16 {
		codes16[i] = uint16(i)
		codes8[i%256] = uint8(i)
	}
	got := make([]float32, 1<<16)
	for _, scaleInv := range []float32{1, 0x1p-8, 0.3, 0x1p-126, 0x1p126, 0x1p-140, -1, 0} {
		for _, d := range append([]DType{E8M0}, codeFormats...) {
			Dequantize8(got, codes8, d, scaleInv)
			for code := range codes8 {
				same(d.Float32(uint32(code))*scaleInv, got[code], d, code)
			}
		}
		Dequantize16(got, codes16, scaleInv)
		for code := range codes16 {
			want := F16.Float32(uint32(code)) * scaleInv
			if math.Float32bits(want) != math.Float32bits(got[code]) {
				same(want, got[code], F16, code)
			}
		}
	}
	DecodeBF16(got, codes16)
	for code, v := range got {
		if math.Float32bits(v) != math.Float32bits(BF16.Float32(uint32(code))) {
			t.Fatalf("bf16 %#x gives %v", code, v)
		}
	}
}

// compareRequantize compares cast with a dequantization followed by a quantization
// (code), element by element.
func compareRequantize(t *testing.T, src []uint16, from, to DType, scaleInv, scale float32, cast func(dst []uint8) (amax float32), code func(i int, x float32) uint32) {
	want, top := make([]uint8, len(src)), float32(0)
	for i, c := range src {
		x := from.Float32(uint32(c)) * scaleInv
		want[i], top = uint8(code(i, x*scale)), MaxAmax(top, x)
	}
	got := make([]uint8, len(src)+guard)
	for i := range guard {
		got[len(src)+i] = 0xa5
	}
	amax := cast(got)
	if amax == amax || top == top {
		require.Equal(t, top, amax)
	}
	require.True(t, slices.Equal(want, got[:len(src)]), "%s to %s, %v, %v", from, to, scaleInv, scale)
	for _, c := range got[len(src):] {
		require.Equal(t, uint8(0xa5), c, "wrote past len(src)")
	}
}

// TestRequantize casts all codes in one slice, then short slices at many offsets.
func TestRequantize(t *testing.T) {
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i * 40503) // an odd multiplier permutes the codes
	}
	nearest := func(src []uint16, from, to DType, scaleInv, scale float32) {
		compareRequantize(t, src, from, to, scaleInv, scale,
			func(dst []uint8) float32 { return Requantize8(dst, src, from, to, scaleInv, scale, false) },
			func(_ int, x float32) uint32 { return to.Nearest(x, Saturate) })
	}
	stochastic := func(src []uint16, from, to DType, scaleInv, scale float32, index uint64) {
		const key = 99
		compareRequantize(t, src, from, to, scaleInv, scale,
			func(dst []uint8) float32 {
				return Requantize8Stochastic(dst, src, from, to, scaleInv, scale, key, index, false)
			},
			func(i int, x float32) uint32 { return to.Stochastic(x, Random(key, index+uint64(i)), Saturate) })
	}
	for _, from := range []DType{BF16, F16} {
		numbers := slices.DeleteFunc(slices.Clone(all), func(code uint16) bool {
			x := from.Float32(uint32(code))
			return x != x
		})
		finite := slices.DeleteFunc(slices.Clone(numbers), func(code uint16) bool { return code&0x7fff == uint16(from.Nearest(inf, NonSaturating)) })
		for _, to := range kinds {
			for _, scaleInv := range []float32{1, 0.3, 0x1p-130, 0x1p100, -1, nan} {
				for _, scale := range []float32{1, 37, 0x1p100, 0, inf} {
					nearest(finite, from, to, scaleInv, scale)
				}
			}
			for _, src := range [][]uint16{all, numbers} { // an infinity must not be cast as 65536
				nearest(src, from, to, 1, 0x1p-16)
				stochastic(src, from, to, 1, 0x1p-16, 0)
			}
			stochastic(finite, from, to, 1, 37, 1<<33-999) // the word number crosses 2^32
			stochastic(finite, from, to, 0.3, 0.01, 1<<20)
			stochastic(finite, from, to, 0x1p100, 0x1p-100, 2)
			for n := range 70 {
				short := finite[n*900+n%4:][:n]
				nearest(short, from, to, 0.5, 3)
				stochastic(short, from, to, 1, 3, uint64(n/2))
				stochastic(short, from, to, -1, 3, 1<<33-uint64(n))
			}
		}
	}
	require.PanicsWithValue(t, "fp8: Requantize8: source format is fp32, must be bf16 or fp16",
		func() { Requantize8(nil, nil, F32, E4M3, 1, 1, false) })
	require.PanicsWithValue(t, "fp8: Requantize8Stochastic: bf16 is not a format for quantized elements, such as e4m3",
		func() { Requantize8Stochastic(nil, nil, F16, BF16, 1, 1, 0, 0, false) })
}

func TestSlicesDoNotAllocate(t *testing.T) {
	src, codes8, codes16 := testVector(100, 1), make([]uint8, 100), make([]uint16, 100)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Quantize8(codes8, src, E4M3, 1, false)
		Quantize8Stochastic(codes8, src, E4M3, 1, 2, 3, false)
		Dequantize8(src, codes8, E4M3, 1)
		Quantize16(codes16, src, 1)
		Quantize16Stochastic(codes16, src, 1, 2, 3)
		Dequantize16(src, codes16, 1)
		Amax(src)
		EncodeBF16(codes16, src)
		EncodeBF16Stochastic(codes16, src, 2, 3)
		Requantize8(codes8, codes16, BF16, E4M3, 1, 1, false)
		Requantize8Stochastic(codes8, codes16, F16, E4M3, 1, 1, 2, 3, false)
		DecodeBF16(src, codes16)
	}))
}

func FuzzQuantize(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x7f, 1, 0, 0xe8, 0x43}, uint32(0x3f800000), uint64(1), uint64(1<<33-1))
	f.Fuzz(func(t *testing.T, data []byte, scale uint32, key, index uint64) {
		if len(data) < 4 {
			return
		}
		src := make([]float32, max(16, min(len(data)/4, 64))) // repeat short inputs to fill a vector
		for i := range src {
			src[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i%(len(data)&^3):]))
		}
		checkQuantize(t, src, math.Float32frombits(scale), key, index)
	})
}
