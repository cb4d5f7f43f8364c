package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
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

func imageTargets() (list []target) {
	for _, p := range testTargets() {
		if p.os == "linux" {
			list = append(list, p)
		}
	}
	return list
}

func imageOf(t *testing.T, p target) v1.Image {
	reference := "octet:" + testVersion
	if p.accelerators {
		reference += "-accelerators"
	}
	tag, err := name.NewTag(reference)
	require.NoError(t, err)
	image, err := tarball.ImageFromPath(filepath.Join(dist(t), "octet-"+testVersion+"-image-"+p.String()+".tar"), &tag)
	require.NoError(t, err)
	return image
}

// layersOf returns the entries of each layer, and the files of all.
func layersOf(t *testing.T, image v1.Image) (list [][]entry, files map[string][]byte) {
	layers, err := image.Layers()
	require.NoError(t, err)
	files = map[string][]byte{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		require.NoError(t, err)
		entries, content := untar(t, r)
		require.NoError(t, r.Close())
		list = append(list, entries)
		for name := range content {
			files[name] = content[name]
		}
	}
	return list, files
}

func imageFiles(t *testing.T, p target) map[string][]byte {
	_, files := layersOf(t, imageOf(t, p))
	return files
}

// A layer has every folder before what is in it, and no entry twice.
func TestLayers(t *testing.T) {
	dist(t)
	at := testSource(t).time
	own := []entry{
		{"usr/", 0o755, 0, at},
		{"usr/bin/", 0o755, 0, at},
		{"usr/bin/octet", 0o755, 0, at},
		{"usr/share/", 0o755, 0, at},
		{"usr/share/licenses/", 0o755, 0, at},
		{"usr/share/licenses/octet/", 0o755, 0, at},
		{"usr/share/licenses/octet/THIRD_PARTY_LICENSES", 0o644, 0, at},
		{"work/", 0o755, 65532, at},
		{"tmp/", 0o1777, 0, at},
	}
	for _, p := range imageTargets() {
		layers, files := layersOf(t, imageOf(t, p))
		require.Equal(t, own, layers[len(layers)-1], p)
		_, archived := archiveOf(t, p)
		require.True(t, bytes.Equal(archived["octet"], files["usr/bin/octet"]))
		if !p.accelerators {
			require.Len(t, layers, 1)
			continue
		}
		require.Len(t, layers, 2)
		seen := map[string]bool{"./": true}
		for _, e := range layers[0] {
			require.False(t, seen[e.name], e.name)
			seen[e.name] = true
			require.True(t, seen[path.Dir(strings.TrimSuffix(e.name, "/"))+"/"], "%s is before its folder", e.name)
			require.Zero(t, e.owner, e.name)
			require.Equal(t, at, e.time)
			switch {
			case strings.HasSuffix(e.name, "/"), strings.Contains(e.name, ".so."):
				require.EqualValues(t, 0o755, e.mode, e.name)
			default:
				require.EqualValues(t, 0o644, e.mode, e.name)
			}
		}
		licenses := 0
		for name, text := range files {
			if strings.HasPrefix(name, "usr/share/") && bytes.Contains(text, []byte("GNU Lesser General Public")) {
				licenses++
			}
		}
		require.NotZero(t, licenses)
		if _, err := os.Stat("/usr/share/doc/libc6/copyright"); err == nil {
			require.Contains(t, files, "usr/share/doc/libc6/copyright")
			require.Contains(t, string(files["usr/share/common-licenses/LGPL-2.1"]), "TERMS AND CONDITIONS FOR COPYING")
		}
	}
}

// checkConfig compares the configuration of an image, without its layers.
func checkConfig(t *testing.T, s *source, image v1.Image, arch, env string) {
	raw, err := image.RawConfigFile()
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(raw, &config))
	delete(config, "rootfs")
	raw, err = json.Marshal(config)
	require.NoError(t, err)
	require.JSONEq(t, strings.NewReplacer("ARCH", arch, "TIME", s.time.Format("2006-01-02T15:04:05Z"), "VERSION", s.version, "REVISION", s.revision, "VARIABLES", env).Replace(`{
	"architecture": "ARCH", "os": "linux", "created": "TIME",
	"config": {
		"Entrypoint": ["/usr/bin/octet"], "Env": [VARIABLES], "User": "65532", "WorkingDir": "/work",
		"Labels": {"org.opencontainers.image.revision": "REVISION", "org.opencontainers.image.version": "VERSION"}
	}
}`), string(raw))
}

func TestImageConfig(t *testing.T) {
	dist(t)
	for _, p := range imageTargets() {
		tag := testVersion
		if p.accelerators {
			tag += "-accelerators"
		}
		checkConfig(t, testSource(t), imageOf(t, p), p.arch, `"OCTET_IMAGE=octet:`+tag+`", "PATH=/usr/bin"`)
	}
}

// The accelerators' image extends a base in a registry, here one of this process.
func TestBaseFromRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	s, err := newSource(commit(t, small), testVersion)
	require.NoError(t, err)
	layer, err := s.layer([]file{{name: "etc/base", content: []byte("here"), mode: 0o644}})
	require.NoError(t, err)
	base, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	base, err = mutate.Config(base, v1.Config{
		Env: []string{"PATH=/usr/local/cuda/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/cuda/lib64"},
		Cmd: []string{"/bin/bash"}, Entrypoint: []string{"/opt/entrypoint.sh"}, User: "root", WorkingDir: "/",
	})
	require.NoError(t, err)
	config, err := base.ConfigFile()
	require.NoError(t, err)
	config.OS, config.Architecture = "linux", "amd64"
	base, err = mutate.ConfigFile(base, config)
	require.NoError(t, err)
	ref, err := name.ParseReference(at.Host + "/cuda:1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, base))

	c := &contents{binary: &binary{target: target{"linux", "amd64", true}, content: []byte("octet")}}
	f, err := s.image(c, at.Host+"/cuda:1")
	require.NoError(t, err)
	require.Equal(t, "octet-"+testVersion+"-image-linux-amd64-accelerators.tar", f.name)
	require.Nil(t, c.glibc)
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(f.content)), nil }, nil)
	require.NoError(t, err)
	_, files := layersOf(t, image)
	require.Equal(t, "here", string(files["etc/base"]))
	require.Equal(t, "octet", string(files["usr/bin/octet"]))
	checkConfig(t, s, image, "amd64", `"PATH=/usr/local/cuda/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "OCTET_IMAGE=octet:`+testVersion+`-accelerators"`)
}

// A library that is not glibc's has a license that the image would lack.
func TestOtherLibraries(t *testing.T) {
	_, err := find("libstdc++.so.6")
	require.ErrorContains(t, err, "libstdc++.so.6, which is not of glibc: name a base image")
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
	t.Parallel() // the limits leave room beside it
	groups, reason := limited(t)
	if reason != "" {
		t.Logf("without limits of memory and processors: %s", reason)
	}
	for _, platform := range imageTargets() {
		if platform.arch != "amd64" {
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
