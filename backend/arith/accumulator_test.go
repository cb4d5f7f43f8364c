package arith

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLookupAccumulator(t *testing.T) {
	for text, want := range map[string]*Accumulator{
		"accum16": {Bits: 16}, "accum16,wrap": {Bits: 16}, "accum32,saturate": {Bits: 32, Saturate: true},
		"h100": nil, "": nil, "h100,fast": nil,
	} {
		c, err := LookupAccumulator(text)
		require.NoError(t, err, text)
		require.Equal(t, want, c, text)
	}
	for text, want := range map[string]string{
		"accum":             `device model accum: "" is no number of bits from 2 to 32: give one, such as accum16`,
		"accum1":            `"1" is no number of bits from 2 to 32`,
		"accum33,wrap":      `device model accum33: "33" is no number`,
		"accum+8":           `"+8" is no number`,
		"accum016":          `"016" is no number`,
		"accum16,":          `device model accum16 has no option "" (it has wrap, saturate)`,
		"accum16,wrap,fast": `device model accum16 has no option "wrap,fast"`,
	} {
		_, err := LookupAccumulator(text)
		require.ErrorContains(t, err, want)
	}
}

// Sums equal those of exact arithmetic: a wrapped sum is the exact sum modulo 2^Bits, a
// saturated one is limited after each addition.
func TestAccumulator(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for bits := minAccumulator; bits <= maxAccumulator; bits++ {
		half := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		low, high := new(big.Int).Neg(half), new(big.Int).Sub(half, big.NewInt(1))
		overflows := 0
		for range 20 {
			k := r.IntN(300)
			a, b := make([]int32, k), make([]int32, k)
			sum, limited := new(big.Int), new(big.Int)
			for i := range k {
				a[i], b[i] = int32(r.IntN(255)-127), int32(r.IntN(255)-127)
				product := big.NewInt(int64(a[i]) * int64(b[i]))
				sum.Add(sum, product)
				if limited.Add(limited, product); limited.Cmp(low) < 0 {
					limited.Set(low)
				} else if limited.Cmp(high) > 0 {
					limited.Set(high)
				}
			}
			wrapped := new(big.Int).Add(sum, half)
			wrapped.Mod(wrapped, new(big.Int).Lsh(half, 1)).Sub(wrapped, half)
			require.EqualValues(t, wrapped.Int64(), (&Accumulator{Bits: bits}).Dot(a, b))
			require.EqualValues(t, limited.Int64(), (&Accumulator{Bits: bits, Saturate: true}).Dot(a, b))
			if wrapped.Cmp(sum) != 0 {
				overflows++
			}
		}
		require.True(t, bits > 16 || overflows > 0, bits)
	}
}

// K = 352 products of INT8 fit 24 bits, whatever their values, and not 23.
func TestAccumulatorByTypes(t *testing.T) {
	x := make([]int32, 352)
	for i := range x {
		x[i] = 127
	}
	exact := int32(352 * 127 * 127)
	require.Equal(t, exact, (&Accumulator{Bits: 24}).Dot(x, x))
	require.Equal(t, exact-1<<23, (&Accumulator{Bits: 23}).Dot(x, x))
	require.Equal(t, int32(1<<22-1), (&Accumulator{Bits: 23, Saturate: true}).Dot(x, x))
}
