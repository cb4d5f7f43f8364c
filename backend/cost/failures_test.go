package cost

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The interval is that of the least time.
func TestInterval(t *testing.T) {
	f := Failures{MTBF: 36000, Save: 30, Restart: 600}
	best := f.Interval()
	require.InDelta(t, math.Sqrt(2*30*36000), best, 1e-9)
	for _, factor := range []float64{0.5, 0.9, 1.1, 2} {
		require.Less(t, f.Slowdown(best), f.Slowdown(best*factor))
	}
	// 16,384 devices of which one fails in 50,700 hours.
	f.MTBF = 50700.0 / 16384 * 3600
	lost := f.Save/f.Interval() + (f.Interval()/2+f.Restart)/f.MTBF
	require.InDelta(t, 0.127, lost, 0.001)
	require.InEpsilon(t, 1+lost, f.Slowdown(f.Interval()), 0.01, "the first order")
}

// Daly's estimate is the exact optimum of his model to a few percent, where Young's is not. Slowdown
// is that model if checkpoints are complete at once.
func TestIntervalOfSlowSaves(t *testing.T) {
	f := Failures{MTBF: 1000, Save: 300, Restart: 50}
	best := 1.0
	for tau := 1.0; tau < 3000; tau++ {
		require.InEpsilon(t, f.MTBF*math.Exp(f.Restart/f.MTBF)*(math.Exp((tau+f.Save)/f.MTBF)-1)/tau, f.Slowdown(tau), 1e-12)
		if f.Slowdown(tau) < f.Slowdown(best) {
			best = tau
		}
	}
	require.InEpsilon(t, best, f.Interval(), 0.02)
	require.Greater(t, math.Abs(math.Sqrt(2*f.Save*f.MTBF)-best)/best, 0.3)
	f.Save = 5000
	require.Equal(t, f.MTBF, f.Interval())
}

// simulate returns the time of a run over that of its steps, and draws its failures.
func simulate(r *rand.Rand, f Failures, interval float64, intervals int) float64 {
	now := 0.0
	failure := r.ExpFloat64() * f.MTBF
	begin := func() { // a restart, which failures repeat
		for now = failure + f.Restart; ; now = failure + f.Restart {
			if failure += r.ExpFloat64() * f.MTBF; failure > now {
				return
			}
		}
	}
	complete, done, writing := 0, 0, math.Inf(1) // intervals that are saved and run; when the write ends
	for complete < intervals {
		end := now + interval + f.Save
		if writing <= end && writing <= failure {
			complete = done
		}
		if failure < end {
			done, writing = complete, math.Inf(1)
			begin()
			continue
		}
		now = end
		done++
		writing = now + f.Write
	}
	return now / (float64(intervals) * interval)
}

func TestSlowdownIsThatOfSimulatedRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, f := range []Failures{
		{MTBF: 100_000, Save: 20, Write: 900, Restart: 300},
		{MTBF: 10_000, Save: 30, Write: 2400, Restart: 600},
		{MTBF: 4000, Save: 300, Write: 0, Restart: 1000},
		{MTBF: 2000, Save: 100, Write: 1500, Restart: 500},
	} {
		require.InEpsilon(t, simulate(r, f, f.Interval(), 100_000), f.Slowdown(f.Interval()), 0.02, f)
	}
	free := Failures{MTBF: 2000, Restart: 100}
	require.InDelta(t, math.Exp(0.05), free.Slowdown(free.Interval()), 1e-12)
	f := Failures{MTBF: 2000, Save: 1, Write: 5000}
	require.Equal(t, 5000.0, f.Interval(), "checkpoints follow each other")
}

func TestNoRunWithoutProgress(t *testing.T) {
	f := Failures{MTBF: 2000, Save: 100, Write: 1500, Restart: 500}
	x, err := f.slowdown(1500)
	require.NoError(t, err)
	require.InDelta(t, 5, x, 1)
	for _, mtbf := range []float64{1000, 1, 1e-3} {
		f.MTBF = mtbf
		_, err = f.slowdown(1500)
		require.ErrorContains(t, err, "hardly progresses")
		require.ErrorContains(t, err, "1.5e+03 s of writing")
	}
}
