package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

const testVersion = "v0.1.2-rc.3"

// clone returns a clone of this checkout's commit.
func clone(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "clone of octet")
	out, err := exec.Command("git", "clone", "-q", "../..", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

func cgo() bool {
	_, err := exec.LookPath("gcc")
	return err == nil && runtime.GOOS == "linux" && runtime.GOARCH == "amd64"
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
	var platforms []string
	for _, t := range allTargets {
		if !t.accelerators || cgo() {
			platforms = append(platforms, t.String())
		}
	}
	return dir, run(options{source: "../..", out: dir, version: testVersion, platforms: strings.Join(platforms, ",")})
})

var released string

func TestMain(m *testing.M) {
	status := m.Run()
	if released != "" {
		os.RemoveAll(released)
	}
	os.Exit(status)
}

func dist(t *testing.T) string {
	dir, err := release()
	if err != nil && strings.Contains(err.Error(), "the checkout has changes") {
		t.Skip("the checkout has changes: commit them to test a release")
	}
	require.NoError(t, err)
	return dir
}

// The files of two clones are equal, byte for byte.
func TestReproducible(t *testing.T) {
	dir := dist(t)
	platforms := "linux-amd64,windows-arm64"
	if cgo() {
		platforms += ",linux-amd64-accelerators"
	}
	again := t.TempDir()
	require.NoError(t, run(options{source: clone(t), out: again, version: testVersion, platforms: platforms}))
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
	require.GreaterOrEqual(t, compared, 5)
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

func unzip(t *testing.T, name string) map[string][]byte {
	z, err := zip.OpenReader(name)
	require.NoError(t, err)
	defer z.Close()
	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		require.NoError(t, err)
		files[f.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
	return files
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	files := map[string][]byte{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(in)
		require.NoError(t, err)
	}
}

// Every archive has the command of its platform, and the one of this machine runs.
func TestArchives(t *testing.T) {
	dir := dist(t)
	for _, p := range allTargets {
		if p.accelerators && !cgo() {
			continue
		}
		base := "octet-" + testVersion + "-" + p.String()
		var files map[string][]byte
		command := base + "/octet"
		if p.os == "windows" {
			files = unzip(t, filepath.Join(dir, base+".zip"))
			command += ".exe"
		} else {
			f, err := os.Open(filepath.Join(dir, base+".tar.gz"))
			require.NoError(t, err)
			z, err := gzip.NewReader(f)
			require.NoError(t, err)
			files = untar(t, z)
			require.NoError(t, f.Close())
		}
		require.Len(t, files, 3)
		require.Contains(t, string(files[base+"/THIRD_PARTY_LICENSES"]), "github.com/alecthomas/kong")
		require.NotEmpty(t, files[command])
		if p.os != runtime.GOOS || p.arch != runtime.GOARCH {
			continue
		}
		path := filepath.Join(t.TempDir(), "octet")
		require.NoError(t, os.WriteFile(path, files[command], 0o755))
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

// The records of a wheel are those of its files, and static commands need no libc.
func TestWheels(t *testing.T) {
	wheels, err := filepath.Glob(filepath.Join(dist(t), "*.whl"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, wheel := range wheels {
		names[filepath.Base(wheel)] = true
		files := unzip(t, wheel)
		root := "octet-0.1.2rc3"
		if strings.Contains(wheel, "+accelerators") {
			root += "+accelerators"
		}
		require.Contains(t, files, "octet/__init__.py")
		require.Contains(t, files, "octet/py.typed")
		require.Contains(t, string(files[root+".dist-info/METADATA"]), "\nVersion: "+strings.TrimPrefix(root, "octet-")+"\n")
		lines := strings.Split(strings.TrimSpace(string(files[root+".dist-info/RECORD"])), "\n")
		require.Len(t, lines, len(files))
		for _, line := range lines {
			fields := strings.Split(line, ",")
			require.Len(t, fields, 3)
			content, ok := files[fields[0]]
			require.True(t, ok, line)
			if strings.HasSuffix(fields[0], "/RECORD") {
				continue
			}
			sum := sha256.Sum256(content)
			require.Equal(t, "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]), fields[1])
			require.Equal(t, fmt.Sprint(len(content)), fields[2])
		}
		if strings.Contains(wheel, "musllinux") {
			f, err := elf.NewFile(bytes.NewReader(files[root+".data/scripts/octet"]))
			require.NoError(t, err)
			needed, err := f.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, needed)
		}
	}
	for _, name := range []string{
		"octet-0.1.2rc3-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl", "octet-0.1.2rc3-py3-none-manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
		"octet-0.1.2rc3-py3-none-macosx_12_0_x86_64.whl", "octet-0.1.2rc3-py3-none-macosx_12_0_arm64.whl",
		"octet-0.1.2rc3-py3-none-win_amd64.whl", "octet-0.1.2rc3-py3-none-win_arm64.whl",
	} {
		require.True(t, names[name], "%s in %v", name, names)
	}
}

func TestPythonVersion(t *testing.T) {
	s := &source{}
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3rc1", "v1.2.3-beta.2": "1.2.3b2", "v0.0.0-20261129115959-466cc68a1234": "0.0.0.dev00010101000000", "v1.0.0-x": "1.0.0.dev00010101000000",
	} {
		s.version = version
		require.Equal(t, want, s.pythonVersion(target{"linux", "amd64", false}))
		require.Equal(t, want+"+accelerators", s.pythonVersion(target{"linux", "amd64", true}))
	}
}

func TestSPDX(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(dist(t), "octet-"+testVersion+".spdx.json"))
	require.NoError(t, err)
	var d spdxDocument
	require.NoError(t, json.Unmarshal(text, &d))
	ids := map[string]spdxPackage{"SPDXRef-DOCUMENT": {}}
	for _, p := range d.Packages {
		require.NotContains(t, ids, p.ID)
		ids[p.ID] = p
		if strings.HasPrefix(p.ID, "SPDXRef-Module-") {
			require.NotEqual(t, "NOASSERTION", p.Declared, p.Name)
			require.NotEmpty(t, p.Version)
		}
	}
	require.Equal(t, "MIT", ids["SPDXRef-Module-github.com-alecthomas-kong"].Declared)
	require.Equal(t, "BSD-3-Clause", ids["SPDXRef-Module-std"].Declared)
	contained := map[string]bool{}
	for _, r := range d.Relationships {
		require.Contains(t, ids, r.Element)
		require.Contains(t, ids, r.Related)
		contained[r.Element+" "+r.Related] = true
	}
	require.True(t, contained["SPDXRef-Binary-linux-amd64 SPDXRef-Module-github.com-alecthomas-kong"])
	require.False(t, contained["SPDXRef-Binary-linux-amd64 SPDXRef-Module-gorgonia.org-cu"], "it is in the binary with accelerators alone")
}

func imageOf(t *testing.T, platform string) v1.Image {
	image, err := tarball.ImageFromPath(filepath.Join(dist(t), "octet-"+testVersion+"-image-"+platform+".tar"), nil)
	require.NoError(t, err)
	return image
}

// unpack unpacks the layers of an image into a folder, with their owners if this process may set
// them.
func unpack(t *testing.T, image v1.Image) string {
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o755))
	layers, err := image.Layers()
	require.NoError(t, err)
	for _, l := range layers {
		r, err := l.Uncompressed()
		require.NoError(t, err)
		command := exec.Command("tar", "-x", "-p", "--same-owner", "-C", root)
		command.Stdin = r
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return root
}

func TestImageConfig(t *testing.T) {
	for _, platform := range []string{"linux-amd64", "linux-arm64"} {
		config, err := imageOf(t, platform).ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "linux-"+config.Architecture, platform)
		require.Equal(t, "65532", config.Config.User)
		require.Equal(t, "/work", config.Config.WorkingDir)
		require.Equal(t, []string{"/usr/bin/octet"}, config.Config.Entrypoint)
		require.Contains(t, config.Config.Env, "OCTET_IMAGE=octet:"+testVersion)
	}
}

// The accelerators' image stands on a base from a registry, here one of this process.
func TestBaseFromRegistry(t *testing.T) {
	if !cgo() {
		t.Skip("no gcc on linux-amd64: the command with accelerators was not built")
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	s := &source{version: testVersion}
	layer, err := s.layer([]file{{"etc/base", []byte("here"), 0o644}}, 0)
	require.NoError(t, err)
	base, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	base, err = mutate.Config(base, v1.Config{Env: []string{"PATH=/usr/local/cuda/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/cuda/lib64"}})
	require.NoError(t, err)
	config, err := base.ConfigFile()
	require.NoError(t, err)
	config.OS, config.Architecture = "linux", "amd64"
	base, err = mutate.ConfigFile(base, config)
	require.NoError(t, err)
	ref, err := name.ParseReference(at.Host + "/cuda:1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, base))

	b := &binary{target: target{"linux", "amd64", true}, content: []byte("octet")}
	_, content, err := s.image(b, at.Host+"/cuda:1")
	require.NoError(t, err)
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, nil)
	require.NoError(t, err)
	root := unpack(t, image)
	require.FileExists(t, filepath.Join(root, "etc", "base"))
	require.FileExists(t, filepath.Join(root, "usr", "bin", "octet"))
	config, err = image.ConfigFile()
	require.NoError(t, err)
	require.Contains(t, config.Config.Env, "LD_LIBRARY_PATH=/usr/local/cuda/lib64")
	require.Contains(t, config.Config.Env, "OCTET_IMAGE=octet:"+testVersion+"-accelerators")
}

// limited returns a cgroup with half a processor and a gigabyte, or a reason for none. It removes the
// group at the end of the test.
func limited(t *testing.T) (files []string, reason string) {
	name := fmt.Sprintf("octet-release-test-%d", os.Getpid())
	limits := map[string]map[string]string{ // version 1
		"/sys/fs/cgroup/memory": {"memory.limit_in_bytes": "1073741824"},
		"/sys/fs/cgroup/cpu":    {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		limits = map[string]map[string]string{"/sys/fs/cgroup": {"memory.max": "1073741824", "cpu.max": "50000 100000"}}
	}
	for controller, values := range limits {
		dir := filepath.Join(controller, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err.Error()
		}
		t.Cleanup(func() { os.Remove(dir) })
		for key, value := range values {
			if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o644); err != nil {
				return nil, err.Error()
			}
		}
		files = append(files, filepath.Join(dir, "cgroup.procs"))
	}
	return files, ""
}

// The commands of the images train from their unpacked layers, as a user without rights, with a
// read-only root, a gigabyte of memory and half a processor.
func TestImagesTrain(t *testing.T) {
	dist(t)
	if os.Getuid() != 0 || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("it needs root on linux-amd64")
	}
	groups, reason := limited(t)
	if reason != "" {
		t.Logf("without limits of memory and processors: %s", reason)
	}
	for _, platform := range []string{"linux-amd64", "linux-amd64-accelerators"} {
		if platform == "linux-amd64-accelerators" && !cgo() {
			continue
		}
		root := unpack(t, imageOf(t, platform))
		script := "set -e\nPATH=$PATH:/usr/sbin\n"
		for _, g := range groups {
			script += "echo $$ > " + g + "\n"
		}
		steps := os.Getenv("OCTET_IMAGE_STEPS") // "1800" is the default training
		if steps == "" {
			steps = "20"
		}
		script += strings.ReplaceAll(`mount --bind ROOT ROOT
mount -o remount,bind,ro ROOT
mount -t tmpfs -o mode=0755,uid=65532,gid=65532 tmpfs ROOT/work
if touch ROOT/usr/written; then exit 7; fi
env -i PATH=/usr/bin OCTET_IMAGE=octet:test $(command -v chroot) --userspec=65532:65532 ROOT /usr/bin/octet train --backend emu --out /work/run --steps `+steps+`
env -i OCTET_IMAGE=octet:test $(command -v chroot) --userspec=65532:65532 ROOT /usr/bin/octet doctor
ls ROOT/work/run/checkpoints
`, "ROOT", root)
		out, err := exec.Command("unshare", "-m", "sh", "-c", script).CombinedOutput()
		t.Logf("%s:\n%s", platform, out)
		require.NoError(t, err)
		require.Contains(t, string(out), "container image octet:test")
		require.Contains(t, string(out), "step-"+fmt.Sprintf("%08s", steps))
	}
}

func TestWrongOptions(t *testing.T) {
	_, err := targetsOf("linux-amd64,plan9-amd64")
	require.ErrorContains(t, err, `platform "plan9-amd64": expected some of [linux-amd64 `)
	_, err = newSource(t.TempDir(), "")
	require.ErrorContains(t, err, "not a git repository")
	dir := clone(t)
	for _, version := range []string{"1.2.3", "v1.2", "v1.2.3 4", "latest"} {
		_, err = newSource(dir, version)
		require.ErrorContains(t, err, "expected a form such as v0.2.0")
	}
	s, err := newSource(dir, "")
	require.NoError(t, err)
	require.Regexp(t, `^v\d+\.\d+\.\d+`, s.version)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("changed"), 0o644))
	_, err = newSource(dir, "")
	require.ErrorContains(t, err, "the checkout has changes: commit them first")
}
