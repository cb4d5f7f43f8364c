package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// namespace is that of a document, but for the checksum of its content.
var namespace = regexp.MustCompile(`https://spdx\.org/spdxdocs/octet-[\w.-]+-[0-9a-f]{64}"`)

func TestSPDXText(t *testing.T) {
	s := &source{version: "v1.2.3", revision: "abc", time: time.Date(2026, 11, 29, 1, 2, 3, 0, time.UTC)}
	c := &contents{
		binary:  &binary{target: target{"linux", "amd64", true}, content: []byte("command")},
		modules: []*module{{path: "example.com/Upper/m_1", version: "v2.0.0+incompatible", licenses: []string{"MIT", "ISC"}}, {path: "std", version: "1.26.0"}},
		image:   []byte("image"),
		glibc:   &module{path: "glibc", version: "2.36", licenses: []string{"LGPL-2.1-or-later"}},
	}
	text, err := s.spdx([]*contents{c})
	require.NoError(t, err)
	packages := func(id, name, version, declared, more string) string {
		return strings.NewReplacer("{id}", id, "{name}", name, "{version}", version, "{declared}", declared).Replace(`    {
      "SPDXID": "SPDXRef-{id}",
      "name": "{name}",
      "versionInfo": "{version}",
      "downloadLocation": "NOASSERTION",
      "filesAnalyzed": false,
      "licenseConcluded": "NOASSERTION",
      "licenseDeclared": "{declared}",
      "copyrightText": "NOASSERTION"`) + more + "\n    }"
	}
	purl := func(text string) string {
		return `,
      "externalRefs": [
        {
          "referenceCategory": "PACKAGE-MANAGER",
          "referenceType": "purl",
          "referenceLocator": "` + text + `"
        }
      ]`
	}
	sum := func(text string) string {
		return `,
      "checksums": [
        {
          "algorithm": "SHA256",
          "checksumValue": "` + fmt.Sprintf("%x", sha256.Sum256([]byte(text))) + `"
        }
      ]`
	}
	relation := func(a, relation, b string) string {
		return fmt.Sprintf("    {\n      \"spdxElementId\": \"SPDXRef-%s\",\n      \"relationshipType\": \"%s\",\n      \"relatedSpdxElement\": \"SPDXRef-%s\"\n    }", a, relation, b)
	}
	want := `{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "octet-v1.2.3",
  "documentNamespace": "NAMESPACE",
  "creationInfo": {
    "created": "2026-11-29T01:02:03Z",
    "creators": [
      "Tool: octet-tools-release"
    ]
  },
  "packages": [
` + strings.Join([]string{
		packages("Module-example.com-Upper-m-1", "example.com/Upper/m_1", "v2.0.0+incompatible", "MIT AND ISC", purl("pkg:golang/example.com/upper/m_1@v2.0.0%2Bincompatible")),
		packages("Module-std", "std", "1.26.0", "NOASSERTION", purl("pkg:golang/std@1.26.0")),
		packages("Binary-linux-amd64-accelerators", "octet linux-amd64-accelerators", "v1.2.3", "NOASSERTION", sum("command")),
		packages("Image-linux-amd64-accelerators", "octet image linux-amd64-accelerators", "v1.2.3", "NOASSERTION", sum("image")),
		packages("Library-glibc", "glibc", "2.36", "LGPL-2.1-or-later", ""),
	}, ",\n") + `
  ],
  "relationships": [
` + strings.Join([]string{
		relation("DOCUMENT", "DESCRIBES", "Binary-linux-amd64-accelerators"),
		relation("Binary-linux-amd64-accelerators", "CONTAINS", "Module-example.com-Upper-m-1"),
		relation("Binary-linux-amd64-accelerators", "CONTAINS", "Module-std"),
		relation("DOCUMENT", "DESCRIBES", "Image-linux-amd64-accelerators"),
		relation("Image-linux-amd64-accelerators", "CONTAINS", "Binary-linux-amd64-accelerators"),
		relation("Image-linux-amd64-accelerators", "CONTAINS", "Library-glibc"),
	}, ",\n") + `
  ]
}`
	require.Equal(t, want, namespace.ReplaceAllString(string(text), `NAMESPACE"`))

	// Another content has another namespace, the same content the same one.
	again, err := s.spdx([]*contents{c})
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	c.content = []byte("other")
	other, err := s.spdx([]*contents{c})
	require.NoError(t, err)
	require.NotEqual(t, namespace.FindString(string(text)), namespace.FindString(string(other)))
}

