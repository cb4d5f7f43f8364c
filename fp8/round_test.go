package fp8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// TestCastTable checks values that papers and manuals state, because oracle and
// code could share a misunderstanding.
func TestCastTable(t *testing.T) {
	above := func(x float32) float32 { return math.Nextafter32(x, inf) }
	for _, c := range []struct {
		d                       DType
		x                       float32
		saturate, nonSaturating uint32
	}{
		{E4M3, 0, 0x00, 0x00},
		{E4M3, math.Float32frombits(1 << 31), 0x80, 0x80}, // -0
		{E4M3, 1, 0x38, 0x38},
		{E4M3, -1.0625, 0xb8, 0xb8}, // tie, down to even
		{E4M3, 1.1875, 0x3a, 0x3a},  // tie, up to even
		{E4M3, 0x1p-9, 0x01, 0x01},  // smallest subnormal
		{E4M3, 0x1p-10, 0x00, 0x00}, // tie, to zero
		{E4M3, above(0x1p-10), 0x01, 0x01},
		{E4M3, -0x1p-10, 0x80, 0x80},
		{E4M3, 0x1p-140, 0x00, 0x00}, // float32 subnormal
		{E4M3, 448, 0x7e, 0x7e},
		{E4M3, 464, 0x7e, 0x7e}, // tie, down to even
		{E4M3, above(464), 0x7e, 0x7f},
		{E4M3, -1e30, 0xfe, 0xff},
		{E4M3, inf, 0x7e, 0x7f},
		{E4M3, -inf, 0xfe, 0xff},
		{E4M3, nan, 0x7f, 0x7f},
		{E4M3, -nan, 0x7f, 0x7f}, // NaN has no sign
		{E4M3IEEE, 240, 0x77, 0x77},
		{E4M3IEEE, 247.9, 0x77, 0x77},
		{E4M3IEEE, 248, 0x77, 0x78}, // tie, up to even
		{E4M3IEEE, -inf, 0xf7, 0xf8},
		{E4M3IEEE, nan, 0x7f, 0x7f},
		{E5M2, 1.125, 0x3c, 0x3c}, // tie, down to even
		{E5M2, 0x1p-16, 0x01, 0x01},
		{E5M2, 0x1p-17, 0x00, 0x00},
		{E5M2, 57344, 0x7b, 0x7b},
		{E5M2, 61439, 0x7b, 0x7b},
		{E5M2, 61440, 0x7b, 0x7c}, // tie, up to even
		{E5M2, -inf, 0xfb, 0xfc},
		{E5M2, nan, 0x7f, 0x7f},
		{F16, 65504, 0x7bff, 0x7bff},
		{F16, 65520, 0x7bff, 0x7c00},
		{F16, 0x1p-24, 0x0001, 0x0001},
		{F16, nan, 0x7fff, 0x7fff},
		{BF16, 1.00390625, 0x3f80, 0x3f80}, // tie, down to even
		{BF16, math.MaxFloat32, 0x7f7f, 0x7f80},
		{BF16, -inf, 0xff7f, 0xff80},
		{BF16, 0x1p-133, 0x0001, 0x0001},
		{F32, 1, 0x3f800000, 0x3f800000},
		{F32, -0x1p-149, 0x80000001, 0x80000001},
		{F32, inf, 0x7f7fffff, 0x7f800000},
		{F32, nan, 0x7fffffff, 0x7fffffff},
		{E8M0, 1, 127, 127},
		{E8M0, -2, 128, 128},
		{E8M0, 1.4999, 127, 127},
		{E8M0, 1.5, 128, 128},
		{E8M0, 0, 0, 0},
		{E8M0, 0x1p-127, 0, 0},
		{E8M0, 0x1.000004p-127, 1, 1},
		{E8M0, 0x1p-126, 1, 1},
		{E8M0, 0x1.7ffffep127, 254, 254},
		{E8M0, 0x1.8p127, 254, 255},
		{E8M0, inf, 254, 255},
		{E8M0, nan, 255, 255},
	} {
		require.Equal(t, c.saturate, c.d.Nearest(c.x, Saturate), "%s: %v, Saturate", c.d, c.x)
		require.Equal(t, c.nonSaturating, c.d.Nearest(c.x, NonSaturating), "%s: %v, NonSaturating", c.d, c.x)
	}
}

