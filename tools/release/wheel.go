package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// wheel returns a target's wheel (PEP 427): the Python package, and the command as a script. The command
// with accelerators has a local version, since pip could not tell its wheel from the other one of its
// platform.
func (s *source) wheel(c *contents) (file, error) {
	version, err := pythonVersion(s.version)
	if err != nil {
		return file{}, err
	}
	if c.accelerators {
		version += "+accelerators"
	}
	tags, err := platformTags(c.binary)
	if err != nil {
		return file{}, err
	}
	root := "octet-" + version
	files, err := pythonFiles(filepath.Join(s.dir, "python", "octet"))
	if err != nil {
		return file{}, err
	}
	guide, err := os.ReadFile(filepath.Join(s.dir, "docs", "python.md"))
	if err != nil {
		return file{}, err
	}
	info := root + ".dist-info/"
	files = append(files,
		file{name: root + ".data/scripts/" + c.command(), content: c.content, mode: 0o755},
		file{name: info + "licenses/THIRD_PARTY_LICENSES", content: c.licenses(), mode: 0o644},
		file{name: info + "METADATA", content: metadata(version, string(guide)), mode: 0o644},
		file{name: info + "WHEEL", content: wheelFile(tags), mode: 0o644},
	)
	files = append(files, file{name: info + "RECORD", content: record(files, info+"RECORD"), mode: 0o644})
	content, err := zipOf(files, s.time)
	return file{name: fmt.Sprintf("%s-py3-none-%s.whl", root, strings.Join(tags, ".")), content: content}, err
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
		minor, err := glibcOf(b.content)
		return []string{fmt.Sprintf("manylinux_2_%d_%s", minor, arch)}, err
	}
	return []string{"manylinux2014_" + arch, "musllinux_1_1_" + arch}, nil
}

// pythonFiles returns the files of the Python package in a folder.
func pythonFiles(dir string) (files []file, err error) {
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		files = append(files, file{name: path.Join("octet", name), content: content, mode: 0o644})
		return err
	})
	return files, err
}

// relativeLink matches a link to another document of the repository.
var relativeLink = regexp.MustCompile(`\[([^\]]*)\]\([^):]*\)`)

// metadata returns the file METADATA of version 2.4 (PEP 639). The description is the guide, without
// the links that lead nowhere from a wheel.
func metadata(version, guide string) []byte {
	return fmt.Appendf(nil, `Metadata-Version: 2.4
Name: octet
Version: %s
Summary: Train large language models in FP8: the octet command and a Python package
License-File: THIRD_PARTY_LICENSES
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Provides-Extra: ml-dtypes
Requires-Dist: ml_dtypes>=0.5; extra == 'ml-dtypes'
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

%s`, version, relativeLink.ReplaceAllString(guide, "$1"))
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
