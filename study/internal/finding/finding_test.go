package finding

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{nil, "–"},
		{[]float64{0.5}, "0.50"},
		{[]float64{0.57, 0.541, 0.55}, "0.54–0.57"},
		{[]float64{0.57, math.NaN()}, "0.57–NaN"},
		{[]float64{math.Inf(1)}, "NaN"},
	} {
		require.Equal(t, c.want, Span("%.2f", c.values))
	}
}

func TestAll(t *testing.T) {
	require.True(t, All([]float64{1, 2}, 1, 2))
	require.False(t, All([]float64{1, 2.1}, 1, 2))
	require.False(t, All([]float64{1, math.NaN()}, 1, 2))
	require.False(t, All(nil, 1, 2))
}

func TestOutcomes(t *testing.T) {
	var l List
	l.Check("below 1", "0.5", true)
	l.Check("|x| below 1", "2", false)
	var b strings.Builder
	require.NoError(t, l.Write(&b))
	require.Equal(t, "### Predictions\n\n| prediction | measured | outcome |\n|---|---|---|\n"+
		"| below 1 | 0.5 | held |\n| \\|x\\| below 1 | 2 | **refuted** |\n\n", b.String())
}
