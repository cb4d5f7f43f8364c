//go:build cuda && cgo && linux

package libcuda

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

func TestCompilerReportsMistakes(t *testing.T) {
	c := compiler(t)
	_, err := c.Compile(Source{Name: "wrong.cu", Text: "int f( { }"}, "sm_90a")
	require.ErrorContains(t, err, "compile wrong.cu for sm_90a with NVRTC "+c.Version+": nvrtcCompileProgram returned 6: NVRTC_ERROR_COMPILATION\n")
	require.ErrorContains(t, err, "error: ", "the compiler's log")
	require.Equal(t, 6, code(err))

	_, err = c.Compile(axpySource, "sm_90a", "--no-such-option")
	require.Equal(t, 5, code(err))
	_, err = c.Compile(Source{Name: "lonely.cu", Text: "#include \"absent.cuh\"\n"}, "sm_90a")
	require.ErrorContains(t, err, "absent.cuh")
}

func TestCompilerKnowsDevices(t *testing.T) {
	c := compiler(t)
	for _, want := range []struct {
		newest       string
		major, minor int
		known        bool
	}{
		{"120", 9, 0, true},
		{"120", 10, 0, true},
		{"90", 9, 0, true},
		{"90", 8, 9, true},
		{"90", 10, 0, false},
		{"120", 10, 3, false},
		{"0", 9, 0, false},
	} {
		standin.Set(t, "STANDIN_NVRTC", want.newest)
		known, err := c.Compiles(GPU{Major: want.major, Minor: want.minor})
		require.NoError(t, err)
		require.Equal(t, want.known, known, "%+v", want)
	}
}

func cached(t *testing.T) []string {
	files, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "octet", "cubin", "*"))
	require.NoError(t, err)
	return files
}

func TestCubinsAreCached(t *testing.T) {
	standin.Only(t, "NVRTC needs no C++ compiler to take away")
	c := compiler(t)
	first, err := c.Cubin(axpySource, "sm_90a")
	require.NoError(t, err)
	require.Len(t, cached(t), 1)

	// Without a compiler, only cached cubins are returned.
	t.Setenv("CXX", "/nowhere/g++")
	again, err := c.Cubin(axpySource, "sm_90a")
	require.NoError(t, err)
	require.Equal(t, first, again)

	// Every other program, option and version misses the cache.
	other := axpySource
	other.Headers = map[string]string{"args.cuh": axpySource.Headers["args.cuh"] + "\n"}
	for what, compile := range map[string]func() ([]byte, error){
		"architecture": func() ([]byte, error) { return c.Cubin(axpySource, "sm_89") },
		"option":       func() ([]byte, error) { return c.Cubin(axpySource, "sm_90a", "-DX") },
		"header":       func() ([]byte, error) { return c.Cubin(other, "sm_90a") },
	} {
		_, err := compile()
		require.Error(t, err, what)
	}
	newer := *c
	newer.Version = "13.2"
	_, err = newer.Cubin(axpySource, "sm_90a")
	require.Error(t, err)
	require.Len(t, cached(t), 1)
}

func TestDamagedCubinsAreCompiledAgain(t *testing.T) {
	c := compiler(t)
	want, err := c.Cubin(axpySource, "sm_90a")
	require.NoError(t, err)
	path := cached(t)[0]
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, n := range []int{0, 10, 32, len(whole) - 1} {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o666))
		_, ok := readCubin(path)
		require.False(t, ok, "%d bytes", n)
	}
	flipped := append([]byte(nil), whole...)
	flipped[len(flipped)/2] ^= 1
	require.NoError(t, os.WriteFile(path, flipped, 0o666))
	got, err := c.Cubin(axpySource, "sm_90a")
	require.NoError(t, err)
	require.Len(t, got, len(want))
	_, ok := readCubin(path)
	require.True(t, ok, "written again")
}

func TestCompilationNeedsNoCache(t *testing.T) {
	c := compiler(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	t.Setenv("XDG_CACHE_HOME", file) // no folder can be created here
	_, err := c.Cubin(axpySource, "sm_90a")
	require.NoError(t, err)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	require.Empty(t, c.cubinPath(axpySource, "sm_90a", nil))
}

// NVRTC finds its builtins, which lie in its folder, only if they are already loaded.
func TestBuiltinsAreLoaded(t *testing.T) {
	library := standin.Build(t, "libnvrtc")
	t.Setenv("OCTET_LIBNVRTC", library)
	builtins := filepath.Join(filepath.Dir(library), "libnvrtc-builtins.so.13.99")
	source := filepath.Join(t.TempDir(), "builtins.c")
	require.NoError(t, os.WriteFile(source, []byte("int builtins;"), 0o666))
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-shared", "-fPIC", "-o", builtins, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = ProbeNVRTC(0)
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.Contains(t, string(maps), builtins)
}
