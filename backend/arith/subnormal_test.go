package arith

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// The exponent with which a subnormal operand m is aligned decides which other terms
// survive: in m − m + x, with m the smallest value of a format, x is truncated to units
// of 2^(exponent − bits). The exponents are those of the models' sources; each expectation
// excludes the neighbouring exponents. gaudi2 with E4M3 cannot be tested: its smallest
// product of two E4M3 values is above the unit.
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
					[]float32{smallest, -smallest}, []float32{1, 1}, m.Sum.MinPower(c.d), m.Sum.MinPower(fp8.E4M3), 1, float32(x)))
			}
			unit := math.Ldexp(1, c.exponent-c.bits)
			require.Equal(t, unit, sum(unit), "a larger exponent truncates it to zero")
			require.Equal(t, unit, sum(1.5*unit), "a smaller exponent keeps the half unit")
			require.Zero(t, sum(unit/2))
		})
	}
	// gaudi2 adds its addend last, without alignment: a third product is truncated instead.
	m, err := Lookup("gaudi2")
	require.NoError(t, err)
	minPower := m.Sum.MinPower(fp8.E5M2)
	sum := func(y float32) float32 {
		return m.Sum.Fuse([]float32{0x1p-16, -0x1p-16, 0x1p-16}, []float32{0x1p7, 0x1p7, y}, minPower, minPower, 1, 0)
	}
	require.Equal(t, float32(0x1p-31), sum(0x1p-15), "exponent -14, less 24 bits, times 2^7")
	require.Zero(t, sum(0x1p-16))
}
