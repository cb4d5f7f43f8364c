package fp8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var maskedFormats = []string{"e8m6mask", "e8m3mask", "e8m1mask", "e7m7mask", "e5m7mask", "e4m7mask", "e5m3mask"}

// TestMask compares with the definition in float64, at every BF16 value and around the
// midpoints: the nearest BF16 value, truncated to a multiple of the spacing, without
// subnormals, and clipped at the largest value.
func TestMask(t *testing.T) {
	var src []float32
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 0x7fff, 0x8000, 0x8001} {
			src = append(src, math.Float32frombits(high<<16|low))
		}
	}
	dst, wide := make([]uint16, len(src)), make([]uint16, len(src))
	EncodeBF16(wide, src)
	for _, name := range maskedFormats {
		d := parsed(name)
		f := d.Format()
		require.Equal(t, name, d.String())
		bias := math.Ldexp(1, f.Exponent-1) - 1
		smallest := math.Exp2(1 - bias)
		largest := math.Exp2(bias) * (2 - math.Exp2(-float64(f.Mantissa)))
		require.Equal(t, []float64{smallest, largest}, []float64{float64(d.Smallest()), float64(d.Max())}, name)
		EncodeBF16As(dst, src, d)
		for i, x := range src {
			v := float64(BF16.Float32(uint32(wide[i])))
			if v-v != 0 {
				require.Equal(t, wide[i], dst[i])
				continue
			}
			_, exponent := math.Frexp(v)
			spacing := math.Ldexp(1, exponent-1-f.Mantissa)
			want := math.Min(math.Trunc(math.Abs(v)/spacing)*spacing, largest)
			if math.Abs(v) < smallest {
				want = 0
			}
			want = math.Copysign(want, v)
			if got := BF16.Float32(uint32(dst[i])); math.Float32bits(float32(want)) != math.Float32bits(got) {
				t.Fatalf("%s: %v is %v, want %v", name, x, got, want)
			}
			if i%7 == 0 && uint32(dst[i]) != d.Nearest(x, NonSaturating) {
				t.Fatalf("%s: Nearest of %v differs", name, x)
			}
		}
		require.Equal(t, uint32(dst[5]), d.Stochastic(src[5], 0, NonSaturating), name)
	}
	for _, name := range []string{"e4m3mask", "e8m7mask", "e5m7b9mask", "e1m7mask"} {
		_, err := ParseDType(name)
		require.ErrorContains(t, err, name)
	}
	require.False(t, parsed("e8m5mask").IsQuantized())
	require.Equal(t, BF16, parsed("e8m5mask").Format().Container)
}
