package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is a Go module in a binary, with its license.
type module struct {
	path, version string
	dir           string
	license       string // its SPDX name, or NOASSERTION
	text          []byte
}

// moduleList collects the modules of all binaries.
type moduleList struct {
	src      *source
	known    map[string]module // by path
	contents []contents
}

// contents are the modules of one binary.
type contents struct {
	binary  *binary
	modules []string // paths, sorted
}

// add reads the modules of a binary from its build information.
func (l *moduleList) add(b *binary) error {
	info, err := buildinfo.Read(bytes.NewReader(b.content))
	if err != nil {
		return err
	}
	c := contents{binary: b}
	need := func(path, version string) error {
		c.modules = append(c.modules, path)
		if _, ok := l.known[path]; ok {
			return nil
		}
		m := module{path: path, version: version}
		if err := l.license(&m); err != nil {
			return fmt.Errorf("license of %s: %w", path, err)
		}
		l.known[path] = m
		return nil
	}
	if err := need("std", strings.TrimPrefix(info.GoVersion, "go")); err != nil {
		return err
	}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		if err := need(d.Path, d.Version); err != nil {
			return err
		}
	}
	slices.Sort(c.modules)
	l.contents = append(l.contents, c)
	return nil
}

// licenseFile matches the names of license files, as in "LICENSE", "LICENSE.md" and "COPYING".
var licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying)([-.].*)?$`)

// license finds a module's license in its folder of the module cache.
func (l *moduleList) license(m *module) error {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", m.path)
	if m.path == "std" {
		list = exec.Command("go", "env", "GOROOT")
	}
	list.Dir = l.src.dir
	list.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		return withStderr(err)
	}
	m.dir = strings.TrimSpace(string(out))
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	m.license = "NOASSERTION"
	var names []string
	for _, e := range entries { // sorted
		if e.IsDir() || !licenseFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
		if err != nil {
			return err
		}
		m.text = append(m.text, text...)
		for _, match := range licensecheck.Scan(text).Match {
			if !slices.Contains(names, match.ID) {
				names = append(names, match.ID)
			}
		}
	}
	if m.text == nil {
		return fmt.Errorf("%s has no license file", m.dir)
	}
	if len(names) > 0 {
		m.license = strings.Join(names, " AND ")
	}
	return nil
}

// licenses returns the texts of the licenses of a binary's modules, which they require beside it.
func (l *moduleList) licenses(b *binary) []byte {
	i := slices.IndexFunc(l.contents, func(c contents) bool { return c.binary == b })
	var out bytes.Buffer
	fmt.Fprintf(&out, "octet contains the Go standard library and these modules, under their licenses.\n")
	for _, path := range l.contents[i].modules {
		m := l.known[path]
		fmt.Fprintf(&out, "\n%s\n%s %s (%s)\n%[1]s\n\n%s\n", strings.Repeat("=", 80), m.path, m.version, m.license, bytes.TrimSpace(m.text))
	}
	return out.Bytes()
}

// The parts of an SPDX 2.3 document that a list of modules needs.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Created       spdxCreated        `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreated struct {
		At string   `json:"created"`
		By []string `json:"creators"`
	}
	spdxPackage struct {
		ID        string         `json:"SPDXID"`
		Name      string         `json:"name"`
		Version   string         `json:"versionInfo"`
		Location  string         `json:"downloadLocation"`
		Analyzed  bool           `json:"filesAnalyzed"`
		Concluded string         `json:"licenseConcluded"`
		Declared  string         `json:"licenseDeclared"`
		Copyright string         `json:"copyrightText"`
		Checksums []spdxChecksum `json:"checksums,omitempty"`
		Refs      []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

var idForm = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func spdxID(kind, name string) string {
	return "SPDXRef-" + kind + "-" + idForm.ReplaceAllString(name, "-")
}

// spdx returns the modules of all binaries as an SPDX document in JSON.
func (l *moduleList) spdx() ([]byte, error) {
	const none = "NOASSERTION"
	name := "octet-" + l.src.version
	d := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://spdx.org/spdxdocs/" + name + "-" + l.src.revision,
		Created:   spdxCreated{l.src.time.Format("2006-01-02T15:04:05Z"), []string{"Tool: octet-tools-release"}},
	}
	for _, path := range slices.Sorted(maps.Keys(l.known)) {
		m := l.known[path]
		p := spdxPackage{ID: spdxID("Module", path), Name: path, Version: m.version, Location: none, Concluded: m.license, Declared: m.license, Copyright: none}
		p.Refs = []spdxRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:golang/%s@%s", path, m.version)}}
		d.Packages = append(d.Packages, p)
	}
	for _, c := range l.contents {
		id := spdxID("Binary", c.binary.String())
		sum := fmt.Sprintf("%x", sha256.Sum256(c.binary.content))
		d.Packages = append(d.Packages, spdxPackage{
			ID: id, Name: "octet " + c.binary.String(), Version: l.src.version, Location: none, Concluded: none, Declared: none, Copyright: none,
			Checksums: []spdxChecksum{{"SHA256", sum}},
		})
		d.Relationships = append(d.Relationships, spdxRelationship{d.ID, "DESCRIBES", id})
		for _, path := range c.modules {
			d.Relationships = append(d.Relationships, spdxRelationship{id, "CONTAINS", spdxID("Module", path)})
		}
	}
	return json.MarshalIndent(d, "", "  ")
}
