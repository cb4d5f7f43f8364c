//go:build cuda && cgo && linux

package libcuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

func TestDriverListsItsDevices(t *testing.T) {
	path := standin.Build(t, "libcuda")
	t.Setenv("OCTET_LIBCUDA", path)
	standin.Set(t, "STANDIN_CUDA", "12080")
	standin.Set(t, "STANDIN_GPUS", "2")
	standin.Set(t, "STANDIN_CAPABILITY", "89")
	d, err := ProbeDriver()
	require.NoError(t, err)
	require.Equal(t, Driver{
		Path: path, Version: 12080,
		GPUs: []GPU{
			{Name: "Stand-in 0", Bus: "0000:10:00.0", Major: 8, Minor: 9, Memory: 80 << 30, Processors: 132, Shared: 99 << 10},
			{Name: "Stand-in 1", Bus: "0000:11:00.0", Major: 8, Minor: 9, Memory: 80 << 30, Processors: 132, Shared: 99 << 10},
		},
	}, d)
}

func TestDriverWithoutDeviceKeepsItsVersion(t *testing.T) {
	standin.Load(t, "libcuda")
	standin.Set(t, "STANDIN_GPUS", "0")
	d, err := ProbeDriver()
	require.EqualError(t, err, "cuInit returned 100: no CUDA-capable device is detected")
	require.Equal(t, 13000, d.Version)
	require.Empty(t, d.GPUs)
}

// A toolkit's stub of the driver library, for linking, has all symbols and no driver.
func TestStubIsAnError(t *testing.T) {
	standin.Load(t, "libcuda")
	standin.Set(t, "STANDIN_STUB", "1")
	_, err := ProbeDriver()
	require.EqualError(t, err, "cuInit returned 34: CUDA driver is a stub library")
	_, err = Open(0)
	require.EqualError(t, err, "cuInit returned 34: CUDA driver is a stub library")
}

func TestMissingLibrariesAreErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	for variable, probe := range map[string]func() error{
		"OCTET_LIBCUDA":     func() error { _, err := ProbeDriver(); return err },
		"OCTET_LIBCUBLASLT": func() error { _, err := ProbeCublasLt(13000); return err },
		"OCTET_LIBNVRTC":    func() error { _, err := ProbeNVRTC(13000); return err },
	} {
		t.Setenv(variable, missing)
		require.ErrorContains(t, probe(), missing, variable)
	}
}

func TestForeignLibrariesAreErrors(t *testing.T) {
	nvrtc := standin.Build(t, "libnvrtc")
	t.Setenv("OCTET_LIBCUDA", nvrtc)
	_, err := ProbeDriver()
	require.EqualError(t, err, nvrtc+" has no cuInit")
	t.Setenv("OCTET_LIBCUBLASLT", nvrtc)
	_, err = ProbeCublasLt(0)
	require.EqualError(t, err, nvrtc+" has no cublasLtGetVersion")
	lt := standin.Build(t, "libcublaslt")
	t.Setenv("OCTET_LIBNVRTC", lt)
	_, err = ProbeNVRTC(0)
	require.EqualError(t, err, lt+" has no nvrtcVersion")
	_, err = NewCompiler(0)
	require.EqualError(t, err, lt+" has no nvrtcVersion")
}

func TestLibrariesTellTheirVersions(t *testing.T) {
	path := standin.Build(t, "libcublaslt")
	t.Setenv("OCTET_LIBCUBLASLT", path)
	l, err := ProbeCublasLt(13000)
	require.NoError(t, err)
	require.Equal(t, Library{Path: path, Version: "13.1.2"}, l)

	path = standin.Build(t, "libnvrtc")
	t.Setenv("OCTET_LIBNVRTC", path)
	l, err = ProbeNVRTC(13000)
	require.NoError(t, err)
	require.Equal(t, Library{Path: path, Version: "13.99"}, l)
}

// The highest version on the machine may need a newer driver.
func TestLibrariesFollowTheDriver(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CUDA_HOME", home)
	require.NoError(t, os.Mkdir(filepath.Join(home, "lib64"), 0o777))
	var files []string
	for _, name := range []string{"libx.so.13", "libx.so.12"} {
		file := filepath.Join(home, "lib64", name)
		require.NoError(t, os.WriteFile(file, nil, 0o666))
		files = append(files, file)
	}
	both := []string{"libx.so.13", files[0], "libx.so.12", files[1]}
	for driver, want := range map[int][]string{
		0: both, 13010: both, 14000: both, 12080: both[2:], 11080: nil,
	} {
		require.Equal(t, want, candidates("libx.so.", driver), "driver %d", driver)
	}

	t.Setenv("OCTET_LIBCUBLASLT", "") // no override
	_, err := ProbeCublasLt(11080)
	require.EqualError(t, err, "the driver supports only CUDA 11.8; 12 or 13 is needed")
}

// A machine with PyTorch and without a toolkit has the libraries among Python's packages.
// The newest version comes first, in whatever folder.
func TestLibrariesOfPackages(t *testing.T) {
	venv, home := t.TempDir(), t.TempDir()
	t.Setenv("PATH", filepath.Join(venv, "bin"))
	t.Setenv("CUDA_HOME", home)
	site := filepath.Join(venv, "lib", "python3.12", "site-packages", "nvidia")
	write := func(path ...string) string {
		file := filepath.Join(path...)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, nil, 0o777))
		return file
	}
	newer, older := write(site, "cu13", "lib", "libx.so.13"), write(site, "x", "lib", "libx.so.12")
	nccl := write(site, "nccl", "lib", "libnccl.so.2")
	require.NotContains(t, candidates("libx.so.", 13000), newer, "there is no python3")
	write(venv, "bin", "python3")
	require.Equal(t, []string{"libx.so.13", newer, "libx.so.12", older}, candidates("libx.so.", 13000))
	require.Contains(t, ncclPaths(), nccl)
	toolkit := write(home, "lib64", "libx.so.12")
	require.Equal(t, []string{"libx.so.12", toolkit, older}, candidates("libx.so.", 12080), "the folders of CUDA_HOME come first")
}
