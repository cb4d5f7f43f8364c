package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/gemm"
)

func TestProbeNamesTheKernelThatOpenPicks(t *testing.T) {
	list := probe()
	require.Len(t, list, 3)
	require.Contains(t, list[0].Detail, gemm.Kernels()[0].Label())
	require.Equal(t, gemm.Kernels()[0] != &gemm.Go, list[0].OK)
	require.Equal(t, gemm.AMXAvailable() == nil, list[1].OK)
	require.True(t, list[2].OK)
	dev, err := Open("", backend.Options{Threads: 1})
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	require.Contains(t, dev.Spec().Device, gemm.Kernels()[0].Label())
	require.Equal(t, gemm.Kernels()[0].Name, dev.Spec().Arithmetic)
}

// Spec.Arithmetic does not depend on the measured choice between FMA and pairs, whose bits
// are equal. Spec.Device shows the choice.
func TestPairsHaveTheSameArithmetic(t *testing.T) {
	kernel := gemm.Kernels()[0]
	defer func(p *gemm.PairKernel) { kernel.Pairs = p }(kernel.Pairs)
	spec := func(p *gemm.PairKernel) backend.Spec {
		kernel.Pairs = p
		dev, err := Open("", backend.Options{Threads: 1})
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		return dev.Spec()
	}
	alone, pairs := spec(nil), spec(&gemm.GoPairs)
	require.Equal(t, alone.Arithmetic, pairs.Arithmetic)
	require.NotContains(t, alone.Device, gemm.GoPairs.Name)
	require.Contains(t, pairs.Device, gemm.GoPairs.Name)
}
