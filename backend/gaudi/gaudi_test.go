package gaudi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestSpec(t *testing.T) {
	mixed := [2]fp8.DType{fp8.E4M3, fp8.E5M2}
	for device, want := range map[string]struct {
		e4m3  fp8.DType
		mixed bool
	}{
		"": {fp8.E4M3IEEE, false}, "0": {fp8.E4M3IEEE, false},
		"gaudi2": {fp8.E4M3IEEE, false}, "gaudi3": {fp8.E4M3, true},
	} {
		s, err := spec(device)
		require.NoError(t, err)
		require.Equal(t, want.e4m3, s.E4M3, device)
		for _, same := range []fp8.DType{s.E4M3, fp8.E5M2} {
			require.Contains(t, s.Pairs, [2]fp8.DType{same, same}, device)
		}
		for _, pair := range s.Pairs {
			require.True(t, want.mixed || pair[0] == pair[1], "%s: %v", device, pair)
		}
		if want.mixed {
			require.Contains(t, s.Pairs, mixed)
		}
	}
	for _, device := range []string{"gaudi", "gaudi4", "-1"} {
		_, err := spec(device)
		require.ErrorContains(t, err, "known: gaudi2, gaudi3", device)
		_, err = open(device, backend.Options{})
		require.NotErrorIs(t, err, backend.ErrNoDevice, device)
	}
}

// On any machine a build with the tag says something.
func TestProbeAlwaysAnswers(t *testing.T) {
	list := probe()
	if !errors.Is(available(""), backend.ErrNotBuilt) { // which says it all
		require.NotEmpty(t, list)
	}
	for _, f := range list {
		require.NotEmpty(t, f.What)
		require.NotEmpty(t, f.Detail)
		require.False(t, f.OK && f.Fix != "", "%+v", f)
	}
}
