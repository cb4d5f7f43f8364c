package stats

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTailsOfStudent compares with the closed forms for 1, 2, 4 and 9 degrees of freedom.
func TestTailsOfStudent(t *testing.T) {
	for _, v := range []float64{0, 1e-9, 0.01, 0.5, 1, 2, 3.5, 10, 1000, 1e8} {
		within := 1e-12
		require.InDelta(t, 1-2/math.Pi*math.Atan(v), tailsOfStudent(v, 1), within)
		require.InDelta(t, 1-v/math.Sqrt(2+v*v), tailsOfStudent(-v, 2), within)
		s := v / math.Sqrt(4+v*v)
		require.InDelta(t, 1-s*(1+(1-s*s)/2), tailsOfStudent(v, 4), within)
		angle := math.Atan(v / 3)
		cos := math.Cos(angle)
		sum := cos + 2./3*math.Pow(cos, 3) + 2.*4/(3*5)*math.Pow(cos, 5) + 2.*4*6/(3*5*7)*math.Pow(cos, 7)
		require.InDelta(t, 1-2/math.Pi*(angle+math.Sin(angle)*sum), tailsOfStudent(v, 9), within)
	}
	// With many degrees of freedom the distribution is normal.
	require.InDelta(t, math.Erfc(2/math.Sqrt2), tailsOfStudent(2, 1e6), 1e-6)
	require.Zero(t, tailsOfStudent(math.Inf(-1), 3))
}

func TestPairedOf(t *testing.T) {
	p := PairedOf([]float64{1, 2, 3, 4})
	require.Equal(t, 4, p.N)
	require.InDelta(t, 2.5, p.Mean, 1e-15)
	require.Equal(t, 1.0, p.Min)
	require.Equal(t, 4.0, p.Max)
	require.InDelta(t, math.Sqrt(5./3/4), p.StdErr, 1e-15)
	require.InDelta(t, 0.030466, p.P, 1e-6) // t = 3.872983 with 3 degrees of freedom
	require.Equal(t, 1.0, PairedOf([]float64{0, 0}).P)
	require.Equal(t, 0.0, PairedOf([]float64{1, 1}).P)
	one := PairedOf([]float64{7})
	require.Equal(t, 7.0, one.Mean)
	require.True(t, math.IsNaN(one.StdErr) && math.IsNaN(one.P))
	require.True(t, math.IsNaN(PairedOf(nil).Mean))
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, Median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, Median([]float64{4, 1, 2, 3}))
	require.True(t, math.IsNaN(Median(nil)))
}

// Spearman's correlation; equal values share a rank: of 7 and 7 below, 2.5.
func TestRankCorrelation(t *testing.T) {
	require.InDelta(t, 1, RankCorrelation([]float64{1, 2, 30}, []float64{-4, 5, 6}), 1e-15)
	require.InDelta(t, -1, RankCorrelation([]float64{1, 2, 3}, []float64{9, 5, 1}), 1e-15)
	require.InDelta(t, 8/math.Sqrt(10*9.5), RankCorrelation([]float64{1, 2, 3, 4, 5}, []float64{5, 6, 7, 8, 7}), 1e-12)
	require.True(t, math.IsNaN(RankCorrelation([]float64{1, 2}, []float64{3, 3})))
}
