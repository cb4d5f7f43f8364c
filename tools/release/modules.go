package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is a Go module in a binary, or another part of an image.
type module struct {
	path, version string
	licenses      []string // their SPDX names
	text          []byte   // of the license files
}

// license returns the SPDX expression of a module's licenses.
func (m *module) license() string {
	if len(m.licenses) == 0 {
		return "NOASSERTION"
	}
	return strings.Join(m.licenses, " AND ")
}

// contents are what a binary contains, and its image.
type contents struct {
	*binary
	modules []*module // sorted by path
	image   []byte
	glibc   *module // in the image; nil without one
}

// contents returns a binary with its modules, from its build information.
func (s *source) contents(b *binary) (*contents, error) {
	info, err := buildinfo.Read(bytes.NewReader(b.content))
	if err != nil {
		return nil, err
	}
	root, folders, err := s.packages(b.target)
	if err != nil {
		return nil, err
	}
	c := &contents{binary: b, modules: []*module{{path: "std", version: strings.TrimPrefix(info.GoVersion, "go")}}}
	for _, d := range info.Deps {
		c.modules = append(c.modules, &module{path: d.Path, version: d.Version})
	}
	for _, m := range c.modules {
		if err := m.readLicenses(root[m.path], folders[m.path]); err != nil {
			return nil, fmt.Errorf("license of %s: %w", m.path, err)
		}
	}
	slices.SortFunc(c.modules, func(a, b *module) int { return cmp.Compare(a.path, b.path) })
	return c, nil
}

// packages returns the folder of each module in the command for a target, and the folders of the
// module's packages in it. Of the standard library, it returns the root alone.
func (s *source) packages(t target) (root map[string]string, folders map[string][]string, err error) {
	list := s.goCommand(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}", ".")
	out, err := list.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", withStderr(err))
	}
	root, folders = map[string]string{}, map[string][]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		if field := strings.Split(line, "\t"); len(field) == 3 {
			root[field[0]] = field[1]
			folders[field[0]] = append(folders[field[0]], field[2])
		}
	}
	if out, err = s.goCommand(t, "env", "GOROOT").Output(); err != nil {
		return nil, nil, fmt.Errorf("go env: %w", withStderr(err))
	}
	root["std"] = strings.TrimSpace(string(out))
	return root, folders, nil
}

// licenseFile matches the names of license files, as in "LICENSE", "LICENSE.md" and "COPYING".
var licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice)([-.].*)?$`)

// readLicenses reads the license files in a module's root, in folders of its packages, and between.
func (m *module) readLicenses(root string, folders []string) error {
	among := []string{root}
	for _, folder := range folders {
		for ; len(folder) > len(root); folder = filepath.Dir(folder) {
			among = append(among, folder)
		}
	}
	slices.Sort(among) // the root first
	for _, folder := range slices.Compact(among) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries { // sorted
			if e.IsDir() || filepath.Ext(e.Name()) == ".go" || !licenseFile.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			name := filepath.ToSlash(filepath.Join(strings.TrimPrefix(folder, root), e.Name()))
			m.text = fmt.Appendf(m.text, "\n%s:\n\n%s\n", strings.TrimPrefix(name, "/"), bytes.TrimRight(text, "\n"))
			for _, match := range licensecheck.Scan(text).Match {
				if !slices.Contains(m.licenses, match.ID) {
					m.licenses = append(m.licenses, match.ID)
				}
			}
		}
	}
	if m.text == nil {
		return fmt.Errorf("%s has no license file", root)
	}
	return nil
}

// licenses returns the license texts that a binary's modules require beside it.
func (c *contents) licenses() []byte {
	line := strings.Repeat("=", 80)
	var out bytes.Buffer
	fmt.Fprintf(&out, "octet contains the Go standard library and these modules, under their licenses.\n")
	for _, m := range c.modules {
		fmt.Fprintf(&out, "\n%s\n%s %s (%s)\n%s\n%s", line, m.path, m.version, m.license(), line, m.text)
	}
	return out.Bytes()
}