// The licenses of a module are those in all binaries.
func TestMergedModules(t *testing.T) {
	merged := merged([]*contents{
		{modules: []*module{{path: "b", version: "v1", licenses: []string{"MIT"}}}},
		{modules: []*module{{path: "a", version: "v2"}, {path: "b", version: "v1", licenses: []string{"ISC", "MIT"}}}},
	})
	require.Equal(t, []*module{{path: "a", version: "v2"}, {path: "b", version: "v1", licenses: []string{"MIT", "ISC"}}}, merged)
}

// The document of a release has the fields that SPDX 2.3 requires, in their forms.
func TestSPDX(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(dist(t), "octet-"+testVersion+".spdx.json"))
	require.NoError(t, err)
	require.Regexp(t, `"documentNamespace": "`+namespace.String(), string(text))
	var d struct {
		SPDXVersion, DataLicense, SPDXID, Name, DocumentNamespace string
		CreationInfo                                              struct {
			Created  string
			Creators []string
		}
		Packages      []map[string]any
		Relationships []map[string]string
	}
	require.NoError(t, json.Unmarshal(text, &d))
	require.Equal(t, []string{"SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT", "octet-" + testVersion}, []string{d.SPDXVersion, d.DataLicense, d.SPDXID, d.Name})
	require.Equal(t, testSource(t).time.Format("2006-01-02T15:04:05Z"), d.CreationInfo.Created)
	require.Regexp(t, `^(Tool|Person|Organization): .`, d.CreationInfo.Creators[0])
	ids := map[string]map[string]any{"SPDXRef-DOCUMENT": nil}
	for _, p := range d.Packages {
		id := p["SPDXID"].(string)
		require.Regexp(t, `^SPDXRef-[A-Za-z0-9.-]+$`, id)
		require.NotContains(t, ids, id)
		ids[id] = p
		for _, required := range []string{"name", "downloadLocation", "versionInfo", "copyrightText"} {
			require.NotEmpty(t, p[required], "%s %s", id, required)
		}
		require.Equal(t, false, p["filesAnalyzed"]) // so that no verification code is required
		require.Equal(t, "NOASSERTION", p["licenseConcluded"], id)
		switch {
		case strings.HasPrefix(id, "SPDXRef-Module-"):
			require.Regexp(t, `^[A-Z][\w.-]+( AND [A-Z][\w.-]+)*$`, p["licenseDeclared"])
			require.NotEqual(t, "NOASSERTION", p["licenseDeclared"], id)
			ref := p["externalRefs"].([]any)[0].(map[string]any)
			require.Equal(t, "PACKAGE-MANAGER purl", fmt.Sprint(ref["referenceCategory"], " ", ref["referenceType"]))
			require.Regexp(t, `^pkg:golang/[a-z0-9./_-]+@[\w.%-]+$`, ref["referenceLocator"])
		case id == "SPDXRef-Library-glibc":
			require.Equal(t, "LGPL-2.1-or-later", p["licenseDeclared"])
			require.Regexp(t, `^2\.\d+ \(.+\)$`, p["versionInfo"])
		default:
			require.Equal(t, "NOASSERTION", p["licenseDeclared"], id) // Octet has no license file
			checksum := p["checksums"].([]any)[0].(map[string]any)
			require.Equal(t, "SHA256", checksum["algorithm"])
			require.Regexp(t, `^[0-9a-f]{64}$`, checksum["checksumValue"])
		}
	}
	related := map[string]bool{}
	for _, r := range d.Relationships {
		require.Contains(t, ids, r["spdxElementId"])
		require.Contains(t, ids, r["relatedSpdxElement"])
		require.Contains(t, []string{"DESCRIBES", "CONTAINS"}, r["relationshipType"])
		related[strings.ReplaceAll(r["spdxElementId"]+" "+r["relatedSpdxElement"], "SPDXRef-", "")] = true
	}
	require.Equal(t, "MIT", ids["SPDXRef-Module-github.com-alecthomas-kong"]["licenseDeclared"])
	require.Equal(t, "BSD-3-Clause", ids["SPDXRef-Module-std"]["licenseDeclared"])
	for _, p := range testTargets() {
		require.True(t, related["DOCUMENT Binary-"+p.String()])
		require.True(t, related["Binary-"+p.String()+" Module-github.com-alecthomas-kong"])
		require.Equal(t, p.accelerators, related["Binary-"+p.String()+" Module-github.com-NVIDIA-go-nvml"])
		require.Equal(t, p.os == "linux", related["Image-"+p.String()+" Binary-"+p.String()])
		require.Equal(t, p.accelerators, related["Image-"+p.String()+" Library-glibc"])
	}
}
