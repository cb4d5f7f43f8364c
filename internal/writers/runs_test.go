package writers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRuns(t *testing.T) {
	r := Runs{Ended: 7, Running: 2, All: 20, Steps: 1750, AllSteps: 5000}
	require.Equal(t, "7 of 20 runs  2 running  step 1,750 of 5,000  ETA -:--", r.String())
	r.ETA = new(200 * time.Second)
	require.Equal(t, "7 of 20 runs  2 running  ETA 3:20", r.fit(40))
	require.Equal(t, "7 of 20 runs  ETA 3:20", r.fit(30))
	require.False(t, r.done())
	r.Ended = 20
	require.True(t, r.done())
}
