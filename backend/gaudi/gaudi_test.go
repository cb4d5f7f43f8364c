package gaudi

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestSpec(t *testing.T) {
	same := func(e4m3 fp8.DType) [][2]fp8.DType { return [][2]fp8.DType{{e4m3, e4m3}, {fp8.E5M2, fp8.E5M2}} }
	mixed := func(e4m3 fp8.DType) [][2]fp8.DType {
		return append(same(e4m3), [2]fp8.DType{e4m3, fp8.E5M2}, [2]fp8.DType{fp8.E5M2, e4m3})
	}
	for device, want := range map[string]struct {
		e4m3  fp8.DType
		pairs [][2]fp8.DType
	}{
		"": {fp8.E4M3IEEE, same(fp8.E4M3IEEE)}, "0": {fp8.E4M3IEEE, same(fp8.E4M3IEEE)},
		"gaudi2": {fp8.E4M3IEEE, same(fp8.E4M3IEEE)}, "gaudi3": {fp8.E4M3, same(fp8.E4M3)},
		"pairs=mixed": {fp8.E4M3, mixed(fp8.E4M3)}, "gaudi3,pairs=mixed": {fp8.E4M3, mixed(fp8.E4M3)},
		"0,e4m3=240": {fp8.E4M3IEEE, same(fp8.E4M3IEEE)}, "gaudi3,e4m3=240,pairs=mixed": {fp8.E4M3IEEE, mixed(fp8.E4M3IEEE)},
	} {
		s, err := spec(device)
		require.NoError(t, err)
		require.Equal(t, want.e4m3, s.E4M3, device)
		require.Equal(t, strings.Contains(device, "e4m3=240"), own(s).clip, device)
		require.ElementsMatch(t, fp8.PerTensor(want.pairs...), s.Pairs, device)
	}
	for _, device := range []string{"gaudi", "gaudi4", "-1"} {
		_, err := spec(device)
		require.ErrorContains(t, err, "known: gaudi2, gaudi3", device)
		_, err = open(device, backend.Options{})
		require.NotErrorIs(t, err, backend.ErrNoDevice, device)
	}
}

func TestDeviceNames(t *testing.T) {
	for device, want := range map[string]deviceOptions{
		"":                {module: -1, unit: 1},
		"3":               {module: 3, unit: 1},
		"gaudi3":          {model: "gaudi3", module: -1, unit: 1},
		"unit=4":          {module: -1, unit: 4},
		"0,unit=2":        {module: 0, unit: 2},
		"unit=12,gaudi2":  {model: "gaudi2", module: -1, unit: 12},
		"gaudi3,7,unit=1": {model: "gaudi3", module: 7, unit: 1},
		"0,pairs=mixed":   {module: 0, unit: 1, mixed: true},
	} {
		got, err := parse(device)
		require.NoError(t, err)
		require.Equal(t, want, got, device)
	}
	for device, want := range map[string]string{
		"unit=0":             `"unit=0": want a number of blocks of 1 or more`,
		"unit=all":           `"unit=all": want a number`,
		"0,unit=":            `"unit=": want a number`,
		"0,":                 `unknown device ""`,
		"units=2":            `unknown device "units=2"`,
		"70000":              `unknown device "70000"`,
		"pairs=all":          `unknown device "pairs=all"`,
		"e4m3=448":           `unknown device "e4m3=448"`,
		"gaudi2,e4m3=240":    "backend gaudi: e4m3=240 is for Gaudi 3: Gaudi 2's E4M3 always ends at 240",
		"gaudi2,pairs=mixed": "backend gaudi: pairs=mixed is for Gaudi 3: Gaudi 2's matrix engine multiplies only operands of the same format",
	} {
		_, err := spec(device)
		require.ErrorContains(t, err, want, device)
	}
	s, err := spec("gaudi2,unit=3")
	require.NoError(t, err)
	require.Equal(t, 3, own(s).unit)
}

// A build with the tag returns findings on any machine.
func TestProbeAlwaysAnswers(t *testing.T) {
	list := probe()
	if !errors.Is(available(""), backend.ErrNotBuilt) { // available already says why
		require.NotEmpty(t, list)
	}
	for _, f := range list {
		require.NotEmpty(t, f.What)
		require.NotEmpty(t, f.Detail)
		require.False(t, f.OK && f.Fix != "", "%+v", f)
	}
}
