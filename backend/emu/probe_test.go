package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestProbeNamesTheKernelThatOpenPicks(t *testing.T) {
	list := probe()
	require.Len(t, list, 3)
	require.Contains(t, list[0].Detail, gemmKernels()[0].label())
	require.Equal(t, gemmKernels()[0] != &goKernel, list[0].OK)
	require.Equal(t, amxAvailable() == nil, list[1].OK)
	require.True(t, list[2].OK)
	devices, err := open("", backend.Options{Threads: 1})
	require.NoError(t, err)
	require.NoError(t, devices[0].Close())
	require.Contains(t, devices[0].Spec().Device, gemmKernels()[0].label())
	require.Equal(t, gemmKernels()[0].name, devices[0].Spec().Arithmetic)
}

// Spec.Arithmetic does not depend on the measured choice between FMA and pairs, whose bits
// are equal. Spec.Device shows the choice.
func TestPairsHaveTheSameArithmetic(t *testing.T) {
	kernel := gemmKernels()[0]
	defer func(p *pairKernel) { kernel.pairs = p }(kernel.pairs)
	spec := func(p *pairKernel) backend.Spec {
		kernel.pairs = p
		devices, err := open("", backend.Options{Threads: 1})
		require.NoError(t, err)
		require.NoError(t, devices[0].Close())
		return devices[0].Spec()
	}
	alone, pairs := spec(nil), spec(&goPairs)
	require.Equal(t, alone.Arithmetic, pairs.Arithmetic)
	require.NotContains(t, alone.Device, goPairs.name)
	require.Contains(t, pairs.Device, goPairs.name)
}
