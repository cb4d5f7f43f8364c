package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"
)

// Set by the linker in the binaries of a release, see tools/release.
var stampedVersion, stampedRevision string

// installed says how this binary came to this machine, for octet doctor.
func installed() string {
	file, err := os.Executable()
	if err == nil {
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target
		}
	}
	info, _ := debug.ReadBuildInfo()
	return installedAs(file, os.Getenv("OCTET_IMAGE"), info)
}

// installedAs is installed for the binary in a file, with the value of OCTET_IMAGE, which the
// images of a release set.
func installedAs(file, image string, info *debug.BuildInfo) string {
	switch environment := pythonOf(file); {
	case image != "":
		return "container image " + image
	case environment != "":
		return "Python wheel in " + environment + ": update it with pip"
	case stampedVersion != "":
		return "archive of a release: " + file
	case info != nil && info.Main.Version != "" && info.Main.Version[0] == 'v' && info.Main.Sum != "":
		return "go install: " + file
	}
	return "built from source: " + file
}

// pythonOf returns the Python environment whose wheel installed a command; empty if there is none. pip
// puts the command into bin or Scripts, and its records into site-packages beside it.
func pythonOf(file string) string {
	environment := filepath.Dir(filepath.Dir(file))
	for _, packages := range []string{"lib/python*/site-packages", "lib/python*/dist-packages", "Lib/site-packages"} {
		found, _ := filepath.Glob(filepath.Join(environment, packages, "octet-*.dist-info")) // the pattern is valid
		if len(found) > 0 {
			return environment
		}
	}
	return ""
}
