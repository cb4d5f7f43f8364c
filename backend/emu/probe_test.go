package emu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProbeNamesTheKernelThatOpenPicks(t *testing.T) {
	list := probe()
	require.Len(t, list, 2)
	require.Contains(t, list[0].Detail, gemmKernels()[0].name)
	require.Equal(t, gemmKernels()[0] != &goKernel, list[0].OK)
	require.True(t, list[1].OK)
}