func TestValueTable(t *testing.T) {
	for _, c := range []struct {
		d    DType
		code uint32
		want float32
	}{
		{E4M3, 0x7e, 448},
		{E4M3, 0x08, 0x1p-6},
		{E4M3, 0x81, -0x1p-9},
		{E4M3, 0x138, 1}, // bits above the format are ignored
		{E4M3IEEE, 0x77, 240},
		{E4M3IEEE, 0xf8, -inf},
		{E5M2, 0x7b, 57344},
		{E5M2, 0x04, 0x1p-14},
		{E5M2, 0x01, 0x1p-16},
		{E5M2, 0x7c, inf},
		{F16, 0x3555, 0.333251953125},
		{BF16, 0x4049, 3.140625},
		{F32, 0xc0000000, -2},
		{E8M0, 0, 0x1p-127},
		{E8M0, 127, 1},
		{E8M0, 254, 0x1p127},
	} {
		require.Equal(t, c.want, c.d.Float32(c.code), "%s %#x", c.d, c.code)
	}
	require.True(t, math.IsNaN(float64(E8M0.Float32(255))))
	require.True(t, math.Signbit(float64(E4M3.Float32(0x80))))
	require.Equal(t, uint32(0xff800001), math.Float32bits(F32.Float32(0xff800001)), "NaN keeps sign and payload")
	require.Equal(t, uint32(0xffe00000), math.Float32bits(E5M2.Float32(0xff)))
	require.Equal(t, float32(0x1p-127), E8M0.Table()[0])
}

// TestRoundTrip casts the value of every finite code, which must give the same
// code with both roundings.
func TestRoundTrip(t *testing.T) {
	for _, d := range append([]DType{E8M0, F32}, castFormats...) {
		codes := uint64(1) << d.Format().Bits
		for c := uint64(0); c < codes; c += max(1, codes>>16) {
			code := uint32(c)
			x := d.Float32(code)
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) || x < -d.Max() {
				continue
			}
			require.Equal(t, code, d.Nearest(x, NonSaturating), d)
			if d != E8M0 {
				require.Equal(t, code, d.Stochastic(x, math.MaxUint32, NonSaturating), d)
			}
		}
	}
}

func TestE8M0IsTheNearestPower(t *testing.T) {
	for e := uint32(1); e < 255; e++ { // float32 subnormals: see TestCastTable
		for _, m := range []uint32{0, 1, 0x200000, 0x3fffff, 0x400000, 0x400001, 0x600000, 0x7fffff} {
			x := math.Float32frombits(e<<23 | m)
			want, best := uint32(0), math.Inf(1)
			for code := range uint32(255) { // the larger power wins a tie
				if distance := math.Abs(float64(x) - math.Pow(2, float64(code)-127)); distance <= best {
					want, best = code, distance
				}
			}
			require.Equal(t, want, E8M0.Nearest(x, Saturate), "%v", x)
			require.Equal(t, want, E8M0.Nearest(-x, Saturate), "%v", -x)
		}
	}
}

func TestStochasticIsUnbiased(t *testing.T) {
	const n = 1 << 16
	for _, c := range []struct {
		d DType
		x float32
	}{{E4M3, 1.03}, {E4M3, 0x1.1p-10}, {E4M3, -300.7}, {E5M2, 1e-5}, {E5M2, 0.3}, {F16, 0.1}, {BF16, math.Pi}} {
		down := c.d.Float32(c.d.Stochastic(c.x, 0, Saturate))
		up := c.d.Float32(c.d.Stochastic(c.x, math.MaxUint32, Saturate))
		unit := math.Abs(float64(up) - float64(down))
		require.NotZero(t, unit)
		var sum float64
		for i := range uint64(n) {
			sum += float64(c.d.Float32(c.d.Stochastic(c.x, Random(3, i), Saturate)))
		}
		// The standard deviation of one rounding is at most half a unit.
		require.InDelta(t, c.x, sum/n, 4*unit/2/math.Sqrt(n), "%s %v", c.d, c.x)
	}
}

