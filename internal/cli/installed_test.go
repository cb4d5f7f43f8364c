package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInstalled(t *testing.T) {
	defer func(v, r string) { stampedVersion, stampedRevision = v, r }(stampedVersion, stampedRevision)
	stampedVersion, stampedRevision = "", ""
	dir := t.TempDir()
	file := filepath.Join(dir, "bin", "octet")
	require.Equal(t, "built from source: "+file, installedAs(file, ""))

	stampedVersion, stampedRevision = "v1.2.3", "466cc68a1234567890"
	require.Equal(t, "archive of a release: "+file, installedAs(file, ""))
	require.Equal(t, "v1.2.3 466cc68a1234", version())
	stampedVersion = "v0.0.0-20261129115959-466cc68a1234"
	require.Equal(t, stampedVersion, version(), "it has the revision")
	require.Equal(t, "container image octet:v1.2.3", installedAs(file, "octet:v1.2.3"))
	for _, packages := range []string{
		"lib/python3.12/site-packages", "lib64/python3.13/site-packages", "lib/python3/dist-packages", "lib/pypy3.11/site-packages",
		"Lib/site-packages", "site-packages", "", // Windows, Windows --user, --target
	} {
		records := filepath.Join(dir, packages, "octet-1.2.3.dist-info")
		require.NoError(t, os.MkdirAll(records, 0o755))
		require.Equal(t, "Python wheel in "+dir+": update it with pip", installedAs(file, ""), packages)
		require.Equal(t, "container image octet:v1.2.3", installedAs(file, "octet:v1.2.3"))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, packages, "octet-1.2.3.dist-info")))
	}
}
