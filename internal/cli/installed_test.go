package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInstalled(t *testing.T) {
	defer func(v, r string) { stampedVersion, stampedRevision = v, r }(stampedVersion, stampedRevision)
	stampedVersion, stampedRevision = "", ""
	dir := t.TempDir()
	file := filepath.Join(dir, "bin", "octet")
	source := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	require.Equal(t, "built from source: "+file, installedAs(file, "", source))
	require.Equal(t, "built from source: "+file, installedAs(file, "", nil))
	require.Equal(t, "built from source: "+file, installedAs(file, "", &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20261129115959-466cc68a0000"}}), "of a checkout")
	require.Equal(t, "go install: "+file, installedAs(file, "", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3", Sum: "h1:x"}}))

	stampedVersion, stampedRevision = "v1.2.3", "466cc68a1234567890"
	require.Equal(t, "archive of a release: "+file, installedAs(file, "", source))
	require.Equal(t, "v1.2.3 466cc68a1234", version())
	stampedVersion = "v0.0.0-20261129115959-466cc68a1234"
	require.Equal(t, stampedVersion, version(), "it has the revision")
	require.Equal(t, "container image octet:v1.2.3", installedAs(file, "octet:v1.2.3", source))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lib", "python3.12", "site-packages", "octet-1.2.3.dist-info"), 0o755))
	require.Equal(t, "Python wheel in "+dir+": update it with pip", installedAs(file, "", source))
}
