package cli

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionOf(t *testing.T) {
	build := func(module string, settings ...debug.BuildSetting) string {
		return versionOf(&debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings})
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d"}
	modified := func(value string) debug.BuildSetting { return debug.BuildSetting{Key: "vcs.modified", Value: value} }
	require.Equal(t, "devel 1a2b3c4d5e6f", build("(devel)", revision, modified("false")))
	require.Equal(t, "devel 1a2b3c4d5e6f dirty", build("v0.0.0-20261122175000-1a2b3c4d5e6f+dirty", revision, modified("true")))
	require.Equal(t, "v1.2.3", build("v1.2.3"), "installed from a proxy")
	require.Equal(t, noCommit, build("(devel)"))
	require.Equal(t, noCommit, build(""))

	out, _ := succeed(t, "version")
	require.Contains(t, out, "octet "+version()+", go")
}
