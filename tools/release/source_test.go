package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// small is a checkout of a module with the files that a release reads.
var small = map[string]string{
	"go.mod":  "module octet\n\ngo 1.26\n",
	"main.go": "package main\n\nimport (\n\t\"embed\"\n\n\t_ \"octet/internal/cli\"\n)\n\n//go:embed data\nvar data embed.FS\n\nvar hostile string\n\nfunc main() {\n\tprintln(hostile)\n\t_ = data\n}\n",
	// Settings that the commit's owner does not have turn these on.
	"tagged.go":                "//go:build hostile\n\npackage main\n\nfunc init() { hostile = \"a tag\" }\n",
	"experiment.go":            "//go:build goexperiment.jsonv2\n\npackage main\n\nfunc init() { hostile = \"an experiment\" }\n",
	"level.go":                 "//go:build amd64.v3\n\npackage main\n\nfunc init() { hostile = \"a processor\" }\n",
	"data/text.txt":            "one\ntwo\n$Format:%H$\n",
	"data/left-out.txt":        "three\n",
	"internal/cli/cli.go":      "package cli\n\nvar stampedVersion, stampedRevision string\n",
	"python/octet/__init__.py": "x = 1\n",
	"docs/python.md":           "# Guide\n",
	".gitattributes":           "data/left-out.txt export-ignore\ndata/text.txt export-subst\npython/** export-ignore\n",
}

func write(t *testing.T, dir string, files map[string]string) {
	for name, text := range files {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
}

func git(t *testing.T, dir string, args ...string) {
	command := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=o", "-c", "user.email=o@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
}

// commit returns a checkout with a commit of files.
func commit(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	write(t, dir, files)
	git(t, dir, "init", "-q")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "all")
	return dir
}

// sumsOf returns the SHA256SUMS of a release of a small checkout.
func sumsOf(t *testing.T, dir string) string {
	out := t.TempDir()
	require.NoError(t, run(options{source: filepath.Join(dir, "docs"), out: out, platforms: "linux-amd64,windows-amd64"}))
	text, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	require.NoError(t, err)
	return string(text)
}

// Untracked files, attributes and line endings of Git, and settings of Go change no byte of a release.
func TestOnlyTheCommitMatters(t *testing.T) {
	dir := commit(t, small)
	want := sumsOf(t, dir)
	check := func(name string) {
		t.Helper()
		require.Equal(t, want, sumsOf(t, dir), name)
	}

	write(t, dir, map[string]string{"python/octet/extra.py": "y = 2\n"})
	check("an untracked file of Python")
	write(t, dir, map[string]string{"data/extra.txt": "untracked\n"})
	check("an untracked embedded file")
	write(t, dir, map[string]string{"extra.go": "package main\n\nfunc init() { hostile = \"a file\" }\n"})
	check("an untracked file of Go")
	write(t, dir, map[string]string{".git/info/attributes": "*.md export-ignore\n* text eol=crlf\n"})
	git(t, dir, "config", "core.autocrlf", "true")
	check("attributes and line endings")

	settings := filepath.Join(t.TempDir(), "env")
	t.Setenv("GOENV", settings)
	for _, setting := range []string{"GOFLAGS=-tags=hostile", "GOEXPERIMENT=jsonv2", "GOAMD64=v3", "GOFIPS140=latest"} {
		require.NoError(t, os.WriteFile(settings, []byte(setting+"\n"), 0o644))
		check("go env -w " + setting)
	}
	t.Setenv("GOEXPERIMENT", "jsonv2")
	t.Setenv("GOFLAGS", "-tags=hostile")
	t.Setenv("GOAMD64", "v3")
	check("variables")
}

// The files of the commit are what its release has, attributes or not.
func TestExport(t *testing.T) {
	s, err := newSource(commit(t, small), "")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, s.export(dir))
	for name, text := range small {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, text, string(got), name)
	}
	require.NoDirExists(t, filepath.Join(dir, ".git"))

	linked := commit(t, small)
	require.NoError(t, os.Symlink("main.go", filepath.Join(linked, "link.go")))
	git(t, linked, "add", "link.go")
	git(t, linked, "commit", "-q", "-m", "link")
	s, err = newSource(linked, "")
	require.NoError(t, err)
	require.ErrorContains(t, s.export(t.TempDir()), "link.go: symbolic links are not supported")
}

