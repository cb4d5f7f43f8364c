//go:build cuda && cgo && linux

package libcuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// write creates a file at the joined path and returns the path.
func write(t *testing.T, text string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o777))
	return file
}

// emptyMachine sets the environment of a machine without Python, toolkits and user
// packages.
func emptyMachine(t *testing.T) (home string) {
	home = t.TempDir()
	for _, name := range []string{"CUDA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "PYENV_VERSION", "PYTHONUSERBASE"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("PATH", filepath.Join(home, "bin"))
	return home
}

// Python packages are found under every kind of Python installation.
func TestLibrariesOfEveryPython(t *testing.T) {
	for name, machine := range map[string]func(t *testing.T, home string) (python string, prefix string){
		"a virtual environment that is active": func(t *testing.T, home string) (string, string) {
			t.Setenv("VIRTUAL_ENV", filepath.Join(home, "venv"))
			return "", filepath.Join(home, "venv", "lib")
		},
		"conda": func(t *testing.T, home string) (string, string) {
			t.Setenv("CONDA_PREFIX", filepath.Join(home, "conda"))
			return "", filepath.Join(home, "conda", "lib")
		},
		"lib64, as on Fedora": func(t *testing.T, home string) (string, string) {
			return filepath.Join(home, "bin", "python3"), filepath.Join(home, "lib64")
		},
		"pip install --user": func(t *testing.T, home string) (string, string) {
			return "", filepath.Join(home, ".local", "lib")
		},
		"pip install --user, elsewhere": func(t *testing.T, home string) (string, string) {
			t.Setenv("PYTHONUSERBASE", filepath.Join(home, "base"))
			return "", filepath.Join(home, "base", "lib")
		},
		"pyenv, by a shim": func(t *testing.T, home string) (string, string) {
			t.Setenv("PATH", filepath.Join(home, ".pyenv", "shims"))
			return filepath.Join(home, ".pyenv", "shims", "python3"), filepath.Join(home, ".pyenv", "versions", "3.12.1", "lib")
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := emptyMachine(t)
			python, prefix := machine(t, home)
			if python != "" {
				write(t, "", python)
			}
			file := write(t, "", prefix, "python3.12", "site-packages", "nvidia", "cublas", "lib", "libx.so.12")
			require.Contains(t, candidates("libx.so.", 13000), file)
		})
	}
}

// A python3 that is a link has the packages of its target, and a folder with two names is
// tried once.
func TestPythonThroughALink(t *testing.T) {
	home := emptyMachine(t)
	write(t, "", home, "opt", "bin", "python3")
	require.NoError(t, os.MkdirAll(filepath.Join(home, "bin"), 0o777))
	require.NoError(t, os.Symlink(filepath.Join(home, "opt", "bin", "python3"), filepath.Join(home, "bin", "python3")))
	file := write(t, "", home, "opt", "lib", "python3.12", "site-packages", "nvidia", "cublas", "lib", "libx.so.12")
	require.NoError(t, os.Symlink("lib", filepath.Join(home, "opt", "lib64")))
	require.Equal(t, []string{"libx.so.12", file}, candidates("libx.so.", 12080))
}

// The selected version of pyenv precedes the others.
func TestVersionsOfPyenv(t *testing.T) {
	home := emptyMachine(t)
	root := filepath.Join(home, ".pyenv")
	t.Setenv("PATH", filepath.Join(root, "shims"))
	write(t, "", root, "shims", "python3")
	library := func(version string) string {
		return write(t, "", root, "versions", version, "lib", "python3.12", "site-packages", "nvidia", "cublas", "lib", "libx.so.12")
	}
	first, second, third := library("3.10.1"), library("3.11.1"), library("3.12.1")
	require.Equal(t, []string{first, second, third}, candidates("libx.so.", 12080)[1:])
	write(t, "3.11.1\n", root, "version")
	require.Equal(t, []string{second, first, third}, candidates("libx.so.", 12080)[1:])
	t.Setenv("PYENV_VERSION", "3.12.1:3.10.1")
	require.Equal(t, []string{third, first, second}, candidates("libx.so.", 12080)[1:])
}

// Conda's CUDA packages are not Python packages.
func TestLibrariesOfConda(t *testing.T) {
	home := emptyMachine(t)
	t.Setenv("CONDA_PREFIX", home)
	library, nccl := write(t, "", home, "lib", "libx.so.12"), write(t, "", home, "lib", "libnccl.so.2")
	other := write(t, "", home, "targets", target(), "lib", "liby.so.12")
	require.Contains(t, candidates("libx.so.", 12080), library)
	require.Contains(t, ncclPaths(), nccl)
	require.Contains(t, candidates("liby.so.", 12080), other)
}
