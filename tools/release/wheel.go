package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// wheel returns the name and the content of a target's wheel (PEP 427): the Python package, and the
// command as a script.
func (s *source) wheel(b *binary, licenses []byte) (name string, content []byte, err error) {
	version := s.pythonVersion(b.target)
	tags, err := platformTags(b)
	if err != nil {
		return "", nil, err
	}
	root := "octet-" + version
	files, err := pythonFiles(filepath.Join(s.dir, "python"))
	if err != nil {
		return "", nil, err
	}
	guide, err := os.ReadFile(filepath.Join(s.dir, "docs", "python.md"))
	if err != nil {
		return "", nil, err
	}
	info := root + ".dist-info/"
	files = append(files,
		file{root + ".data/scripts/" + b.command(), b.content, 0o755},
		file{info + "licenses/THIRD_PARTY_LICENSES", licenses, 0o644},
		file{info + "METADATA", metadata(version, guide), 0o644},
		file{info + "WHEEL", wheelFile(tags), 0o644},
	)
	files = append(files, file{info + "RECORD", record(files, info+"RECORD"), 0o644})
	content, err = zipOf(files, s.time)
	return fmt.Sprintf("%s-py3-none-%s.whl", root, strings.Join(tags, ".")), content, err
}

// pythonVersion returns the version as PEP 440 writes it: v0.2.0-rc.1 is 0.2.0rc1, and a commit
// without a tag 0.0.0.dev20261129115959. The command with accelerators has a local version, since pip
// could not tell it from the other one of its platform.
func (s *source) pythonVersion(t target) string {
	version, rest, _ := strings.Cut(strings.TrimPrefix(s.version, "v"), "-")
	kind, number, ok := strings.Cut(rest, ".")
	switch {
	case ok && slices.Contains([]string{"alpha", "beta", "rc"}, kind):
		version += map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[kind] + number
	case rest != "":
		version += ".dev" + s.time.Format("20060102150405")
	}
	if t.accelerators {
		version += "+accelerators"
	}
	return version
}

// platformTags returns the platforms of a wheel. Go's releases set the oldest macOS, and a static
// command runs with every libc.
func platformTags(b *binary) ([]string, error) {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[b.arch]
	switch {
	case b.os == "windows":
		return []string{"win_" + b.arch}, nil
	case b.os == "darwin" && b.arch == "arm64":
		return []string{"macosx_12_0_arm64"}, nil
	case b.os == "darwin":
		return []string{"macosx_12_0_" + arch}, nil
	case b.accelerators:
		minor, err := glibcMinor(b.content)
		return []string{fmt.Sprintf("manylinux_2_%d_%s", minor, arch)}, err
	}
	return []string{"manylinux2014_" + arch, "musllinux_1_1_" + arch}, nil
}

// glibcMinor returns the second number of the oldest glibc that has all symbols of a command.
func glibcMinor(content []byte) (minor int, err error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return 0, err
	}
	for _, symbol := range symbols {
		if text, ok := strings.CutPrefix(symbol.Version, "GLIBC_2."); ok {
			text, _, _ = strings.Cut(text, ".")
			n, err := strconv.Atoi(text)
			if err != nil {
				return 0, fmt.Errorf("symbol %s of version %s: %w", symbol.Name, symbol.Version, err)
			}
			minor = max(minor, n)
		}
	}
	return minor, nil
}

// pythonFiles returns the files of the Python package in a folder, without its tests.
func pythonFiles(dir string) (files []file, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "octet", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths { // sorted
		if ext := filepath.Ext(path); ext != ".py" && ext != ".typed" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{"octet/" + filepath.Base(path), content, 0o644})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no Python package", dir)
	}
	return files, nil
}

func metadata(version string, guide []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `Metadata-Version: 2.1
Name: octet
Version: %s
Summary: Octet trains large language models in FP8: the command, and its numbers in Python
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Provides-Extra: ml-dtypes
Requires-Dist: ml_dtypes>=0.5; extra == 'ml-dtypes'
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

`, version)
	b.Write(guide)
	return b.Bytes()
}

func wheelFile(tags []string) []byte {
	text := "Wheel-Version: 1.0\nGenerator: octet tools/release\nRoot-Is-Purelib: false\n"
	for _, tag := range tags {
		text += "Tag: py3-none-" + tag + "\n"
	}
	return []byte(text)
}

// record lists the files of a wheel with their checksums, itself without one.
func record(files []file, own string) []byte {
	var b bytes.Buffer
	for _, f := range files {
		sum := sha256.Sum256(f.content)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.content))
	}
	fmt.Fprintf(&b, "%s,,\n", own)
	return b.Bytes()
}
