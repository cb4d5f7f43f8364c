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
	require.NoError(t, m.Explain(&text, a, b, m.E4M3, m.E4M3, true))
	require.Equal(t, `h100: Hopper: 32 products and the addend, 13 bits; promoted every 128
e4m3 times e4m3, 40 products, promoted to FP32 every 32

k 0 to 31 on top of 0
  aligned to 2^0, of k 0: 1 * 1; a unit is 2^-13
  cut off: k 1: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  cut off: k 2: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  cut off: k 3: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  cut off: k 4: 0.0078125 * 0.0078125 = 6.103515625e-05 becomes 0
  and 2 more
  cut off in all: -0.000366
  = 2.5
  promoted: 0 + 2.5 = 2.5

k 32 to 39 on top of 0
  aligned to 2^2, of k 35: 3 * 2; a unit is 2^-11
  = 6
  promoted: 2.5 + 6 = 8.5

result  8.5
exact   8.5003662109375
error   -0.000366, -4.3e-05 of it
`, text.String())
	for line := range strings.Lines(text.String()) {
		require.LessOrEqual(t, len(line), 90)
	}
}

// What Explain says is what Dot computes, and a sum that is not finite has no exact
// value.
func TestExplainAgreesWithDot(t *testing.T) {
	for _, m := range Models() {
		a, b := products(t, 100, m.E4M3, "0-99: 1.125*0.875, 50: 240*-240, 51: 240*240, 99: 1p-9*3")
		var text strings.Builder
		require.NoError(t, m.Explain(&text, a, b, m.E4M3, m.E4M3, false))
		require.Contains(t, text.String(), "\nresult  "+fmt.Sprint(m.Dot(a, b, m.E4M3, m.E4M3, false))+"\n")
		a[3] = 0x7f
		text.Reset()
		require.NoError(t, m.Explain(&text, a, b, m.E4M3, m.E4M3, false))
		require.Contains(t, text.String(), "result  NaN")
		require.NotContains(t, text.String(), "exact")
	}
}
