package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/runs"
)

func run(losses ...float64) *runs.Run {
	s := &runs.Series{}
	for i, v := range losses {
		s.Steps, s.Values = append(s.Steps, float64(20+i)), append(s.Values, v)
	}
	return &runs.Run{Metrics: map[string]*runs.Series{"loss": s, "update.largest": s}}
}

func TestDiverged(t *testing.T) {
	require.False(t, diverged(run(9, 5, 3)), "step 20 may be bad")
	require.True(t, diverged(run(3, 6.1, 3)))
	require.False(t, diverged(run(3, 6, 3)))
	require.True(t, diverged(run(3, math.NaN(), 3)))
}

func TestLargest(t *testing.T) {
	values := largest([]*runs.Run{run(1, 3, 2), run(1, math.NaN(), 9)}, "largest")
	require.Equal(t, 3.0, values[0])
	require.True(t, math.IsNaN(values[1]))
}
