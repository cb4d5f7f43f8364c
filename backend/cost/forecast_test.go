package cost

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

func TestForecast(t *testing.T) {
	r := record()
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	m := gpu(8, 2)
	for name, x := range map[string]float64{"mtbf": 1000, "restart": 60, "snapshot_rate": 4, "checkpoint_rate": 2, "watts": 500, "host_power": 1.5} {
		m.Numbers[name] = Number{Value: x, Published: "a test"}
	}
	rest := m.Numbers["bf16_share"]
	rest.Low, rest.High = 0.5, 1
	m.Numbers["bf16_share"] = rest
	training := Training{Step: r.step(t), TokensPerStep: 1600, FLOPsPerToken: 1e6, Snapshot: 20e9, Checkpoint: 40e9, Tokens: 1e15, Price: 3, Grid: 200}
	f, err := m.Forecast(training)
	require.NoError(t, err)
	step := 2e9 / 100e12
	require.Equal(t, 16, f.Devices)
	require.InDelta(t, step, f.StepSeconds, 1e-15)
	require.InDelta(t, 1600/step, f.TokensPerS, 1)
	require.InDelta(t, 1600/step*1e6/(16*100e12), f.MFU, 1e-9)
	require.InDelta(t, 2*step, f.Band[1], 1e-15)
	require.Equal(t, []Effect{{"bf16_share", 1, 2}}, f.Effects)

	failures := Failures{MTBF: 1000 * 3600 / 16, Save: 5, Write: 20, Restart: 60}
	require.Equal(t, failures.Interval(), f.Interval)
	require.Equal(t, 20.0, f.Write)
	require.Equal(t, 1-1/failures.Slowdown(f.Interval), f.Lost)
	hours := 1e15 / f.TokensPerS / 3600 * failures.Slowdown(f.Interval)
	require.InEpsilon(t, hours/24, f.Days, 1e-12)
	require.InEpsilon(t, hours*16*3, f.Cost, 1e-12)
	require.InEpsilon(t, hours*16*0.75, f.KWh, 1e-12)
	require.InEpsilon(t, f.KWh*0.2, f.CO2, 1e-12)

	names := map[string]Origin{}
	for _, o := range f.Assumptions {
		names[o.Name] = o
	}
	require.Equal(t, Origin{"watts", "power of a device, W", 500, 0, 0, "published", "a test"}, names["watts"])
	require.Equal(t, "assumed", names["bf16_peak"].Kind)
	require.NotContains(t, names, "link", "the step has no collective")

	// Without a range of the numbers of failures, the band is that of the step.
	require.InEpsilon(t, f.Days, f.DaysBand[0], 1e-9)
	require.InEpsilon(t, 2*f.Days, f.DaysBand[1], 1e-9)
	m.Numbers["restart"] = Number{Value: 60, Low: 6, High: 60000, Assumed: "a test"}
	f, err = m.Forecast(training)
	require.NoError(t, err)
	failures.Restart = 60000
	slower := math.Log(failures.Slowdown(f.Interval) * (1 - f.Lost))
	require.InEpsilon(t, f.Days*math.Exp(math.Hypot(math.Ln2, slower)), f.DaysBand[1], 1e-9)
	require.Less(t, f.DaysBand[0], f.Days)

	delete(m.Numbers, "watts")
	training.Tokens = 0
	f, err = m.Forecast(training)
	require.NoError(t, err)
	require.Zero(t, f.Days)
	m.Numbers["mtbf"] = Number{Value: 0.01, Assumed: "a test"}
	_, err = m.Forecast(training)
	require.ErrorContains(t, err, "hardly progresses")
	delete(m.Numbers, "mtbf")
	_, err = m.Forecast(training)
	require.ErrorIs(t, err, ErrNoData)
}
