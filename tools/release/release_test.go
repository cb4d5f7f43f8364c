package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testVersion = "v0.1.2-rc.3"

func cgo() bool {
	_, err := exec.LookPath("gcc")
	return err == nil && runtime.GOOS == "linux" && runtime.GOARCH == "amd64"
}

// testTargets are the targets that this machine builds.
func testTargets() (list []target) {
	for _, t := range allTargets {
		if !t.accelerators || cgo() {
			list = append(list, t)
		}
	}
	return list
}

func names(targets []target) string {
	var list []string
	for _, t := range targets {
		list = append(list, t.String())
	}
	return strings.Join(list, ",")
}

// release returns the folder of a release of all platforms, which the tests share.
var release = sync.OnceValues(func() (string, error) {
	dir := os.Getenv("OCTET_DIST") // kept, for the tests of the wheel
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "octet-release-test"); err != nil {
			return "", err
		}
		released = dir
	}
	return dir, run(options{source: "../..", out: dir, version: testVersion, platforms: names(testTargets())})
})

var (
	released  string
	notTested []string // tests that need a release of a checkout without changes
)

func TestMain(m *testing.M) {
	if os.Getenv("OCTET_RELEASE_TOOL") != "" { // this process is the command
		main()
		return
	}
	status := m.Run()
	if released != "" {
		os.RemoveAll(released)
	}
	if len(notTested) > 0 {
		fmt.Fprintf(os.Stderr, "\nNOT TESTED, because the checkout has changes: %s\n\n", strings.Join(notTested, ", "))
	}
	os.Exit(status)
}

// dist returns the folder of the release. Of a checkout with changes there is none: then it skips the
// test, or fails if a later stage of CI needs the release.
func dist(t *testing.T) string {
	t.Helper()
	dir, err := release()
	var changes changesError
	if errors.As(err, &changes) && os.Getenv("OCTET_DIST") == "" {
		notTested = append(notTested, t.Name())
		t.Skipf("NOT TESTED: a release is the files of a commit, and these differ from HEAD; commit or stash them:\n%s", string(changes))
	}
	require.NoError(t, err)
	return dir
}

// testSource returns the source of the release in dist.
func testSource(t *testing.T) *source {
	s, err := newSource("../..", testVersion)
	require.NoError(t, err)
	return s
}

// entry is a file in a tar or zip file, without its content.
type entry struct {
	name  string
	mode  int64
	owner int
	time  time.Time
}

func unzip(t *testing.T, content []byte) (entries []entry, files map[string][]byte) {
	z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	files = map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		require.NoError(t, err)
		files[f.Name], err = io.ReadAll(r)
		require.NoError(t, err)
		require.True(t, f.Mode().IsRegular())
		entries = append(entries, entry{f.Name, int64(f.Mode()), 0, f.Modified.UTC()})
	}
	return entries, files
}

func untar(t *testing.T, r io.Reader) (entries []entry, files map[string][]byte) {
	files = map[string][]byte{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return entries, files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(in)
		require.NoError(t, err)
		require.Equal(t, h.Uid, h.Gid)
		require.Empty(t, h.Uname+h.Gname)
		require.Equal(t, strings.HasSuffix(h.Name, "/"), h.Typeflag == tar.TypeDir, h.Name)
		entries = append(entries, entry{h.Name, h.Mode, h.Uid, h.ModTime.UTC()})
	}
}

// archived is an archive, without the name of its folder.
type archived struct {
	entries []entry
	files   map[string][]byte
}

var archives = map[target]*archived{} // that tests have read

