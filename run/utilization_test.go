package run

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/internal/writers"
)

// The share of an interval refers to the larger of the peaks at its ends. There is none if
// the steps were faster than both, or if one is unknown: it is never above 1.
func TestUtilization(t *testing.T) {
	at, peak := time.Unix(1000, 0), 100.0
	u := utilization{now: func() time.Time { return at }}
	u.measure = func() float64 {
		at = at.Add(6 * time.Millisecond)
		return peak
	}
	u.begin()
	interval := func(after, flops, seconds float64) *float64 {
		require.False(t, u.ends(false))
		at = at.Add(3*time.Second - time.Nanosecond)
		require.False(t, u.ends(false), "500 times as long as the measurement")
		at = at.Add(time.Nanosecond)
		require.True(t, u.ends(false))
		peak = after
		u.add(flops/2, seconds/2)
		u.add(flops/2, seconds/2)
		return u.end()
	}
	require.Equal(t, new(0.4), interval(200, 160, 2), "the clock rose")
	require.Equal(t, 80.0, u.rate)
	require.Equal(t, new(0.5), interval(50, 300, 3), "and fell")
	require.Equal(t, new(0.9), interval(50, 45, 1))
	require.False(t, u.tooFast())
	require.Nil(t, interval(50, 51, 1))
	require.Nil(t, u.latest)
	require.True(t, u.tooFast())
	require.False(t, u.tooFast(), "reported once")
	require.Nil(t, interval(50, 51, 1))
	require.False(t, u.tooFast())
	require.Nil(t, interval(0, 10, 1))
	require.Nil(t, interval(100, 10, 1))
	require.Equal(t, new(0.1), interval(100, 10, 1))
	require.False(t, u.tooFast())
	require.True(t, u.ends(true), "the run's last step")

	peak = 0
	u.begin()
	require.False(t, u.ends(true), "no meter")
}

// A run measures its devices between steps. mfu is on the lines that end an interval, here
// every line, and never above 1; run.log reports steps that were faster.
func TestUtilizationOfARun(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps = 4
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.NoError(t, err)
	peaks := []float64{1, 1e18, 1e18, 1, 1}
	r.utilization.now = func() time.Time { return time.Unix(1000, 0) } // measuring takes no time, so every step ends an interval
	r.utilization.measure = func() float64 {
		require.False(t, r.Trainer.UnderWay())
		peak := peaks[0]
		peaks = peaks[1:]
		return peak
	}
	r.utilization.begin()
	shares := map[int]*float64{}
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		shares[p.Step] = p.MFU
		if share, rate := r.MFU(); share != nil {
			require.Equal(t, rate/1e18, *share)
		}
	}))
	require.NoError(t, r.Close())
	require.Empty(t, peaks)
	text, err := os.ReadFile(r.folder.path(timingFile))
	require.NoError(t, err)
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var timing writers.Timing
		require.NoError(t, json.Unmarshal(line, &timing))
		if i == 3 { // between two peaks of 1
			require.Nil(t, timing.MFU)
			require.Nil(t, shares[4])
			continue
		}
		require.Less(t, float64(*timing.MFU), 1e-3)
		require.Equal(t, *shares[i+1], float64(*timing.MFU))
	}
	log, err := os.ReadFile(r.folder.path(logFile))
	require.NoError(t, err)
	require.Contains(t, string(log), "mfu left out")
}
