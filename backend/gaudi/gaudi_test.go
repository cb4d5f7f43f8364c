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

func TestDeviceNames(t *testing.T) {
	for device, want := range map[string]wish{
		"":                {"", -1, 1},
		"3":               {"", 3, 1},
		"gaudi3":          {"gaudi3", -1, 1},
		"unit=4":          {"", -1, 4},
		"0,unit=2":        {"", 0, 2},
		"unit=12,gaudi2":  {"gaudi2", -1, 12},
		"gaudi3,7,unit=1": {"gaudi3", 7, 1},
	} {
		got, err := parse(device)
		require.NoError(t, err)
		require.Equal(t, want, got, device)
	}
	for device, want := range map[string]string{
		"unit=0":   `"unit=0": a unit has a number of blocks, 1 or more`,
		"unit=all": `"unit=all": a unit has`,
		"0,unit=":  `"unit=": a unit has`,
		"0,":       `unknown device ""`,
		"units=2":  `unknown device "units=2"`,
		"70000":    `unknown device "70000"`,
	} {
		_, err := spec(device)
		require.ErrorContains(t, err, want, device)
	}
	s, err := spec("gaudi2,unit=3")
	require.NoError(t, err)
	require.Equal(t, 3, s.Unit)
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
