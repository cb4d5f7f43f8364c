package arith

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// With which exponent a subnormal operand counts shows in what is kept beside it: in
// m − m + x, with m the smallest number of a format, x is cut off below the exponent's
// unit. The exponents are those of the models' sources, each a binade from the
// answers that rule the next ones out. Where the smallest product of two E4M3 numbers
// is above the unit (gaudi2), nothing shows.
func TestSubnormalExponents(t *testing.T) {
	for _, c := range []struct {
		model    string
		d        fp8.DType
		exponent int // of m
		bits     int
	}{
		{"h100", fp8.E4M3, -6, 13},
		{"h100", fp8.E5M2, -14, 13},
		{"ada", fp8.E4M3, -6, 13},
		{"ada", fp8.E5M2, -14, 13},
		{"b200", fp8.E4M3, -6, 25},
		{"b200", fp8.E5M2, -14, 25},
		{"gaudi3", fp8.E4M3, -9, 24},
		{"gaudi3", fp8.E5M2, -16, 24},
	} {
		t.Run(c.model+" "+c.d.String(), func(t *testing.T) {
			m, err := Lookup(c.model)
			require.NoError(t, err)
			smallest := c.d.Float32(1)
			sum := func(x float64) float64 {
				return float64(m.Sum.Fuse(
					[]float32{smallest, -smallest}, []float32{1, 1}, m.Sum.Least(c.d), m.Sum.Least(fp8.E4M3), 1, float32(x)))
			}
			unit := math.Ldexp(1, c.exponent-c.bits)
			require.Equal(t, unit, sum(unit), "a larger exponent would cut it off")
			require.Equal(t, unit, sum(1.5*unit), "a smaller one would keep it")
			require.Zero(t, sum(unit/2))
		})
	}
	// The addend of gaudi2 is apart: a third product has to be what is cut off.
	m, err := Lookup("gaudi2")
	require.NoError(t, err)
	least := m.Sum.Least(fp8.E5M2)
	sum := func(y float32) float32 {
		return m.Sum.Fuse([]float32{0x1p-16, -0x1p-16, 0x1p-16}, []float32{0x1p7, 0x1p7, y}, least, least, 1, 0)
	}
	require.Equal(t, float32(0x1p-31), sum(0x1p-15), "exponent -14, less 24 bits, times 2^7")
	require.Zero(t, sum(0x1p-16))
}
