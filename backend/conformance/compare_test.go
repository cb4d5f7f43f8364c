package conformance

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// One change of a code may repeat, several may not: an error of a few small elements is an
// error beside a large one.
func TestCompareNormCountsChanges(t *testing.T) {
	out := backend.NewVars().Tensor(backend.Output, "out", fp8.E4M3, 2000)
	want := slices.Repeat([]float64{1, 1.25, 1.5, 1.75, 2}, 400)
	want[0] = 448
	one, several := slices.Clone(want), slices.Clone(want)
	for i := 1; i < 100; i++ {
		if want[i] == 1.25 {
			one[i] = 1.375
		}
		if i < 10 {
			several[i] *= 1.125
		}
	}
	require.NoError(t, compareNorm(out, want, one, elementwise))
	require.ErrorContains(t, compareNorm(out, want, several, elementwise), "5 different changes of a code among 2000 elements")
}
