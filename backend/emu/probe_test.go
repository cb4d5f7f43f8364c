package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestProbeNamesTheKernelThatOpenPicks(t *testing.T) {
	list := probe()
	require.Len(t, list, 3)
	require.Contains(t, list[0].Detail, gemmKernels()[0].name)
	require.Equal(t, gemmKernels()[0] != &goKernel, list[0].OK)
	require.Equal(t, amxAvailable() == nil, list[1].OK)
	require.True(t, list[2].OK)
	devices, err := open("", backend.Options{Threads: 1})
	require.NoError(t, err)
	require.NoError(t, devices[0].Close())
	require.Equal(t, gemmKernels()[0].name, devices[0].Spec().Arithmetic)
}
