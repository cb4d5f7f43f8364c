package fp8

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScaleFor(t *testing.T) {
	for _, c := range []struct {
		amax, limit float32
		pow2        bool
		want        float32
	}{
		{448, 448, true, 1},
		{448.00003, 448, true, 0.5},
		{1, 448, true, 256},
		{1, 448, false, 448},
		{3, 448, false, 149.33333},
		{224, 448, true, 2},
		{0x1p-149, 448, true, 0x1p126},
		{0x1p-149, 448, false, 0x1p126},
		{math.MaxFloat32, 448, true, 0x1p-120},
		{math.MaxFloat32, 4, true, 0x1p-126},
		{math.MaxFloat32, 0x1p-100, true, 0x1p-126},
	} {
		got, ok := ScaleFor(c.amax, c.limit, c.pow2)
		require.True(t, ok)
		require.Equal(t, c.want, got, "%+v", c)
	}
	for _, amax := range []float32{0, nan, -nan, inf} {
		got, ok := ScaleFor(amax, 448, true)
		require.False(t, ok)
		require.Equal(t, float32(1), got)
	}
}

// checkScale compares ScaleFor with exact arithmetic: the product of two float32
// is exact in float64.
func checkScale(t *testing.T, amax, limit float32) {
	for _, pow2 := range []bool{false, true} {
		scale, ok := ScaleFor(amax, limit, pow2)
		require.True(t, ok)
		require.GreaterOrEqual(t, scale, float32(0x1p-126))
		require.LessOrEqual(t, scale, float32(0x1p126))
		require.LessOrEqual(t, amax*scale, limit, "amax %v, limit %v, scale %v", amax, limit, scale)
		require.GreaterOrEqual(t, 1/scale, float32(0x1p-126))
		larger := math.Nextafter32(scale, inf)
		if pow2 {
			fraction, _ := math.Frexp(float64(scale))
			require.Equal(t, 0.5, fraction)
			larger = 2 * scale
		} else {
			larger = math.Nextafter32(larger, inf)
		}
		if larger <= 0x1p126 {
			require.Greater(t, float64(amax)*float64(larger), float64(limit), "amax %v, limit %v: scale %v is too small", amax, limit, scale)
		}
	}
}

func TestScaleForIsTheLargestThatFits(t *testing.T) {
	for _, d := range slices.Concat(fp8Formats, []DType{E3M2, INT8, BF16, F16}) { // the limit is at least 4
		for margin := range 3 {
			limit := d.Max() / float32(int(1)<<margin)
			for e := range uint32(255) {
				for i, m := range []uint32{0, 1, 0x400000, 0x5fffff, 0x600000, 0x600001, 0x6fffff, 0x700000, 0x7fffff, Random(1, uint64(e)) >> 9} {
					if e+m+uint32(i) > 0 && e<<23|m > 0 {
						checkScale(t, math.Float32frombits(e<<23|m), limit)
					}
				}
			}
		}
	}
}

func FuzzScaleFor(f *testing.F) {
	f.Add(float32(1), float32(448))
	f.Add(float32(0x1p-149), float32(57344))
	f.Fuzz(func(t *testing.T, amax, limit float32) {
		if amax > 0 && amax < inf && limit >= 4 && limit < inf {
			checkScale(t, amax, limit)
		}
	})
}

func TestMXScale(t *testing.T) {
	for _, d := range []DType{E4M3, E4M3IEEE, E5M2, E2M1, E2M3, E3M2, INT8} {
		require.Equal(t, uint8(127), MXScale(d.Max(), d, RoundUp))
		require.Equal(t, uint8(128), MXScale(math.Nextafter32(d.Max(), inf), d, RoundUp))
		require.Equal(t, uint8(126), MXScale(d.Max()/2, d, RoundUp))
		require.Equal(t, uint8(0), MXScale(0, d, RoundUp))
		require.Equal(t, uint8(0xfe), MXScale(inf, d, RoundUp))
		require.Equal(t, uint8(0xff), MXScale(nan, d, RoundUp))

		check := func(bits uint32) {
			amax := math.Float32frombits(bits)
			code := 0 // the smallest scale that fits, found by trying
			for code < 254 && float64(amax) > float64(d.Max())*math.Pow(2, float64(code-127)) {
				code++
			}
			if got := MXScale(amax, d, RoundUp); int(got) != code {
				t.Fatalf("%s: %v gives %d, want %d", d, amax, got, code)
			}
			floor := math.Floor(math.Log2(float64(amax))) - math.Floor(math.Log2(float64(d.Max()))) + 127
			if got := MXScale(amax, d, RoundDown); amax >= 0x1p-126 && float64(got) != max(0, floor) {
				t.Fatalf("%s: %v gives %d, want %v", d, amax, got, floor)
			}
		}
		for e := range uint32(255) {
			for _, m := range []uint32{0, 1, 0x5fffff, 0x600000, 0x600001, 0x6fffff, 0x700000, 0x700001, 0x7fffff, Random(1, uint64(e)) >> 9} {
				check(e<<23 | m)
			}
		}
	}
}

func TestBlockScale(t *testing.T) {
	value := func(b *BlockScale, amax float32) (scaleInv, factor float32) {
		code, factor := b.Choose(amax)
		if b.Stored == F32 {
			return math.Float32frombits(code), factor
		}
		return b.Stored.Float32(code), factor
	}
	plain := &BlockScale{Elements: E4M3, Stored: F32, Limit: 448}
	for _, c := range []struct {
		b                     *BlockScale
		amax, inverse, factor float32
	}{
		{plain, 448, 1, 1},
		{plain, 0, 1, 1},
		{plain, inf, nan, 1},
		{plain, nan, nan, 1},
		{&BlockScale{Elements: E4M3, Stored: F32, Rule: Pow2Down, Limit: 448}, 3, 0x1p-7, 0x1p7},
		{&BlockScale{Elements: E2M1, Stored: E8M0, Rule: RoundUp}, 7, 2, 0.5},
		{&BlockScale{Elements: E2M1, Stored: E8M0, Rule: RoundDown}, 7, 1, 1},
		{&BlockScale{Elements: E2M1, Stored: E8M0, Rule: RoundUp}, nan, nan, nan},
		{&BlockScale{Elements: E2M1, Stored: E8M0, Rule: RoundDown}, inf, 0x1p127, 0x1p-127},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 1}, 6, 1, 1},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 1}, 6.5, 1.125, 1 / float32(1.125)},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 1}, 1e9, 448, 1.0 / 448},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 1}, 0x1p-12, 0, math.MaxFloat32},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 2}, 6, 2, 1},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: nan}, 6, nan, nan},
		{&BlockScale{Elements: E2M1, Stored: E4M3, Rule: Quotient, Outer: 1}, inf, nan, nan},
	} {
		inverse, factor := value(c.b, c.amax)
		same := func(want, got float32) bool { return want == got || want != want && got != got }
		require.True(t, same(c.inverse, inverse) && same(c.factor, factor), "%+v, amax %v: %v, %v", *c.b, c.amax, inverse, factor)
	}
}

func TestOuterScale(t *testing.T) {
	require.Equal(t, float32(1), OuterScale(2688, 2688))
	require.Equal(t, float32(2), OuterScale(1344, 2688))
	require.Equal(t, float32(1), OuterScale(0, 2688))
	require.Equal(t, float32(math.MaxFloat32), OuterScale(0x1p-149, 2688))
	for _, x := range []float32{inf, nan} {
		got := OuterScale(x, 2688)
		require.True(t, got != got)
	}
}
