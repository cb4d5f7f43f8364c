//go:build gaudi && cgo && linux

package gaudi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
)

func TestProbeWithoutSynapse(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	t.Setenv("OCTET_LIBSYNAPSE", missing)
	list := probeSynapse()
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
	t.Setenv("GC_KERNEL_PATH", path)
	kernels := backend.Finding{What: "kernels", OK: true, Detail: path}
	synapse := backend.Finding{What: "SynapseAI", OK: true, Detail: "version 1.24.0-standin in " + path}
	require.Equal(t, []backend.Finding{
		synapse, {What: "Gaudi devices", OK: true, Detail: "0 of model 2, 8 of model 3, 8 in all"}, kernels,
	}, probeSynapse()[:3])

	t.Setenv("STANDIN_GAUDI3", "0")
	require.Equal(t, []backend.Finding{
		synapse, {What: "Gaudi devices", Detail: "0 of model 2, 0 of model 3, 0 in all", Fix: fixDevice}, kernels,
	}, probeSynapse()[:3])

	t.Setenv("GC_KERNEL_PATH", "")
	t.Setenv("STANDIN_DRIVER", "1.15.1.abcdef")
	list := probeSynapse()
	require.Equal(t, fixVersion, list[0].Fix)
	require.Contains(t, list[2].Detail, "export GC_KERNEL_PATH=")

	path = standin.Build(t, "libsynapse") // a library that is not started yet
	t.Setenv("OCTET_LIBSYNAPSE", path)
	t.Setenv("STANDIN_SYNAPSE", "26")
	require.Equal(t, []backend.Finding{
		{What: "SynapseAI", Detail: path + ": synInitialize returned 26 (synFail)", Fix: fixDevice},
	}, probeSynapse())
}

// SynapseAI did not find the libraries that it opens by name.
func TestProbeMissesCompilers(t *testing.T) {
	path := standin.Build(t, "libsynapse")
	t.Setenv("OCTET_LIBSYNAPSE", path)
	missing := func(names string) backend.Finding {
		return backend.Finding{
			What: "compilers", Fix: fixLoader,
			Detail: "not loaded: " + names + "; without them FP8 GEMMs, casts to FP8, attention and norms fail with synFail",
		}
	}
	require.Equal(t, missing("libTPCFuser.so, libComplexGuid.so"), probeSynapse()[3])

	// Variables may give them other names.
	t.Setenv("TPC_FUSER_LIB_NAME", path)
	t.Setenv("COMPLEX_GUID_LIB_NAME", path+".missing")
	require.Equal(t, missing("libComplexGuid.so"), probeSynapse()[3])
	t.Setenv("COMPLEX_GUID_LIB_NAME", path)
	require.True(t, probeSynapse()[3].OK)
}

func TestEnvironment(t *testing.T) {
	devices(t, "gaudi2", "1")
	t.Setenv("HABANA_VISIBLE_DEVICES", "0,1")
	t.Setenv("OTHER", "secret")
	t.Setenv("SYNC_TOKEN", "secret")
	list := probe()
	last := list[len(list)-1]
	require.Equal(t, "environment", last.What)
	require.Regexp(t, `^GC_KERNEL_PATH=\S+/libtpc_kernels\.so HABANA_VISIBLE_DEVICES=0,1 .*OCTET_LIBSYNAPSE=`, last.Detail)
	require.NotContains(t, last.Detail, "secret")
}

func TestTooOld(t *testing.T) {
	for version, old := range map[string]bool{
		"1.15.1.9df1f1e": true, "1.9": true, "0.20.0": true,
		"1.16.0": false, "1.24.0-standin": false, "2.0.0": false, "": false, "unknown": false,
	} {
		require.Equal(t, old, tooOld(version), version)
	}
}

func TestFirmware(t *testing.T) {
	dir := t.TempDir()
	write := func(accel, name, text string) {
		path := filepath.Join(dir, accel, "device")
		require.NoError(t, os.MkdirAll(path, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(text+"\n"), 0o666))
	}
	write("accel0", "device_type", "GAUDI2")
	write("accel0", "status", "operational")
	write("accel0", "driver_ver", "1.19.1-abc")
	write("accel0", "fw_os_ver", "hl-gaudi2-1.19.1")
	write("accel1", "driver_ver", "1.19.1-abc")
	write("accel1", "status", "in reset")
	write("accel2", "vendor", "somebody else")
	require.Equal(t, []backend.Finding{
		{What: "device accel0", OK: true, Detail: "GAUDI2, operational, driver 1.19.1-abc, firmware hl-gaudi2-1.19.1"},
		{What: "device accel1", Detail: "unknown, in reset, driver 1.19.1-abc, firmware unknown"},
	}, firmware(dir))
}
