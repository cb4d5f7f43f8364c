//go:build cuda && cgo && linux

package libcuda

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders returns the folders in which toolkits, conda and Python's packages install
// libraries, without duplicates, in search order.
func folders() (list []string) {
	if home := os.Getenv("CUDA_HOME"); home != "" {
		list = append(list, filepath.Join(home, "lib64"), filepath.Join(home, "lib"))
	}
	list = append(list, "/usr/local/cuda/lib64", filepath.Join("/usr/local/cuda/targets", target(), "lib"))
	if conda := os.Getenv("CONDA_PREFIX"); conda != "" {
		list = append(list, filepath.Join(conda, "lib"), filepath.Join(conda, "targets", target(), "lib"))
	}
	return slices.DeleteFunc(append(list, packages()...), repeated())
}

// repeated returns a function that reports whether it has seen a folder, by this name or
// through a link: lib64 may be a link to lib.
func repeated() func(string) bool {
	seen := map[string]bool{}
	return func(folder string) bool {
		if target, err := filepath.EvalSymlinks(folder); err == nil {
			folder = target
		}
		was := seen[folder]
		seen[folder] = true
		return was
	}
}

// target returns the toolkit's name of this CPU architecture.
func target() string {
	return map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[runtime.GOARCH]
}

// packages returns the folders into which pip installs NVIDIA's packages: on a machine
// with PyTorch, often the only copy. CUDA 13's libraries share the folder
// nvidia/cu13/lib; each of CUDA 12's, and NCCL, has its own. Fedora's Python also has
// packages in lib64.
func packages() (list []string) {
	for _, prefix := range pythons() {
		for _, lib := range []string{"lib", "lib64"} {
			found, _ := filepath.Glob(filepath.Join(prefix, lib, "python3*", "*-packages", "nvidia", "*", "lib")) // the pattern is valid
			list = append(list, found...)
		}
	}
	return list
}

// pythons returns the prefixes of a user's Pythons: the active environments, the first
// python3 of the PATH, Debian's folder of packages, and the user's own ("pip install
// --user").
func pythons() (prefixes []string) {
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if prefix := os.Getenv(name); prefix != "" {
			prefixes = append(prefixes, prefix)
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		prefixes = append(prefixes, prefixesOf(python)...)
	}
	prefixes = append(prefixes, "/usr/local")
	home, _ := os.UserHomeDir() // without a home, there is no such folder
	if base := cmp.Or(os.Getenv("PYTHONUSERBASE"), filepath.Join(home, ".local")); filepath.IsAbs(base) {
		prefixes = append(prefixes, base)
	}
	return prefixes
}

// prefixesOf returns the prefixes under which a python3 may have its packages. pyenv's
// python3 is a script, a shim, that selects a version.
func prefixesOf(python string) []string {
	bin := filepath.Dir(python)
	if filepath.Base(bin) == "shims" {
		return versions(filepath.Dir(bin))
	}
	list := []string{filepath.Dir(bin)}
	if target, err := filepath.EvalSymlinks(python); err == nil {
		list = append(list, filepath.Dir(filepath.Dir(target)))
	}
	return list
}

// versions returns the prefixes of pyenv's versions: first those that the environment or
// the user selected, then all, because each may have the libraries.
func versions(root string) (list []string) {
	chosen, _ := os.ReadFile(filepath.Join(root, "version")) // missing if no version is selected
	for _, v := range strings.FieldsFunc(os.Getenv("PYENV_VERSION")+":"+string(chosen), func(r rune) bool { return strings.ContainsRune(": \n", r) }) {
		list = append(list, filepath.Join(root, "versions", v))
	}
	all, _ := filepath.Glob(filepath.Join(root, "versions", "*")) // the pattern is valid
	return append(list, all...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
