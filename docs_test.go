package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents returns the text of each document for users, by file name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	list := map[string]string{}
	for _, name := range append(names, "README.md", "CONTRIBUTING.md", "build_tags.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		list[filepath.ToSlash(name)] = string(text)
	}
	require.Greater(t, len(list), 5)
	return list
}

var (
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links lead to files that exist, and to headings by the anchors that GitHub gives them.
func TestLinksOfDocuments(t *testing.T) {
	texts := documents(t)
	for name, text := range texts {
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			to, anchor := l[1], l[2]
			if strings.HasPrefix(to, "https:") {
				continue
			}
			target := name
			if to != "" {
				target = path.Join(path.Dir(name), to)
				_, err := os.Stat(target)
				require.NoError(t, err, name)
			}
			if anchor == "" {
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(texts[target], -1) {
				anchors = append(anchors, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
			}
			require.Contains(t, anchors, anchor, "%s: %s", name, l[0])
		}
	}
}

var (
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
	goTest   = regexp.MustCompile("go test ([^`\n]*)")
	packages = regexp.MustCompile(`\./[\w./]*`)
	pattern  = regexp.MustCompile(`-(?:run|bench) (?:'([^']*)'|(\S+))`)
	named    = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
)

// Documents name only tests that exist.
func TestTestsOfDocuments(t *testing.T) {
	tests := map[string][]string{} // by folder
	var all []string
	for _, file := range sourcesOf(t, "_test.go") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, f := range declared.FindAllStringSubmatch(string(text), -1) {
			dir := path.Dir(file)
			tests[dir] = append(tests[dir], f[1])
			all = append(all, f[1])
		}
	}
	commands := 0
	for name, text := range documents(t) {
		for _, command := range goTest.FindAllStringSubmatch(text, -1) {
			args := strings.ReplaceAll(command[1], `\|`, "|") // in a table
			run := pattern.FindStringSubmatch(args)
			if run == nil || run[1] == "^$" {
				continue
			}
			commands++
			wanted, err := regexp.Compile(run[1] + run[2])
			require.NoError(t, err, "%s: %s", name, command[0])
			for _, dir := range packages.FindAllString(args, -1) {
				dir, below := strings.CutSuffix(path.Clean(dir), "/...")
				found := false
				for folder, list := range tests {
					if folder == dir || below && strings.HasPrefix(folder, dir+"/") {
						found = found || slices.ContainsFunc(list, wanted.MatchString)
					}
				}
				require.True(t, found, "%s: %s: no such test in %s", name, command[0], dir)
			}
		}
		for _, test := range named.FindAllStringSubmatch(text, -1) {
			require.True(t, slices.Contains(all, test[1]), "%s: no test is called %s", name, test[1])
		}
	}
	require.Greater(t, commands, 30)
}

// The README's program trains.
func TestProgramOfTheReadme(t *testing.T) {
	_, rest, _ := strings.Cut(documents(t)["README.md"], "```go\n")
	program, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	const steps = "c.Train.Steps = 50"
	require.Contains(t, program, steps)
	program = strings.Replace(program, steps, "c.Train.Steps = 2", 1)

	// An overlay makes the program a package of this module, so that go fetches nothing.
	dir, err := os.Getwd()
	require.NoError(t, err)
	source, overlay := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(source, []byte(program), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "readme", "main.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	out, err := exec.Command("go", "run", "-buildvcs=false", "-overlay", overlay, "./readme").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^1 5\.\d{4}\n2 \d\.\d{4}\n$`, string(out))
}
