package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestMeter(t *testing.T) {
	for _, name := range []string{"emu", "emu:amx", "emu:h100"} {
		for _, threads := range []int{1, 3} {
			dev, err := backend.Open(name, backend.Options{Threads: threads})
			require.NoError(t, err)
			m := dev.(backend.Metered).Meter().(*meter)
			require.Positive(t, m.FLOPs())
			require.Nil(t, m.from, "FLOPs allocates no memory for the copy")
			for worker, x := range m.operands {
				// The counted work was done: the last operands' sums are of 128 products of
				// ones. A worker without a task still has its ones.
				last := x[m.peak.Words-1]
				require.Contains(t, []float32{1, 128}, last)
				if worker == 0 {
					require.Equal(t, float32(128), last, "worker 0 ran a task")
				}
			}
			require.Positive(t, m.Bytes())
			require.Equal(t, m.from, m.to)
			require.EqualValues(t, 1, m.to[copyBytes-4096])
			require.NoError(t, dev.Close())
		}
	}
}
