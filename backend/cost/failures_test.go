package cost

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The interval is that of the least overhead.
func TestInterval(t *testing.T) {
	f := Failures{MTBF: 3600, Save: 30, Restart: 600}
	best := f.Interval()
	require.InDelta(t, math.Sqrt(2*30*3600), best, 1e-9)
	for _, factor := range []float64{0.5, 0.9, 0.99, 1.01, 1.1, 2} {
		require.Less(t, f.Overhead(best), f.Overhead(best*factor))
	}
	// 16,384 devices of which one fails in 50,700 hours: an eighth of the time is lost, with a
	// checkpoint every 14 minutes.
	f.MTBF = 50700.0 / 16384 * 3600
	require.InDelta(t, 0.127, f.Overhead(f.Interval()), 0.001)
}

// Daly's estimate is the exact optimum of his model to a few percent, where Young's is not:
//
//	time = MTBF · exp(Restart/MTBF) · (exp((τ + Save)/MTBF) − 1) · work/τ
func TestIntervalOfSlowSaves(t *testing.T) {
	f := Failures{MTBF: 1000, Save: 300}
	time := func(tau float64) float64 { return (math.Exp((tau+f.Save)/f.MTBF) - 1) / tau }
	best := 1.0
	for tau := 1.0; tau < 3000; tau++ {
		if time(tau) < time(best) {
			best = tau
		}
	}
	require.InEpsilon(t, best, f.Interval(), 0.02)
	require.Greater(t, math.Abs(math.Sqrt(2*f.Save*f.MTBF)-best)/best, 0.3)
	f.Save = 5000
	require.Equal(t, f.MTBF, f.Interval())
}
