package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tagsOf are the platforms of the wheels; the accelerators' depends on glibc.
var tagsOf = map[string]string{
	"linux-amd64": "manylinux2014_x86_64.musllinux_1_1_x86_64", "linux-arm64": "manylinux2014_aarch64.musllinux_1_1_aarch64",
	"darwin-amd64": "macosx_12_0_x86_64", "darwin-arm64": "macosx_12_0_arm64",
	"windows-amd64": "win_amd64", "windows-arm64": "win_arm64",
	"linux-amd64-accelerators": "manylinux_2_*_x86_64",
}

func wheelRoot(p target) string {
	if p.accelerators {
		return "octet-0.1.2rc3+accelerators"
	}
	return "octet-0.1.2rc3"
}

func wheelPath(t *testing.T, p target) string {
	found, err := filepath.Glob(filepath.Join(dist(t), wheelRoot(p)+"-py3-none-"+tagsOf[p.String()]+".whl"))
	require.NoError(t, err)
	require.Len(t, found, 1, p)
	return found[0]
}

func wheelOf(t *testing.T, p target) (entries []entry, files map[string][]byte) {
	content, err := os.ReadFile(wheelPath(t, p))
	require.NoError(t, err)
	return unzip(t, content)
}

var anyLink = regexp.MustCompile(`\]\(([^)]*)\)`)

// markdownLinks returns the targets of a text's links within its folder.
func markdownLinks(text string) (list []string) {
	for _, match := range anyLink.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], ":") {
			list = append(list, match[1])
		}
	}
	return list
}

// A wheel has the Python package of the commit, the command and metadata.
func TestWheels(t *testing.T) {
	dist(t)
	at := testSource(t).time
	guide, err := os.ReadFile("../../docs/python.md")
	require.NoError(t, err)
	require.NotEmpty(t, markdownLinks(string(guide)))
	for _, p := range testTargets() {
		entries, files := wheelOf(t, p)
		root := wheelRoot(p)
		info := root + ".dist-info/"
		var want []entry
		require.NoError(t, filepath.WalkDir("../../python/octet", func(path string, e os.DirEntry, err error) error {
			if e.Name() == "__pycache__" || e.Name() == ".mypy_cache" {
				return filepath.SkipDir
			}
			if !e.IsDir() {
				want = append(want, entry{strings.TrimPrefix(filepath.ToSlash(path), "../../python/"), 0o644, 0, at})
				content, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, string(content), string(files[want[len(want)-1].name]))
			}
			return err
		}))
		want = append(
			want,
			entry{root + ".data/scripts/" + commandOf(p), 0o755, 0, at},
			entry{info + "licenses/THIRD_PARTY_LICENSES", 0o644, 0, at},
			entry{info + "METADATA", 0o644, 0, at}, entry{info + "WHEEL", 0o644, 0, at}, entry{info + "RECORD", 0o644, 0, at},
		)
		require.Equal(t, want, entries, p)

		head, description, _ := strings.Cut(string(files[info+"METADATA"]), "\n\n")
		require.Equal(t, `Metadata-Version: 2.4
Name: octet
Version: `+strings.TrimPrefix(root, "octet-")+`
Summary: Train large language models in FP8: the octet command and a Python package
License-File: THIRD_PARTY_LICENSES
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Provides-Extra: ml-dtypes
Requires-Dist: ml_dtypes>=0.5; extra == 'ml-dtypes'
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown`, head)
		require.Empty(t, markdownLinks(description))
		require.Equal(t, strings.Count(string(guide), "\n"), strings.Count(description, "\n"))

		wheel := "Wheel-Version: 1.0\nGenerator: octet tools/release\nRoot-Is-Purelib: false\n"
		tags := strings.TrimSuffix(strings.SplitAfter(filepath.Base(wheelPath(t, p)), "-py3-none-")[1], ".whl")
		for tag := range strings.SplitSeq(tags, ".") {
			wheel += "Tag: py3-none-" + tag + "\n"
		}
		require.Equal(t, wheel, string(files[info+"WHEEL"]))

		record := ""
		for _, e := range entries[:len(entries)-1] {
			sum := sha256.Sum256(files[e.name])
			record += fmt.Sprintf("%s,sha256=%s,%d\n", e.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[e.name]))
		}
		require.Equal(t, record+info+"RECORD,,\n", string(files[info+"RECORD"]))

		_, archived := archiveOf(t, p)
		require.True(t, bytes.Equal(archived[commandOf(p)], files[root+".data/scripts/"+commandOf(p)]))
	}
}

func TestDescriptionWithoutRelativeLinks(t *testing.T) {
	text := metadata("1.0", "# A\n\n[one](../one.md), [two](two.md#there), [three](#three), [four](https://example.com/4), `x[i]` (y: z)\n")
	_, description, _ := strings.Cut(string(text), "\n\n")
	require.Equal(t, "# A\n\none, two, three, [four](https://example.com/4), `x[i]` (y: z)\n", description)
}

// Static commands need no libc. The tag of the other one is the glibc that its symbols need.
func TestLibc(t *testing.T) {
	dist(t)
	for _, p := range testTargets() {
		if p.os != "linux" {
			continue
		}
		_, files := archiveOf(t, p)
		f, err := elf.NewFile(bytes.NewReader(files["octet"]))
		require.NoError(t, err)
		if !p.accelerators {
			needed, err := f.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, needed)
			continue
		}
		symbols, err := f.ImportedSymbols()
		require.NoError(t, err)
		oldest := 0
		for _, s := range symbols {
			if s.Version != "" {
				minor, err := strconv.Atoi(strings.Split(s.Version, ".")[1])
				require.NoError(t, err)
				oldest = max(oldest, minor)
			}
		}
		require.GreaterOrEqual(t, oldest, 17)
		require.Contains(t, wheelPath(t, p), fmt.Sprintf("-manylinux_2_%d_x86_64.whl", oldest))
	}
}

func TestOldestGlibc(t *testing.T) {
	for _, c := range []struct {
		versions []string
		minor    int
		err      string
	}{
		{[]string{"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"}, 34, ""},
		{[]string{"GLIBC_2.17"}, 17, ""},
		{[]string{"GLIBC_ABI_DT_RELR", "GLIBC_2.34"}, 36, ""},
		{nil, 0, "needs glibc 2.0: expected 2.17 or later"},
		{[]string{"GLIBC_2.14"}, 0, "needs glibc 2.14: expected 2.17 or later"},
		{[]string{"GLIBC_2.34", "GLIBCXX_3.4.29"}, 0, "needs symbols of version GLIBCXX_3.4.29"},
		{[]string{"GLIBC_2.34", "CXXABI_1.3"}, 0, "needs symbols of version CXXABI_1.3"},
		{[]string{"GLIBC_2.34", "GCC_3.0"}, 0, "needs symbols of version GCC_3.0"},
		{[]string{"GLIBC_2.34", "GLIBC_PRIVATE"}, 0, "needs symbols of version GLIBC_PRIVATE"},
	} {
		minor, err := oldestGlibc(c.versions)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.minor, minor)
	}
}
