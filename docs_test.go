package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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
	sourceFile = regexp.MustCompile("`(([a-z]+)/[\\w/]+\\.(?:go|s|c|cu))`")

	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links lead to files that exist, and to headings by the anchors that GitHub gives them.
// Source files in the text exist, if their top folder does.
func TestLinksOfDocuments(t *testing.T) {
	texts := documents(t)
	for name, text := range texts {
		for _, file := range sourceFile.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(file[2]); err == nil {
				_, err := os.Stat(file[1])
				require.NoError(t, err, name)
			}
		}
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

// Package comments name only source files of their package.
func TestFilesOfPackageComments(t *testing.T) {
	named := 0
	for _, name := range sourcesOf(t, "doc.go") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, file := range regexp.MustCompile(`\b\w+\.go\b`).FindAllString(string(text), -1) {
			named++
			_, err := os.Stat(filepath.Join(filepath.Dir(name), file))
			require.NoError(t, err, name)
		}
	}
	require.Greater(t, named, 10)
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
			test, _, _ := strings.Cut(run[1]+run[2], "/") // without subtests
			wanted, err := regexp.Compile(test)
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

// The programs of documents compile, and so do their fragments within a function.
func TestProgramsOfDocuments(t *testing.T) {
	programs := map[string]string{}
	for name, text := range documents(t) {
		for i, block := range goBlock.FindAllStringSubmatch(text, -1) {
			program := block[1]
			if !strings.Contains(program, "package main\n") {
				program = inFunction(t, program)
			}
			programs[fmt.Sprintf("%s-%d", strings.TrimSuffix(path.Base(name), ".md"), i)] = program
		}
	}
	require.Contains(t, programs, "step-0")
	require.Contains(t, programs, "README-1")
	goWith(t, programs, "build", "-buildvcs=false") // of several programs, go build discards the binaries
}

// The README's program trains.
func TestProgramOfTheReadme(t *testing.T) {
	program := goBlock.FindStringSubmatch(documents(t)["README.md"])
	require.NotNil(t, program)
	const steps = "c.Train.Steps = 50"
	require.Contains(t, program[1], steps)
	out := goWith(t, map[string]string{"readme": strings.Replace(program[1], steps, "c.Train.Steps = 2", 1)}, "run", "-buildvcs=false")
	require.Regexp(t, `^1 5\.\d{4}\n2 \d\.\d{4}\n$`, out)
}

var (
	goBlock   = regexp.MustCompile("(?s)```go\n(.*?)```")
	qualifier = regexp.MustCompile(`\b([a-z]\w*)\.[A-Z]`)
	assigned  = regexp.MustCompile(`(?m)^(\w+), err :?= `)
)

// inFunction makes a program of statements, which may use ctx. It imports the packages of
// this module and fmt as the statements need them.
func inFunction(t *testing.T, statements string) string {
	t.Helper()
	imports := map[string]bool{"context": true}
	for _, q := range qualifier.FindAllStringSubmatch(statements, -1) {
		if _, err := os.Stat(q[1]); err == nil {
			imports["octet/"+q[1]] = true
		} else if q[1] == "fmt" {
			imports[q[1]] = true
		}
	}
	program := "package main\n"
	for name := range imports {
		program += fmt.Sprintf("import %q\n", name)
	}
	program += "func main() {}\nfunc _(ctx context.Context) error {\n" + statements
	for _, a := range assigned.FindAllStringSubmatch(statements, -1) {
		program += "_ = " + a[1] + "\n"
	}
	return program + "return err\n}\n"
}

// goWith runs a go command on programs, each of which an overlay makes a package of this
// module, so that go fetches nothing.
func goWith(t *testing.T, programs map[string]string, args ...string) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	temp, replace := t.TempDir(), map[string]string{}
	overlay := filepath.Join(temp, "overlay.json")
	args = append(args, "-overlay", overlay)
	for name, program := range programs {
		source := filepath.Join(temp, name+".go")
		require.NoError(t, os.WriteFile(source, []byte(program), 0o600))
		replace[filepath.Join(dir, name, "main.go")] = source
		args = append(args, "./"+name)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	out, err := exec.Command("go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

var identifier = regexp.MustCompile("`([a-z0-9/]+)\\.([A-Z]\\w*)(?:\\.(\\w+))?[`(]")

// Documents name only declarations that exist: `nn.Pass.Open`.
func TestDeclarationsOfDocuments(t *testing.T) {
	declared := map[string]map[string]bool{} // by folder
	checked := 0
	for name, text := range documents(t) {
		for _, id := range identifier.FindAllStringSubmatch(text, -1) {
			dir := id[1]
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				continue
			}
			if declared[dir] == nil {
				declared[dir] = declarationsIn(t, dir)
			}
			checked++
			require.True(t, declared[dir][id[2]], "%s: %s: package %s does not declare %s", name, id[0], dir, id[2])
			if id[3] != "" {
				require.True(t, declared[dir][id[2]+"."+id[3]], "%s: %s: %s has no method or field %s", name, id[0], id[2], id[3])
			}
		}
	}
	require.Greater(t, checked, 20)
}

// declarationsIn returns the names that the package in dir declares: "Pass", "Pass.Open" for
// methods and fields.
func declarationsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if fn.Recv == nil {
					names[fn.Name.Name] = true
				} else {
					receiver := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")
					names[receiver+"."+fn.Name.Name] = true
				}
				continue
			}
			for _, spec := range d.(*ast.GenDecl).Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				case *ast.TypeSpec:
					names[s.Name.Name] = true
					ast.Inspect(s.Type, func(n ast.Node) bool {
						if f, ok := n.(*ast.Field); ok {
							for _, n := range f.Names {
								names[s.Name.Name+"."+n.Name] = true
							}
						}
						return true
					})
				}
			}
		}
	}
	return names
}