// archiveOf returns the entries and the files of an archive.
func archiveOf(t *testing.T, p target) (entries []entry, files map[string][]byte) {
	if a := archives[p]; a != nil {
		return a.entries, a.files
	}
	base := "octet-" + testVersion + "-" + p.String()
	var all map[string][]byte
	if p.os == "windows" {
		content, err := os.ReadFile(filepath.Join(dist(t), base+".zip"))
		require.NoError(t, err)
		entries, all = unzip(t, content)
	} else {
		content, err := os.ReadFile(filepath.Join(dist(t), base+".tar.gz"))
		require.NoError(t, err)
		require.EqualValues(t, 2, content[8], "the best compression")
		z, err := gzip.NewReader(bytes.NewReader(content))
		require.NoError(t, err)
		entries, all = untar(t, z)
	}
	files = map[string][]byte{}
	for i := range entries {
		name, ok := strings.CutPrefix(entries[i].name, base+"/")
		require.True(t, ok)
		files[name] = all[entries[i].name]
		entries[i].name = name
	}
	archives[p] = &archived{entries, files}
	return entries, files
}

func commandOf(p target) string {
	return (&binary{target: p}).command()
}

// The files of a clone are equal, byte for byte; with OCTET_LONG also if an empty cache makes Go compile
// everything again.
func TestReproducible(t *testing.T) {
	dir := dist(t)
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "clone of octet")
	out, err := exec.Command("git", "clone", "-q", "../..", clone).CombinedOutput()
	require.NoError(t, err, string(out))
	again := t.TempDir()
	build := func(platform string, env ...string) {
		tool := exec.Command(os.Args[0], "-source", clone, "-o", again, "-version", testVersion, "-platforms", platform)
		tool.Env = append(append(os.Environ(), "OCTET_RELEASE_TOOL=1"), env...)
		out, err := tool.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	var cache []string
	if os.Getenv("OCTET_LONG") != "" {
		cache = append(cache, "GOCACHE="+t.TempDir())
	}
	build("linux-amd64", cache...)
	if cgo() {
		build("linux-amd64-accelerators", cache...)
	}
	list, err := os.ReadDir(again)
	require.NoError(t, err)
	compared := 0
	for _, e := range list {
		if e.Name() == "SHA256SUMS" || strings.HasSuffix(e.Name(), ".json") {
			continue // of other platforms
		}
		want, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(again, e.Name()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), e.Name())
		compared++
	}
	require.GreaterOrEqual(t, compared, 3)
}

func TestSums(t *testing.T) {
	dir := dist(t)
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	require.NoError(t, err)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, len(list)-1)
	for _, line := range lines {
		sum, name, _ := strings.Cut(line, "  ")
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(content)), sum)
	}
}

// Every archive has the command of its platform, and the one of this machine runs.
func TestArchives(t *testing.T) {
	dist(t)
	at := testSource(t).time
	for _, p := range testTargets() {
		entries, files := archiveOf(t, p)
		require.Equal(t, []entry{
			{commandOf(p), 0o755, 0, at}, {"README.md", 0o644, 0, at}, {"THIRD_PARTY_LICENSES", 0o644, 0, at},
		}, entries, p)
		readme := string(files["README.md"])
		require.Contains(t, readme, "# Octet "+testVersion+"\n")
		if p.os == "windows" {
			require.Contains(t, readme, "\n.\\octet train ")
			require.NotContains(t, readme, "./octet")
		} else {
			require.Contains(t, readme, "\n./octet train ")
		}
		for _, link := range markdownLinks(readme) {
			require.Contains(t, files, link)
		}
		if p.os != runtime.GOOS || p.arch != runtime.GOARCH {
			continue
		}
		path := filepath.Join(t.TempDir(), "octet")
		require.NoError(t, os.WriteFile(path, files["octet"], 0o755))
		out, err := exec.Command(path, "version").Output()
		require.NoError(t, err)
		revision, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
		require.NoError(t, err)
		want := "no tags"
		if p.accelerators {
			want = "tags cuda,gaudi,mpi"
		}
		require.Equal(t, fmt.Sprintf("octet %s %s, %s %s/%s, %s\n", testVersion, strings.TrimSpace(string(revision)), runtime.Version(), p.os, p.arch, want), string(out))
		out, err = exec.Command(path, "doctor").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), "archive of a release: "+path)
	}
}

func TestWrongPlatforms(t *testing.T) {
	_, err := targetsOf("linux-amd64,plan9-amd64")
	require.ErrorContains(t, err, `platform "plan9-amd64": expected some of [linux-amd64 `)
}
