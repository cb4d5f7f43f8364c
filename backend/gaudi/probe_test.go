//go:build gaudi && cgo && linux

package gaudi

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
)

func TestProbeWithoutSynapse(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	t.Setenv("OCTET_LIBSYNAPSE", missing)
	list := probe()
	require.Len(t, list, 1)
	require.False(t, list[0].OK)
	require.Contains(t, list[0].Detail, missing)
	require.Contains(t, list[0].Fix, "OCTET_LIBSYNAPSE")
}

func TestProbeOfAStandIn(t *testing.T) {
	path := standin.Build(t, "libsynapse")
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_GAUDI2", "0")
	t.Setenv("STANDIN_GAUDI3", "8")
	synapse := backend.Finding{What: "SynapseAI", OK: true, Detail: "version 1.24.0-standin in " + path}
	require.Equal(t, []backend.Finding{
		synapse, {What: "Gaudi devices", OK: true, Detail: "0 of model 2, 8 of model 3, 8 in all"},
	}, probe())

	t.Setenv("STANDIN_GAUDI3", "0")
	require.Equal(t, []backend.Finding{
		synapse, {What: "Gaudi devices", Detail: "0 of model 2, 0 of model 3, 0 in all", Fix: fixDevice},
	}, probe())

	path = standin.Build(t, "libsynapse") // one that was not started yet
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_SYNAPSE", "26")
	require.Equal(t, []backend.Finding{
		{What: "SynapseAI", Detail: path + ": synInitialize returned 26 (synFail)", Fix: fixDevice},
	}, probe())
}
