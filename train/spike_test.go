package train

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// noise returns n losses with mean 2 and standard deviation 0.1.
func noise(n int) []float64 {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float64, n)
	for i := range x {
		x[i] = 2 + 0.1*r.NormFloat64()
	}
	return x
}

type found struct{ step, begin int }

// find returns the spikes that the detector finds in the losses of steps 1, 2, ….
func find(losses []float64, warmup int) (list []found) {
	var s spikes
	for i, loss := range losses {
		if spike := s.observe(i+1, loss, warmup); spike.Begin > 0 {
			list = append(list, found{i + 1, spike.Begin})
		}
	}
	return list
}

// with sets the losses of some steps.
func with(losses []float64, value float64, steps ...int) []float64 {
	for _, s := range steps {
		losses[s-1] = value
	}
	return losses
}

func TestSpikes(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for name, c := range map[string]struct {
		losses []float64
		warmup int
		want   []found
	}{
		"noise": {noise(2000), 0, nil},
		"falling loss": {func() []float64 {
			x := noise(400)
			for i := range x {
				x[i] += 3 * math.Exp(-float64(i)/50)
			}
			return x
		}(), 0, nil},
		"one hard batch":            {with(noise(200), 4, 100), 0, nil},
		"twice within ten steps":    {with(noise(200), 4, 100, 109), 0, []found{{109, 100}}},
		"twice within eleven steps": {with(noise(200), 4, 100, 110), 0, nil},
		"a long spike":              {with(noise(200), 3, 100, 101, 102, 105, 110, 119), 0, []found{{101, 100}}},
		"two spikes":                {with(noise(200), 4, 100, 101, 150, 151), 0, []found{{101, 100}, {151, 150}}},
		"three standard deviations": {with(noise(200), 2.3, 100, 101), 0, nil},
		"four standard deviations":  {with(noise(200), 2.45, 100, 101), 0, []found{{101, 100}}},
		"low losses":                {with(noise(200), 0, 100, 101), 0, nil},
		"too few losses before":     {with(noise(200), 4, 63, 64), 0, nil},
		"just enough losses before": {with(noise(200), 4, 65, 66), 0, []found{{66, 65}}},
		"during warm-up":            {with(noise(200), 4, 99, 100), 100, nil},
		"after warm-up":             {with(noise(200), 4, 101, 102), 100, []found{{102, 101}}},
		"not finite":                {with(noise(200), nan, 100), 0, []found{{100, 100}}},
		"infinite during warm-up":   {with(noise(200), inf, 3), 50, []found{{3, 3}}},
		"several non-finite losses": {with(noise(200), nan, 100, 101, 102, 103), 0, []found{{100, 100}}},
		"high, then NaN":            {with(with(noise(200), 4, 100), nan, 105), 0, []found{{105, 100}}},
		"a permanent rise is one spike": {with(noise(400), 4, func() (s []int) {
			for i := range 300 {
				s = append(s, 101+i)
			}
			return s
		}()...), 0, []found{{102, 101}}},
	} {
		require.Equal(t, c.want, find(c.losses, c.warmup), name)
	}
}

// A spike reports mean and deviation of the losses before the step that completes it.
func TestSpikeStatistics(t *testing.T) {
	var s spikes
	losses := with(noise(200), 4, 150, 151)
	for i, loss := range losses[:150] {
		require.Zero(t, s.observe(i+1, loss, 0))
	}
	spike := s.observe(151, losses[150], 0)
	mean, sum := 0.0, 0.0
	window := losses[150-spikeWindow : 150]
	for _, x := range window {
		mean += x / spikeWindow
	}
	for _, x := range window {
		sum += (x - mean) * (x - mean)
	}
	require.InDelta(t, mean, spike.Mean, 1e-12)
	require.InDelta(t, math.Sqrt(sum/spikeWindow), spike.Std, 1e-12)
}

// A detector that is saved and loaded before every step finds the same spikes.
func TestSpikesSurviveJSON(t *testing.T) {
	losses := with(with(noise(300), 4, 90, 95, 200, 202), math.NaN(), 20, 250)
	want := find(losses, 10)
	require.Len(t, want, 4)
	var s spikes
	var got []found
	for i, loss := range losses {
		text, err := json.Marshal(s)
		require.NoError(t, err)
		s = spikes{}
		require.NoError(t, json.Unmarshal(text, &s))
		if spike := s.observe(i+1, loss, 10); spike.Begin > 0 {
			got = append(got, found{i + 1, spike.Begin})
		}
	}
	require.Equal(t, want, got)
}

// Rewind skips the data read since the checkpoint and counts the rewinds.
func TestRewind(t *testing.T) {
	c := small(t, "fp8-smooth")
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 2)
	state := snapshot(t, tr)
	for n := range MaxRewinds {
		steps(t, tr, 3)
		position := tr.ranks[0].device.loader.Position()
		require.NoError(t, tr.Rewind(t.Context(), state))
		require.Equal(t, 2, tr.StepsDone())
		require.Equal(t, position, tr.ranks[0].device.loader.Position())
		s, err := ReadState(snapshot(t, tr))
		require.NoError(t, err)
		require.Equal(t, n+1, s.Rewinds)
	}
	require.ErrorContains(t, tr.Rewind(t.Context(), state), "spikes again after 3 rewinds")
	require.NoError(t, tr.Restore(t.Context(), state))
	require.Zero(t, tr.rewinds)
}

// The rule reports spikes in losses that have none. The rates are the floor under the spikes of a
// run: two recipes that differ by less cannot be told apart.
func TestFalseSpikes(t *testing.T) {
	const steps = 400_000
	for _, c := range []struct {
		name     string
		low, top float64 // spikes in 10,000 steps
		draw     func(*rand.Rand, float64) float64
	}{
		{"normal", 0.02, 0.3, func(r *rand.Rand, _ float64) float64 { return r.NormFloat64() }},
		{"Student's t, 4 degrees of freedom", 1, 4, func(r *rand.Rand, _ float64) float64 {
			chi := 0.0
			for range 4 {
				x := r.NormFloat64()
				chi += x * x
			}
			return r.NormFloat64() / math.Sqrt(chi/4)
		}},
		{"normal with autocorrelation 0.9", 2.5, 7, func(r *rand.Rand, before float64) float64 {
			return 0.9*before + math.Sqrt(1-0.9*0.9)*r.NormFloat64()
		}},
	} {
		r, x := rand.New(rand.NewPCG(3, 4)), 0.0
		losses := make([]float64, steps)
		for i := range losses {
			x = c.draw(r, x)
			losses[i] = 2 + 0.1*x
		}
		rate := float64(len(find(losses, 0))) / steps * 10_000
		t.Logf("%s: %.2f spikes in 10,000 steps", c.name, rate)
		require.True(t, c.low < rate && rate < c.top, "%s: %v", c.name, rate)
	}
}
