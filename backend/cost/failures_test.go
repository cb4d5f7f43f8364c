package cost

import (
	"math"
	"math/rand/v2"
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

// The overhead is that of simulated failures.
func TestOverhead(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	f := Failures{MTBF: 100_000, Save: 20, Write: 900, Restart: 300}
	interval := f.Interval()
	require.InDelta(t, 2000, interval, 1)
	const rounds = 200_000
	lost, steps := 0.0, 0.0
	for range rounds {
		at := r.ExpFloat64() * f.MTBF // of the steps' time, until a failure
		since := math.Mod(at, interval)
		if since < f.Write {
			since += interval // the checkpoint before is the last complete one
		}
		lost += since + f.Restart
		steps += at
	}
	require.InEpsilon(t, lost/steps+f.Save/interval, f.Overhead(interval), 0.02)
	f.Write = 5000
	require.Equal(t, 5000.0, f.Interval(), "checkpoints follow each other")
}
