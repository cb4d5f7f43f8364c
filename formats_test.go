package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// formatNames are the constants of the formats that a recipe's rows can have.
var formatNames = []string{"E4M3", "E4M3IEEE", "E5M2", "E8M0", "E2M1", "E2M3", "E3M2", "INT8", "INT4"}

// namesFormats lists the files and folders outside fp8 that may name formats. All other
// code asks a format for its properties, so that another one is a row of fp8/format.go, or
// only a name.
var namesFormats = []string{
	// Tables.
	"recipe/table.go", "recipe/int8.go", "recipe/peers.go", "recipe/states.go", "recipe/scale.go", "internal/ptq/scheme.go",
	"backend/conformance/", "internal/bench/", "study/",
	// Devices: what they multiply, and the names that their libraries use.
	"backend/arith/", "backend/cuda/", "backend/gaudi/", "csrc/libcuda/cublaslt.go",
	"backend/emu/emu.go", "backend/ref/ref.go", // Spec.E4M3
	// Devices differ in E4M3, so recipes and checkpoints replace one variant by another.
	"recipe/device.go", "recipe/remedy.go", "nn/pack.go", "train/stored.go", "train/config_validate_precision.go", "checkpoint/tensors.go", "internal/export/",
	// Kernels for one combination of formats, beside those for any.
	"backend/emu/optimizer/codes.go",
	"internal/arrays/", // .npy has a type for INT8 alone
	// The device's E4M3 for a user's e4m3, and MX scales for GEMMs of codes.
	"internal/cli/gemm.go", "internal/gemm/gemm.go",
}

func TestFormatsAreNamedInTables(t *testing.T) {
	unused := slices.Clone(namesFormats)
	for _, file := range sourcesOf(t, ".go") {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "fp8/") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(formatNames, s.Sel.Name) {
				return true
			}
			if x, ok := s.X.(*ast.Ident); !ok || x.Name != "fp8" {
				return true
			}
			i := slices.IndexFunc(namesFormats, func(at string) bool { return strings.HasPrefix(file, at) })
			if i < 0 {
				t.Errorf("%s names fp8.%s: ask the format for the property that the code needs, or add the file to namesFormats", set.Position(s.Pos()), s.Sel.Name)
				return true
			}
			unused = slices.DeleteFunc(unused, func(at string) bool { return at == namesFormats[i] })
			return true
		})
	}
	require.Empty(t, unused, "no longer name a format: remove them from namesFormats")
}
