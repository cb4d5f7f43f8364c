package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// levels are the packages of this module, highest level first. A package imports only
// packages of lower levels: arithmetic does not depend on programs, programs do not
// depend on devices, and training does not depend on the command line.
var levels = [][]string{
	{"."},
	{"command"},
	{"internal/cli", "tools/gpucheck"},
	// These and gpucheck are commands, which no package imports.
	{"study/adam", "study/alarm", "study/aligned", "study/amplify", "study/attention", "study/domains", "study/emerge", "study/forecast", "study/growth", "study/models", "study/neuron", "study/outlier", "study/paper", "study/spike", "study/tasks"},
	{"internal/board", "study/internal/finding"},
	{"internal/bench", "internal/export", "internal/report", "internal/serve", "internal/sweep", "study/internal/start", "study/internal/weights"},
	{"run", "internal/runs"},
	{"internal/compare", "internal/config", "internal/dump", "internal/inspect", "internal/parity", "internal/ptq", "internal/spike", "internal/task", "internal/trial"},
	{"infer", "internal/quantize", "train"},
	{"nn", "backend/conformance", "backend/cuda/gorgonia", "internal/exporter", "internal/gemm", "internal/hostmem", "internal/launch"},
	{"backend/cuda", "backend/emu", "backend/gaudi", "backend/ref", "tools/kernelusage"},
	{"backend/emu/attention", "backend/emu/optimizer"},
	{"backend/emu/cast", "backend/emu/gemm"},
	{"backend/cost", "backend/emu/memory", "data/prepare"},
	{"backend", "backend/arith", "checkpoint", "csrc/libcuda", "csrc/libmpi", "csrc/libsynapse", "csrc/standin", "data", "internal/arrays", "internal/writers", "recipe", "backend/emu/pool"},
	{"fp8", "internal/disk/powercut", "internal/page"},
	// These import no package of this module.
	{
		"safetensors", "backend/emu/simd", "csrc/dynlib", "csrc/libcuda/kernels",
		"csrc/standin/direct", "internal/chart", "internal/disk", "internal/npy", "internal/parquet", "internal/spelling", "internal/stats", "backend/world", "tokenizer",
	},
}

func TestImportsPointDown(t *testing.T) {
	levelOf := map[string]int{}
	for i, level := range levels {
		for _, name := range level {
			levelOf[name] = i
		}
	}
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	module := strings.Fields(string(mod))[1] + "/"
	found := map[string]bool{}
	for _, name := range sourcesOf(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		from := path.Dir(name)
		level, ok := levelOf[from]
		require.True(t, ok, "package %s has no level: add it to levels", from)
		found[from] = true
		for _, imported := range importsOf(t, name) {
			if to, ours := strings.CutPrefix(imported, module); ours {
				require.Greater(t, levelOf[to], level, "%s imports %s, which is not on a lower level", name, to)
			}
		}
	}
	for name := range levelOf {
		require.True(t, found[name], "levels lists %s, which does not exist", name)
	}
}

// modulesOfTheCommand are the modules that the command may link, with any tags. Every
// user runs their code: check the security advisories of a module before adding it.
var modulesOfTheCommand = []string{
	"octet",
	"github.com/BurntSushi/toml",
	"github.com/NVIDIA/go-nvml",
	"github.com/alecthomas/kong",
	"github.com/andybalholm/brotli",
	"github.com/gofrs/flock",
	"github.com/google/uuid",
	"github.com/klauspost/compress",
	"github.com/parquet-go/bitpack",
	"github.com/parquet-go/jsonlite",
	"github.com/parquet-go/parquet-go",
	"github.com/pierrec/lz4/v4",
	"github.com/twpayne/go-geom",
	"golang.org/x/sync",
	"golang.org/x/sys",
	"golang.org/x/term",
	"golang.org/x/text",
	"google.golang.org/protobuf",
}

func TestModulesOfTheCommand(t *testing.T) {
	for _, tags := range []string{"", "cuda", "gaudi", "mpi", "cuda,gaudi,mpi"} {
		out, err := exec.Command("go", "list", "-deps", "-tags", tags, "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
		require.NoError(t, err)
		modules := strings.Fields(string(out))
		require.Contains(t, modules, "github.com/alecthomas/kong")
		require.Subset(t, modulesOfTheCommand, modules, "the command links another module with tags %q", tags)
	}
}

// An import must not take over the process: no init function exits, starts a process or
// waits for one.
func TestInitFunctionsStartNothing(t *testing.T) {
	forbidden := map[string]bool{"os.Exit": true, "os.StartProcess": true, "syscall.Exec": true, "log.Fatal": true, "signal.Ignore": true, "signal.Notify": true}
	found := 0
	for _, name := range sourcesOf(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Name.Name != "init" {
				continue
			}
			found++
			ast.Inspect(fn, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok {
						require.False(t, forbidden[x.Name+"."+s.Sel.Name] || x.Name == "exec", "%s: init uses %s.%s: give the program a function to call in main", name, x.Name, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
	require.Positive(t, found)
}

// moduleNames are the names of modules in checkpoints of Hugging Face's Llama.
var moduleNames = regexp.MustCompile(`\b(q|k|v|o|up|gate|down)_proj\b|self_attn|lm_head|embed_tokens|_layernorm`)

// mayNameModules are the folders and files whose code may: a model's layers, formats of
// files, and quantization of such files. recipe/table.go describes recipes to users.
var mayNameModules = regexp.MustCompile(`^(nn|checkpoint|internal/export|internal/ptq|study)/|^(recipe/table|internal/cli/(export|quantize|dump))\.go$`)

// Layers declare what they are for (nn.Base.Linears, nn.Base.PartOf), so that other code
// works for any model. The scope of a recipe's row is data, and a struct tag is
// documentation.
func TestLayersAloneNameModules(t *testing.T) {
	found := 0
	for _, name := range sourcesOf(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				n.Tag = nil
			case *ast.KeyValueExpr:
				key, ok := n.Key.(*ast.Ident)
				return !ok || key.Name != "Scope"
			case *ast.BasicLit:
				if n.Kind == token.STRING && moduleNames.MatchString(n.Value) {
					found++
					require.Regexp(t, mayNameModules, name, "%s: %s names a module: ask the model", files.Position(n.Pos()), n.Value)
				}
			}
			return true
		})
	}
	require.Positive(t, found)
}

// importsOf returns the import paths of a source file, whatever its build tags.
func importsOf(t *testing.T, name string) (list []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
	require.NoError(t, err)
	for _, i := range file.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		list = append(list, imported)
	}
	return list
}

// sourcesOf returns the files of this module with a suffix. Their paths have slashes. The
// folders of example/, tools/browser, tools/release and deploy are modules of their own.
func sourcesOf(t *testing.T, suffix string) (list []string) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if name == "example" || name == "tools/browser" || name == "tools/release" || name == "deploy" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(name, suffix) {
			list = append(list, name)
		}
		return err
	}))
	return list
}
