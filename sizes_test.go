package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	maxFileLines     = 500
	maxFunctionLines = 100
)

var inC = []string{".c", ".cpp", ".h", ".cu", ".cuh"}

func TestFilesAreShort(t *testing.T) {
	for _, suffix := range append([]string{".go", ".s"}, inC...) {
		files := sourcesOf(t, suffix)
		require.NotEmpty(t, files, suffix)
		for _, name := range files {
			require.LessOrEqual(t, strings.Count(read(t, name), "\n"), maxFileLines, "%s is too long: split it by subject", name)
		}
	}
}

// Tests may have longer functions, which are tables of cases.
func TestFunctionsAreShort(t *testing.T) {
	for _, name := range sourcesOf(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.FuncDecl, *ast.FuncLit:
				first := files.Position(n.Pos())
				lines := files.Position(n.End()).Line - first.Line + 1
				require.LessOrEqual(t, lines, maxFunctionLines, "%s: the function is too long: split it", first)
			}
			return true
		})
	}
	for _, suffix := range inC {
		for _, name := range sourcesOf(t, suffix) {
			functions, ok := functionsInC(read(t, name))
			require.True(t, ok, "%s: the braces are not balanced", name)
			for _, f := range functions {
				require.LessOrEqual(t, f.lines, maxFunctionLines, "%s:%d: the function is too long: split it", name, f.line)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// functionInC is a function's first line and its number of lines.
type functionInC struct{ line, lines int }

var (
	// notCode matches comments, literals and preprocessor lines.
	notCode = regexp.MustCompile(`(?ms)//.*?$|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\B'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|.)*?$`)
	// opensBody matches what precedes the brace of a function's body or a statement's block.
	opensBody = regexp.MustCompile(`\)\s*(?:(?:const|noexcept)\s*)*$`)
)

// functionsInC lists the outermost functions of C or C++ code, methods included. ok
// reports balanced braces.
func functionsInC(text string) (list []functionInC, ok bool) {
	code := notCode.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	line, depth, body := 1, 0, -1 // body is the depth outside the function
	for i, c := range code {
		switch c {
		case '\n':
			line++
		case '{':
			if body < 0 && opensBody.MatchString(code[max(0, i-40):i]) {
				body, list = depth, append(list, functionInC{line: line})
			}
			depth++
		case '}':
			if depth--; depth < 0 {
				return list, false
			}
			if depth == body {
				f := &list[len(list)-1]
				f.lines, body = line-f.line+1, -1
			}
		}
	}
	return list, depth == 0
}

func TestFunctionsInC(t *testing.T) {
	list, ok := functionsInC(`#define LOOP(n) for (;;) { \
	{
enum { A }; // {
static const char *brackets[] = {"{", "}\"{"}; /* {
{ */
struct S {
	char open() const { return '{'; }
	void two() const noexcept {
	}
};
namespace n {
template <class T> int f(T t) {
	if (t) {
		switch (1'000) { case '\'': return 1; }
	}
	auto g = [&](int) { return "}"; };
	return 0;
}
}
`)
	require.True(t, ok)
	require.Equal(t, []functionInC{{7, 1}, {8, 2}, {12, 7}}, list)
	for _, text := range []string{"int f() {", "}{"} {
		_, ok = functionsInC(text)
		require.False(t, ok)
	}
}

// included returns the paths of the files of this module that a C, CUDA or assembly file
// includes.
func included(t *testing.T, name string) (list []string) {
	for _, m := range includeLine.FindAllStringSubmatch(read(t, name), -1) {
		file := path.Join(path.Dir(name), m[1])
		if _, err := os.Stat(file); err == nil { // else the compiler's
			list = append(list, file)
		}
	}
	return list
}

var includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+"([^"]+)"`)

func TestIncludesHaveNoCircle(t *testing.T) {
	graph := map[string][]string{}
	for _, suffix := range append([]string{".s"}, inC...) {
		for _, name := range sourcesOf(t, suffix) {
			graph[name] = included(t, name)
		}
	}
	require.Contains(t, graph["csrc/libcuda/kernels/transpose.cuh"], "csrc/libcuda/kernels/formats.cuh")
	require.Empty(t, circle(graph), "these files include each other")

	require.Equal(t, []string{"b", "c", "b"}, circle(map[string][]string{"a": {"d", "b"}, "b": {"c"}, "c": {"b"}}))
}

// circle returns a path of a graph that ends where it begins, or nil.
func circle(graph map[string][]string) (found []string) {
	done := map[string]bool{}
	var visit func(name string, path []string) bool
	visit = func(name string, path []string) bool {
		if i := slices.Index(path, name); i >= 0 {
			found = append(path[i:], name)
			return true
		}
		if done[name] {
			return false
		}
		done[name] = true
		return slices.ContainsFunc(graph[name], func(next string) bool { return visit(next, append(path, name)) })
	}
	for _, name := range slices.Sorted(maps.Keys(graph)) {
		if visit(name, nil) {
			break
		}
	}
	return found
}
