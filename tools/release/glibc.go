package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// glibcVersion matches the version of a symbol, as in "GLIBC_2.34" and "GLIBC_2.2.5".
var glibcVersion = regexp.MustCompile(`^GLIBC_2\.(\d+)(\.\d+)?$`)

// glibcOf returns the second number of the oldest glibc that a command runs with.
func glibcOf(content []byte) (minor int, err error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return 0, err
	}
	var versions []string
	for _, library := range needs {
		for _, need := range library.Needs {
			versions = append(versions, need.Dep)
		}
	}
	return oldestGlibc(versions)
}

// oldestGlibc returns the second number of the oldest glibc with versions of symbols. A manylinux tag
// (PEP 600) also limits those of libstdc++ and libgcc, which the command does not use.
func oldestGlibc(versions []string) (minor int, err error) {
	for _, version := range versions {
		switch match := glibcVersion.FindStringSubmatch(version); {
		case version == "GLIBC_ABI_DT_RELR": // packed relocations
			minor = max(minor, 36)
		case match == nil:
			return 0, fmt.Errorf("the command needs symbols of version %s: expected those of glibc alone", version)
		default:
			n, err := strconv.Atoi(match[1])
			if err != nil {
				return 0, err
			}
			minor = max(minor, n)
		}
	}
	if minor < 17 {
		return 0, fmt.Errorf("the command needs glibc 2.%d: expected 2.17 or later, the oldest of Go and manylinux", minor)
	}
	return minor, nil
}

var (
	// libraryFolders are those in which Debian and Red Hat have the libraries of amd64.
	libraryFolders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"}
	// glibcLicenses are the license files of Debian, and of Red Hat, Arch and SUSE.
	glibcLicenses = []string{"/usr/share/doc/libc6/copyright", "/usr/share/licenses/glibc/*"}

	glibcLibrary  = regexp.MustCompile(`^(ld-linux-x86-64|lib(c|m|dl|pthread|rt|resolv|util))\.so\.\d$`)
	commonLicense = regexp.MustCompile(`/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]`)
	glibcRelease  = regexp.MustCompile(`GNU C Library \(([^)\n]*)\) \w+ release version (\d+\.\d+)`)
)

// glibcFiles returns the dynamic linker of a command, the shared libraries that it needs, with those
// that they need, and their licenses. The paths are those of this machine, in which the linker looks.
func glibcFiles(command string) (glibc *module, files []file, err error) {
	linker, err := interpreter(command)
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{path.Base(linker): true}
	paths := []string{linker}
	for waiting := []string{command}; len(waiting) > 0; waiting = waiting[1:] {
		needed, err := neededBy(waiting[0])
		if err != nil {
			return nil, nil, err
		}
		for _, library := range needed {
			if seen[library] {
				continue
			}
			seen[library] = true
			from, err := find(library)
			if err != nil {
				return nil, nil, err
			}
			paths, waiting = append(paths, from), append(waiting, from)
		}
	}
	glibc = &module{path: "glibc", version: "NOASSERTION", licenses: []string{"LGPL-2.1-or-later"}}
	if files, err = readFiles(paths, 0o755); err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if match := glibcRelease.FindSubmatch(f.content); match != nil {
			glibc.version = fmt.Sprintf("%s (%s)", match[2], match[1])
		}
	}
	licenses, err := licensesOfGlibc()
	return glibc, append(files, licenses...), err
}

// licensesOfGlibc returns the license files of this machine's glibc, and the texts that they name.
func licensesOfGlibc() ([]file, error) {
	var paths []string
	for _, pattern := range glibcLicenses {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("glibc's license is in none of %v: install it, or name a base image by -base", glibcLicenses)
	}
	files, err := readFiles(paths, 0o644)
	if err != nil {
		return nil, err
	}
	var named []string
	for _, f := range files {
		named = append(named, commonLicense.FindAllString(string(f.content), -1)...)
	}
	slices.Sort(named)
	texts, err := readFiles(slices.Compact(named), 0o644)
	return append(files, texts...), err
}

// readFiles reads files of this machine, for the same paths of an image.
func readFiles(paths []string, mode os.FileMode) (files []file, err error) {
	slices.Sort(paths)
	for _, from := range paths {
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: strings.TrimPrefix(from, "/"), content: content, mode: mode})
	}
	return files, nil
}

// interpreter returns the path of a command's dynamic linker.
func interpreter(command string) (string, error) {
	f, err := elf.Open(command)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			return string(bytes.TrimRight(text, "\x00")), err
		}
	}
	return "", errors.New("the command is static: it needs no base")
}

func neededBy(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}

func find(library string) (string, error) {
	if !glibcLibrary.MatchString(library) {
		return "", fmt.Errorf("the command needs %s, which is not of glibc: name a base image that has it by -base", library)
	}
	for _, folder := range libraryFolders {
		at := filepath.Join(folder, library)
		if _, err := os.Stat(at); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("the command needs %s, which is in none of %v: name a base image that has it by -base", library, libraryFolders)
}
