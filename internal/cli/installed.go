package cli

import (
	"os"
	"path/filepath"
)

// Set by the linker in the binaries of a release, see tools/release.
var stampedVersion, stampedRevision string

// installed returns how this binary was installed, for octet doctor.
func installed() string {
	file, err := os.Executable()
	if err == nil {
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target
		}
	}
	return installedAs(file, os.Getenv("OCTET_IMAGE"))
}

// installedAs returns how the binary at file was installed; image is OCTET_IMAGE, which release images
// set.
func installedAs(file, image string) string {
	switch environment := pythonOf(file); {
	case image != "":
		return "container image " + image
	case environment != "":
		return "Python wheel in " + environment + ": update it with pip"
	case stampedVersion != "":
		return "archive of a release: " + file
	}
	return "built from source: " + file
}

// packageFolders are the folders of Python packages, from the one in which pip makes bin or Scripts:
// of Debian, Fedora and PyPy, of Windows without and with --user, and of --target.
var packageFolders = []string{
	"lib*/python*/site-packages", "lib*/python*/dist-packages", "lib/pypy*/site-packages",
	"Lib/site-packages", "site-packages", ".",
}

// pythonOf returns the Python environment whose wheel installed a command; empty if there is none.
func pythonOf(file string) string {
	environment := filepath.Dir(filepath.Dir(file))
	for _, packages := range packageFolders {
		found, _ := filepath.Glob(filepath.Join(environment, packages, "octet-*.dist-info")) // the pattern is valid
		if len(found) > 0 {
			return environment
		}
	}
	return ""
}
