package arith

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

func TestLookup(t *testing.T) {
	for _, name := range Names() {
		m, err := Lookup(name)
		require.NoError(t, err)
		require.Equal(t, name, m.Name)
		require.NotEmpty(t, m.Source)
	}
	m, err := Lookup("gaudi3,e4m3=240")
	require.NoError(t, err)
	require.Equal(t, fp8.E4M3IEEE, m.E4M3)
	for text, want := range map[string]string{
		"a100":              `unknown device model "a100"; did you mean h100? (known: h100, ada, b200, gaudi2, gaudi3)`,
		"mi300":             `unknown device model "mi300" (known: h100`,
		"":                  `unknown device model ""`,
		"h100,slow":         `device model h100 has no option "slow" (it has fast, promote=N)`,
		"h100,promote=100":  "must be a multiple of 32",
		"h100,promote=-32":  "must be a multiple",
		"h100,promote=4096": "up to 1024",
		"gaudi2,fast":       `device model gaudi2 has no option "fast" (it has none)`,
		"gaudi3,e4m3=480":   "it has e4m3=240, e4m3=448",
	} {
		_, err := Lookup(text)
		require.ErrorContains(t, err, want, text)
	}
}

// The matrix unit may multiply pairs of formats that the vendor's GEMM does not take.
func TestPairs(t *testing.T) {
	e5m2 := [2]fp8.DType{fp8.E5M2, fp8.E5M2}
	for name, taken := range map[string]bool{
		"h100": false, "ada": false, "b200": false, "gaudi2": true, "gaudi3": true, "gaudi3,e4m3=240": true,
	} {
		m, err := Lookup(name)
		require.NoError(t, err)
		require.Contains(t, m.Pairs, e5m2, name)
		if taken {
			require.Equal(t, anyScales(m.Pairs), m.GEMMs, name)
		} else {
			require.Equal(t, anyScales(m.Pairs), append(m.GEMMs[:3:3], anyScales([][2]fp8.DType{e5m2})...), name)
		}
		require.NotEmpty(t, m.Library)
		for _, pair := range m.Library {
			require.True(t, pair[0].Scale != fp8.Invalid && fp8.Multiplies(m.GEMMs, pair[0], pair[1]), "%s: %v", name, pair)
		}
		for _, pair := range m.Pairs {
			for _, d := range pair {
				require.Contains(t, []fp8.DType{m.E4M3, fp8.E5M2}, d, name)
			}
		}
	}
}

func FuzzLookup(f *testing.F) {
	for _, s := range []string{"h100", "h100,fast", "ada,promote=64", "gaudi3,e4m3=240", "x,,=", "h100,promote="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Lookup(text)
		if err == nil && (m.Sum.Group < 1 || len(m.Pairs) == 0 || m.Promote%m.Sum.Group != 0) {
			t.Fatalf("%q gives %+v", text, m)
		}
	})
}
