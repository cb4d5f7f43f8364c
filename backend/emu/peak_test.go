package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/gemm"
)

func TestMeter(t *testing.T) {
	for _, threads := range []int{1, 3} {
		dev, err := backend.Open("emu", backend.Options{Threads: threads})
		require.NoError(t, err)
		d := dev.(*device)
		m := dev.(backend.Metered).Meter().(*meter)
		require.Positive(t, m.FLOPs())
		require.Nil(t, m.from, "FLOPs allocates no memory for the copy")
		k := gemm.Kernels()[0]
		for _, x := range m.operands {
			// Sums of peakDepth ones: the counted work was done. A worker without a
			// task still has its ones.
			c := x[peakDepth*(k.MR+k.NR):]
			require.Contains(t, []float32{1, peakDepth}, c[0])
			require.Equal(t, c[0], c[k.MR*k.NR-1])
		}
		require.Equal(t, float32(peakDepth), m.operands[0][peakDepth*(k.MR+k.NR)], "worker 0 ran a task")
		require.Positive(t, m.Bytes())
		require.Equal(t, m.from, m.to)
		require.EqualValues(t, 1, m.to[copyBytes-4096])
		require.NoError(t, d.Close())
	}
}
