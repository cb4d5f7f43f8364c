package arith

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	m, err := Lookup("h100,promote=32")
	require.NoError(t, err)
	a, b := products(t, 40, m.E4M3, "0: 1*1, 1-6: 1p-7*1p-7, 7: 1.5*1, 35: 3*2")
	var text strings.Builder
	require.NoError(t, m.Explain(&text, a, b, true))
	require.Equal(t, `h100: Hopper: 32 products and the addend, 13 bits
e4m3 times e4m3, 40 products, promoted to FP32 every 32

k 0 to 31, addend 0
  aligned to 2^0, of k 0: 1 * 1; a unit is 2^-13
  truncated: k 1: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  truncated: k 2: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  truncated: k 3: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  truncated: k 4: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  and 2 more
  truncated in all: -0.000366
  = 2.5
  promoted: 0 + 2.5 = 2.5

k 32 to 39, addend 0
  aligned to 2^2, of k 35: 3 * 2; a unit is 2^-11
  = 6
  promoted: 2.5 + 6 = 8.5

result  8.5
exact   8.5003662109375
error   -0.000366, -4.3e-05 relative
`, text.String())
	for line := range strings.Lines(text.String()) {
		require.LessOrEqual(t, len(line), 90)
	}
}

// Explain prints Dot's result, and no exact value where a sum is not finite.
func TestExplainAgreesWithDot(t *testing.T) {
	for _, m := range Models() {
		a, b := products(t, 100, m.E4M3, "0-99: 1.125*0.875, 50: 240*-240, 51: 240*240, 99: 1p-9*3")
		var text strings.Builder
		require.NoError(t, m.Explain(&text, a, b, false))
		require.Contains(t, text.String(), "\nresult  "+fmt.Sprint(m.Dot(a, b, false))+"\n")
		a.Codes[3] = 0x7f
		text.Reset()
		require.NoError(t, m.Explain(&text, a, b, false))
		require.Contains(t, text.String(), "result  NaN")
		require.NotContains(t, text.String(), "exact")
	}
}

// Explain shows block scales with the products that they multiply, or where sums join.
func TestExplainBlockScales(t *testing.T) {
	m, err := Lookup("b200")
	require.NoError(t, err)
	a, b := products(t, 40, m.E4M3, "0: 1*1, 1: 1.5*1, 32: 1.75*1.75, 33: 1p-9*1p-3")
	a.Scales, b.Scales = scaleCodes([]int{3, -10}), scaleCodes([]int{-3, -4})
	var text strings.Builder
	require.NoError(t, m.Explain(&text, a, b, true))
	require.Equal(t, `b200: Blackwell: 32 products and the addend, 25 bits, toward zero; MX scales inside
e4m3 times e4m3, 40 products
block scales multiply the products before they are aligned

k 0 to 31, addend 0
  aligned to 2^0, of k 0: 1 * 1; a unit is 2^-25
  = 2.5

k 32 to 39, addend 2.5
  aligned to 2^1, of the addend 2.5; a unit is 2^-24
  truncated: k 33: 0.001953125 * 0.125 * 2^-14 = 1.4901161193847656e-08 becomes 0
  truncated in all: -1.49e-08
  = 2.500187

result  2.500187
exact   2.500186935067177
error   -1.49e-08, -6e-09 relative
`, text.String())
	m, err = Lookup("ada")
	require.NoError(t, err)
	text.Reset()
	require.NoError(t, m.Explain(&text, a, b, true))
	require.Contains(t, text.String(), "block scales multiply sums of 32 products, in FP32\n")
	require.Contains(t, text.String(), "  joined: 2.5 + 3.0627441 * 2^-14 = 2.500187\n")
}
