package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

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

// spdx returns the modules of all binaries, and what images contain beside them, as an SPDX document in
// JSON.
func (s *source) spdx(all []*contents) ([]byte, error) {
	name := "octet-" + s.version
	d := &spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Created: spdxCreated{s.time.Format("2006-01-02T15:04:05Z"), []string{"Tool: octet-tools-release"}},
	}
	for _, m := range merged(all) {
		p := d.add(spdxID("Module", m.path), m.path, m.version)
		p.Declared = m.license()
		// A purl has golang's names in lower case, and no plus sign.
		version := strings.ReplaceAll(m.version, "+", "%2B")
		p.Refs = []spdxRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:golang/%s@%s", strings.ToLower(m.path), version)}}
	}
	for _, c := range all {
		binary := d.add(spdxID("Binary", c.String()), "octet "+c.String(), s.version).of(c.content).ID
		d.relate(d.ID, "DESCRIBES", binary)
		for _, m := range c.modules {
			d.relate(binary, "CONTAINS", spdxID("Module", m.path))
		}
		if c.image == nil {
			continue
		}
		image := d.add(spdxID("Image", c.String()), "octet image "+c.String(), s.version).of(c.image).ID
		d.relate(d.ID, "DESCRIBES", image)
		d.relate(image, "CONTAINS", binary)
		if c.glibc != nil {
			glibc := d.add(spdxID("Library", c.glibc.path), c.glibc.path, c.glibc.version)
			glibc.Declared = c.glibc.license()
			d.relate(image, "CONTAINS", glibc.ID)
		}
	}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	// Each content needs a namespace of its own.
	d.Namespace = fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", name, sha256.Sum256(content))
	return json.MarshalIndent(d, "", "  ")
}

// merged returns the modules of all binaries, sorted by path, with the licenses of all.
func merged(all []*contents) (list []*module) {
	known := map[string]*module{}
	for _, c := range all {
		for _, m := range c.modules {
			if known[m.path] == nil {
				known[m.path] = &module{path: m.path, version: m.version}
				list = append(list, known[m.path])
			}
			for _, license := range m.licenses {
				if !slices.Contains(known[m.path].licenses, license) {
					known[m.path].licenses = append(known[m.path].licenses, license)
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b *module) int { return cmp.Compare(a.path, b.path) })
	return list
}

// add adds a package with nothing asserted. It is valid until the next one is added.
func (d *spdxDocument) add(id, name, version string) *spdxPackage {
	const none = "NOASSERTION"
	d.Packages = append(d.Packages, spdxPackage{ID: id, Name: name, Version: version, Location: none, Concluded: none, Declared: none, Copyright: none})
	return &d.Packages[len(d.Packages)-1]
}

// of sets the checksum of a package's file.
func (p *spdxPackage) of(content []byte) *spdxPackage {
	p.Checksums = []spdxChecksum{{"SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}}
	return p
}

func (d *spdxDocument) relate(element, relation, related string) {
	d.Relationships = append(d.Relationships, spdxRelationship{element, relation, related})
}
