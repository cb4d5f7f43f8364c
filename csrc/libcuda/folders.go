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

// folders are where toolkits, conda and Python's packages have libraries, each once, in
// the order in which they are tried.
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

// repeated says of a folder whether it was seen before, by this name or another: lib64 may
// be a link to lib.
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

// target is the toolkit's name for this processor.
func target() string {
	return map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[runtime.GOARCH]
}

// packages are where pip puts NVIDIA's packages: a machine that PyTorch was installed on
// has the libraries there, often there alone. Those of CUDA 13 share the folder
// nvidia/cu13/lib, each of CUDA 12, and NCCL, has one of its own. Fedora's Python has
// packages in lib64, too.
func packages() (list []string) {
	for _, prefix := range pythons() {
		for _, lib := range []string{"lib", "lib64"} {
			found, _ := filepath.Glob(filepath.Join(prefix, lib, "python3*", "*-packages", "nvidia", "*", "lib")) // of a good pattern
			list = append(list, found...)
		}
	}
	return list
}

// pythons are the prefixes of the Pythons that a user may mean: the environments that are
// active, the first python3 of the PATH, Debian's folder of packages, and the user's own
// ("pip install --user").
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
	home, _ := os.UserHomeDir() // where there is none, there is no such folder
	if base := cmp.Or(os.Getenv("PYTHONUSERBASE"), filepath.Join(home, ".local")); filepath.IsAbs(base) {
		prefixes = append(prefixes, base)
	}
	return prefixes
}

// prefixesOf are where a python3 may have its packages. pyenv's is a script, a shim, that
// chooses among versions.
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

// versions are the prefixes of pyenv's versions: those that the environment or the user
// chose, and then all, since any has the same libraries.
func versions(root string) (list []string) {
	chosen, _ := os.ReadFile(filepath.Join(root, "version")) // absent where no version was chosen
	for _, v := range strings.FieldsFunc(os.Getenv("PYENV_VERSION")+":"+string(chosen), func(r rune) bool { return strings.ContainsRune(": \n", r) }) {
		list = append(list, filepath.Join(root, "versions", v))
	}
	all, _ := filepath.Glob(filepath.Join(root, "versions", "*")) // of a good pattern
	return append(list, all...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