// The user's settings of modules reach the Go command, those of binaries do not.
func TestEnvironment(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(settings, []byte("GOPROXY=https://proxy.example.com\nGOSUMDB=off\nGOMODCACHE=/modules\nGOPRIVATE=example.com\nGOFLAGS=-tags=x\n"), 0o644))
	t.Setenv("GOENV", settings)
	for _, name := range []string{"GOFLAGS", "GOPROXY", "GOSUMDB", "GOMODCACHE", "GOPRIVATE"} {
		t.Setenv(name, "") // empty is unset
	}
	for _, setting := range []string{"CGO_CFLAGS", "CGO_CPPFLAGS", "CGO_CXXFLAGS", "CGO_LDFLAGS"} {
		t.Setenv(setting, "-Dx")
	}
	for name, value := range map[string]string{
		"GOWORK": "/x/go.work", "GOEXPERIMENT": "jsonv2", "GO_EXTLINK_ENABLED": "1", "GOAMD64": "v4", "GOARM64": "v9.0", "GOFIPS140": "latest",
	} {
		t.Setenv(name, value)
	}
	s := &source{dir: t.TempDir()}
	var err error
	s.env, err = environment(s.dir)
	require.NoError(t, err)
	want := map[string]string{
		"GOPROXY": "https://proxy.example.com", "GOSUMDB": "off", "GOMODCACHE": "/modules", "GOPRIVATE": "example.com",
		"GOFLAGS": "", "GOWORK": "off", "GOEXPERIMENT": "", "GOFIPS140": "off", "GOAMD64": "v1", "GOARM64": "v8.0", "GO_EXTLINK_ENABLED": "",
		"CGO_CPPFLAGS": "", "CGO_CFLAGS": "-O2 -g0 -Wno-deprecated-declarations", "CGO_CXXFLAGS": "-O2 -g0", "CGO_LDFLAGS": "-O2 -g",
		"GOOS": "darwin", "GOARCH": "arm64", "CGO_ENABLED": "0",
	}
	out, err := s.goCommand(target{"darwin", "arm64", false}, append([]string{"env", "-json"}, slices.Collect(maps.Keys(want))...)...).Output()
	require.NoError(t, err)
	got := map[string]string{}
	require.NoError(t, json.Unmarshal(out, &got))
	require.Equal(t, want, got)
}

// The binaries of a release have these settings, and no others.
func TestBuildSettings(t *testing.T) {
	dist(t)
	for _, p := range testTargets() {
		_, files := archiveOf(t, p)
		info, err := buildinfo.Read(bytes.NewReader(files[commandOf(p)]))
		require.NoError(t, err)
		require.Equal(t, runtime.Version(), info.GoVersion)
		got := map[string]string{}
		for _, setting := range info.Settings {
			got[setting.Key] = setting.Value
		}
		want := map[string]string{"-buildmode": "exe", "-compiler": "gc", "-trimpath": "true", "CGO_ENABLED": "0", "GOOS": p.os, "GOARCH": p.arch}
		switch p.arch {
		case "amd64":
			want["GOAMD64"] = "v1"
		case "arm64":
			want["GOARM64"] = "v8.0"
		}
		if p.accelerators {
			want["CGO_ENABLED"], want["-tags"] = "1", "cuda,gaudi,mpi"
		}
		require.Equal(t, want, got, p)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v10.20.30": "10.20.30", "v0.2.0-rc.1": "0.2.0rc1", "v0.2.0-rc1": "0.2.0rc1", "v1.2.3-beta.2": "1.2.3b2", "v1.2.3-alpha.0": "1.2.3a0",
		"v0.0.0-20261129115959-466cc68a1234": "0.0.0.dev20261129115959",
	} {
		got, err := pythonVersion(version)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, version := range []string{
		"", "1.2.3", "v1.2", "v1.2.3 4", "latest", "v1.0.0-x", "v1.0.0-rc", "v1.0.0-rc.1.2", "v1.0.0-rc.x", "v1.0.0-gamma.1", "v1.0.0+local", "v01.0.0", "v1.0.0-rc.01",
		"v1.0.0-", "v1.2.3\n", "xv1.2.3", "v0.0.0-20261129-466cc68a1234", "v0.0.0-20261129115959", "v0.0.0-20261129115959-466cc68a123456",
	} {
		_, err := pythonVersion(version)
		require.ErrorContains(t, err, "expected v1.2.3, v1.2.3-alpha.4, v1.2.3-beta.4, v1.2.3-rc.4 or v1.2.3-DATE-HASH", version)
	}
}

func TestCheckouts(t *testing.T) {
	_, err := newSource(t.TempDir(), "")
	require.ErrorContains(t, err, "not a git repository")
	dir := commit(t, small)
	s, err := newSource(dir, "")
	require.NoError(t, err)
	require.Equal(t, "v0.0.0-"+s.time.Format("20060102150405")+"-"+s.revision[:12], s.version)
	_, err = newSource(dir, "v1.2")
	require.ErrorContains(t, err, `version "v1.2": expected`)
	git(t, dir, "tag", "v1-old")
	_, err = newSource(dir, "")
	require.ErrorContains(t, err, `version "v1-old": expected`)
	git(t, dir, "tag", "-d", "v1-old")
	git(t, dir, "tag", "v1.2.3-rc.4")
	s, err = newSource(dir, "")
	require.NoError(t, err)
	require.Equal(t, "v1.2.3-rc.4", s.version)
	write(t, dir, map[string]string{"go.mod": "changed"})
	_, err = newSource(dir, "")
	require.ErrorContains(t, err, "the checkout has changes: commit them first\nM go.mod")
}
