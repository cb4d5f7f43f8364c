package backend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestWaitLimit(t *testing.T) {
	const variable = "OCTET_TEST_TIMEOUT"
	for text, want := range map[string]time.Duration{"": 10 * time.Minute, "90s": 90 * time.Second} {
		t.Setenv(variable, text)
		got, err := backend.WaitLimit(variable)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"10", "-1m", "0s", "soon"} {
		t.Setenv(variable, text)
		_, err := backend.WaitLimit(variable)
		require.EqualError(t, err, fmt.Sprintf("OCTET_TEST_TIMEOUT is %q: a duration such as 10m or 1h30m is needed", text))
	}
}
