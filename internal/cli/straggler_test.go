package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/run"
)

func TestStragglerText(t *testing.T) {
	s := run.Straggler{Rank: 3, Host: "node2", Own: 412 * time.Millisecond, Median: 301 * time.Millisecond}
	require.Equal(t, "step 500: rank 3 on node2 is slow: its own time is 0.412 s a step, the median of all ranks 0.301 s; all ranks wait for it, so check its device and its machine", stragglerText(500, s))
	s.Host = ""
	require.Contains(t, stragglerText(500, s), "step 500: rank 3 is slow: ")
}
