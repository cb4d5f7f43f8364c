//go:build gaudi && cgo && linux

package libsynapse

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

func TestProbeCountsByModel(t *testing.T) {
	path := standin.Build(t, "libsynapse")
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_GAUDI2", "1")
	t.Setenv("STANDIN_GAUDI3", "7")
	for range 2 { // SynapseAI is initialized once
		s, err := Probe()
		require.NoError(t, err)
		require.Equal(t, Synapse{Path: path, Version: "1.24.0-standin", Devices: 8, Gaudi2: 1, Gaudi3: 7}, s)
	}
}

func TestProbeWithoutDevices(t *testing.T) {
	path := standin.Build(t, "libsynapse")
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_GAUDI2", "0")
	s, err := Probe()
	require.NoError(t, err)
	require.Equal(t, Synapse{Path: path, Version: "1.24.0-standin"}, s)
}

// A failed initialization may succeed later.
func TestFailedStart(t *testing.T) {
	path := standin.Build(t, "libsynapse")
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_SYNAPSE", "26")
	s, err := Probe()
	require.EqualError(t, err, "synInitialize returned 26 (synFail)")
	require.Equal(t, Synapse{Path: path}, s)

	t.Setenv("STANDIN_SYNAPSE", "0")
	s, err = Probe()
	require.NoError(t, err)
	require.Equal(t, 1, s.Devices)
}

func TestMissingLibraryIsAnError(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	t.Setenv("OCTET_LIBSYNAPSE", missing)
	s, err := Probe()
	require.ErrorContains(t, err, missing)
	require.Zero(t, s)

	hlml := standin.Build(t, "libhlml")
	t.Setenv("OCTET_LIBSYNAPSE", hlml)
	_, err = Probe()
	require.EqualError(t, err, hlml+" has no synInitialize")
}
