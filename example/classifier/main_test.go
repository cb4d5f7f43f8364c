package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The loss falls from ln(classes) under every recipe, and a second run has the same bits.
func TestFit(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-delayed", "fp8-smooth"} {
		losses, weights, err := fit(t.Context(), name)
		require.NoError(t, err, name)
		require.InDelta(t, math.Log(classes), losses[0], 0.3, name)
		require.Less(t, losses[steps-1], losses[0]/2, name)
		again, same, err := fit(t.Context(), name)
		require.NoError(t, err, name)
		require.Equal(t, losses, again, name)
		require.Equal(t, weights, same, name)
	}
}