// TestStochasticWithSixteenBits tries all values of Random: the share that rounds up
// must be the discarded fraction, truncated to a multiple of 2^-16.
func TestStochasticWithSixteenBits(t *testing.T) {
	for _, c := range []struct {
		d    DType
		x    float32
		want int // of 2^16
	}{
		{E4M3, 1.0625, 1 << 15},
		{E4M3, 1, 0},
		{E4M3, 1 + 0x1p-3*0x1p-16, 1},
		{E4M3, 1 + 0x1.8p-3*0x1p-16, 1},        // 1.5, truncated
		{E4M3, 1 + 0x1p-3*0x1p-17, 0},          // 0.5: never rounds up
		{E4M3, 1.125 - 0x1p-3*0x1p-18, 0xffff}, // 65535.75
		{E4M3, -0x1p-9 * 0.75, 3 << 14},
		{E4M3, 0x1p-9 * 0x1p-16, 1},
		{E4M3, 0x1p-9 * 0x1p-17, 0},
		{E5M2, 1 + 0x1.8p-2*0x1p-16, 1},
		{F16, 1 + 0x1p-23, 1 << 3}, // every float32 bit counts
		{BF16, 1 + 0x1p-23, 1},
	} {
		down, up := c.d.Stochastic(c.x, 0, Saturate), 0
		for r := range uint32(1 << 16) {
			if c.d.Stochastic(c.x, r<<16, Saturate) != down {
				up++
			}
		}
		require.Equal(t, c.want, up, "%s %v", c.d, c.x)
	}
}

// TestStochasticUnderflow tests the underflow bound that Random documents: below 2^-16 of
// the smallest subnormal, no random bits round up. At the bound, one value of 2^16 does,
// in slice casts too.
func TestStochasticUnderflow(t *testing.T) {
	const n = 1<<19 + 5
	src, codes, halves := make([]float32, n), make([]uint8, n), make([]uint16, n)
	for d, smallest := range map[DType]float32{E4M3: 0x1p-25, E4M3IEEE: 0x1p-25, E5M2: 0x1p-32, F16: 0x1p-40} {
		require.Equal(t, d.Float32(1)*0x1p-16, smallest, "%s", d)
		for _, c := range []struct {
			x    float32
			want int // codes of 2^16 that are not zero
		}{{smallest, 1}, {math.Nextafter32(smallest, 0), 0}, {-smallest, 1}, {-math.Nextafter32(smallest, 0), 0}} {
			up := 0
			for r := range uint32(1 << 16) {
				if d.Float32(d.Stochastic(c.x, r<<16, Saturate)) != 0 {
					up++
				}
			}
			require.Equal(t, c.want, up, "%s %v", d, c.x)
			for i := range src {
				src[i] = c.x
			}
			if d == F16 {
				Quantize16Stochastic(halves, src, 1, 4, 0)
			} else {
				Quantize8Stochastic(codes, src, d, 1, 4, 0, false)
			}
			up = 0
			for i := range n {
				code := uint32(codes[i])
				if d == F16 {
					code = uint32(halves[i])
				}
				if d.Float32(code) != 0 {
					up++
				}
			}
			if c.want == 0 {
				require.Zero(t, up, "%s %v", d, c.x)
			} else {
				require.InDelta(t, n>>16, up, n>>16, "%s %v", d, c.x)
				require.NotZero(t, up)
			}
		}
	}
}

func TestNamesRoundTrip(t *testing.T) {
	for _, r := range []Rounding{Nearest, Stochastic} {
		got, err := ParseRounding(r.String())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	_, err := ParseRounding("up")
	require.EqualError(t, err, `unknown rounding "up" (known: nearest, stochastic)`)
	require.Equal(t, "invalid", Rounding(9).String())

	for d := F32; d <= I32; d++ {
		got, err := ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, got)
	}
	_, err = ParseDType("invalid")
	require.ErrorContains(t, err, `unknown number format "invalid"`)
}

func TestMisusePanics(t *testing.T) {
	require.PanicsWithValue(t, "fp8: Nearest: i32 is not a float format", func() { I32.Nearest(1, Saturate) })
	require.PanicsWithValue(t, "fp8: Float32: invalid is not a float format", func() { DType(200).Float32(1) })
	require.Panics(t, func() { E8M0.Stochastic(1, 0, Saturate) })
	require.PanicsWithValue(t, "fp8: Table: bf16 has no codes of at most eight bits", func() { BF16.Table() })
	require.PanicsWithValue(t, "fp8: Quantize8: e8m0 is not a format for quantized elements, such as e4m3",
		func() { Quantize8(make([]uint8, 1), make([]float32, 1), E8M0, 1, false) })
	require.Panics(t, func() { Quantize16(make([]uint16, 1), make([]float32, 2), 1) })
}
