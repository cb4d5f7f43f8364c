package world

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeout(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 10 * time.Minute, "90s": 90 * time.Second} {
		t.Setenv(TimeoutVariable, text)
		got, err := Timeout()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"10", "-1m", "0s", "soon"} {
		t.Setenv(TimeoutVariable, text)
		_, err := Timeout()
		require.EqualError(t, err, fmt.Sprintf("OCTET_TIMEOUT is %q: a duration such as 10m or 1h30m is needed", text))
	}
}

func TestTimingOf(t *testing.T) {
	require.Equal(t, timing{beat: time.Second, silent: 10, stall: 600}, timingOf(10*time.Minute))
	require.Equal(t, timing{beat: 100 * time.Millisecond, silent: 100, stall: 10}, timingOf(time.Second))
	require.Equal(t, timing{beat: time.Millisecond, silent: 10_000, stall: 1}, timingOf(time.Nanosecond))
}
