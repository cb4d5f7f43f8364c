package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// floors are the packages of this module, the highest first. A package imports those of
// lower floors only: arithmetic does not know programs, programs do not know devices,
// and what trains knows nothing of the command.
var floors = [][]string{
	{"."},
	{"internal/cli", "backend/cuda/gpucheck"},
	// Nobody imports these, nor gpucheck: they are commands.
	{"study/adam", "study/aligned", "study/curves", "study/models", "study/paired", "study/spike"},
	{"internal/bench", "study/internal/start"},
	{"internal/run"},
	{"internal/adam", "internal/compare", "internal/config", "internal/export", "internal/inspect", "internal/spike", "internal/trial"},
	{"infer", "train"},
	{"nn", "backend/conformance", "backend/cuda/gorgonia", "internal/exporter", "internal/gemm"},
	{"backend/cuda", "backend/emu", "backend/gaudi", "backend/ref", "csrc/libcuda/kernels/usage"},
	{"backend", "backend/arith", "checkpoint", "csrc/libcuda", "csrc/libcuda/sass", "csrc/libsynapse", "data", "internal/writers", "recipe"},
	// These import nothing of ours.
	{
		"fp8", "safetensors", "backend/emu/simd", "csrc/dynlib", "csrc/libcuda/kernels", "csrc/standin",
		"csrc/standin/direct", "internal/disk", "internal/spelling", "study/internal/figure",
	},
}

func TestImportsPointDown(t *testing.T) {
	floorOf := map[string]int{}
	for i, floor := range floors {
		for _, name := range floor {
			floorOf[name] = i
		}
	}
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	module := strings.Fields(string(mod))[1] + "/"
	met := map[string]bool{}
	for _, name := range sourcesOf(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly) // whatever its build tags
		require.NoError(t, err)
		from := path.Dir(name)
		floor, ok := floorOf[from]
		require.True(t, ok, "package %s stands on no floor: give it one", from)
		met[from] = true
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			if to, ours := strings.CutPrefix(imported, module); ours {
				require.Greater(t, floorOf[to], floor, "%s imports %s, which is not below it", name, to)
			}
		}
	}
	for name := range floorOf {
		require.True(t, met[name], "there is no package %s", name)
	}
}

// sourcesOf are the files of this module whose names end so, with slashes.
func sourcesOf(t *testing.T, suffix string) (list []string) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, suffix) {
			list = append(list, name)
		}
		return err
	}))
	return list
}
