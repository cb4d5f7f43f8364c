package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The licenses of a module are those of all its license files: in its root, and in and above the
// folders of its packages.
func TestLicensesOfAModule(t *testing.T) {
	mit := `MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`
	isc := "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided that the above copyright notice and this permission notice appear in all copies.\n\nTHE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.\n"
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"LICENSE": mit, "COPYING.second": isc, "NOTICE": "notice of the root\n", "license.go": "package x\n\n// no license\n",
		"a/LICENSE.txt": "license above a package\n", "a/b/Licence": "license of a package\n", "a/b/LICENSES/x": "not read\n", "other/LICENSE": "license of another package\n",
	})
	m := &module{}
	require.NoError(t, m.readLicenses(dir, []string{filepath.Join(dir, "a", "b"), dir}))
	require.Equal(t, "\nCOPYING.second:\n\n"+isc+"\nLICENSE:\n\n"+mit+"\nNOTICE:\n\nnotice of the root\n\na/LICENSE.txt:\n\nlicense above a package\n\na/b/Licence:\n\nlicense of a package\n", string(m.text))
	require.Equal(t, "ISC AND MIT", m.license())
	c := &contents{modules: []*module{{path: "a", version: "v1", text: []byte("\nLICENSE:\n\nx\n")}, {path: "b", version: "v2", licenses: []string{"MIT"}, text: []byte("\nLICENSE:\n\ny\n")}}}
	line := strings.Repeat("=", 80)
	require.Equal(t, "octet contains the Go standard library and these modules, under their licenses.\n\n"+
		line+"\na v1 (NOASSERTION)\n"+line+"\n\nLICENSE:\n\nx\n\n"+line+"\nb v2 (MIT)\n"+line+"\n\nLICENSE:\n\ny\n", string(c.licenses()))
	require.ErrorContains(t, (&module{}).readLicenses(t.TempDir(), nil), "has no license file")
}

// Archives, wheels and images have the whole license texts of the modules in their binaries.
func TestLicensesOfBinaries(t *testing.T) {
	dist(t)
	for _, p := range testTargets() {
		_, files := archiveOf(t, p)
		licenses := string(files["THIRD_PARTY_LICENSES"])
		for _, part := range []string{"Permission is hereby granted", "Apache License", "Redistribution and use in source and binary forms", "Copyright (c) 2016 Caleb Spare"} {
			require.Contains(t, licenses, part)
		}
		info, err := buildinfo.Read(bytes.NewReader(files[commandOf(p)]))
		require.NoError(t, err)
		folders := [][]string{{"env", "GOROOT"}}
		for _, d := range info.Deps {
			folders = append(folders, []string{"list", "-m", "-f", "{{.Dir}}", d.Path})
			require.Contains(t, licenses, "\n"+d.Path+" "+d.Version+" (")
		}
		require.Greater(t, len(folders), 10)
		for _, args := range folders {
			list := exec.Command("go", args...)
			list.Dir = "../.."
			out, err := list.Output()
			require.NoError(t, err)
			found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "[LC][IO][CP][EY][NI][SN][EG]*"))
			require.NoError(t, err)
			require.NotEmpty(t, found, args)
			for _, file := range found {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Contains(t, licenses, strings.TrimRight(string(text), "\n"), file)
			}
		}
		_, wheel := wheelOf(t, p)
		require.Equal(t, licenses, string(wheel[wheelRoot(p)+".dist-info/licenses/THIRD_PARTY_LICENSES"]))
		if p.os == "linux" {
			require.Equal(t, licenses, string(imageFiles(t, p)["usr/share/licenses/octet/THIRD_PARTY_LICENSES"]))
		}
	}
}
