//go:build gaudi && cgo && linux && gaudi_headers

package libsynapse

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests of this file compare the package's declarations with Habana's own headers,
// from /usr/include/habanalabs or the folders in HABANA_INCLUDE. They need g++.
//
//	HABANA_INCLUDE=/path/to/headers go test -tags gaudi,gaudi_headers -run Headers ./csrc/libsynapse

func compile(t *testing.T, args ...string) {
	args = append(args, "-std=c++17", "-Wall", "-I.")
	for _, folder := range filepath.SplitList(cmp.Or(os.Getenv("HABANA_INCLUDE"), "/usr/include/habanalabs")) {
		args = append(args, "-isystem", folder)
	}
	out, err := exec.Command(cmp.Or(os.Getenv("CXX"), "g++"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	if len(out) > 0 {
		t.Logf("%s", out)
	}
}

func TestHeadersAgreeWithDeclarations(t *testing.T) {
	dir := t.TempDir()
	var statuses strings.Builder
	check := func(names map[int]string, guard string) {
		fmt.Fprintf(&statuses, "#if __has_include(%s)\n", guard)
		for code, name := range names {
			fmt.Fprintf(&statuses, "static_assert(%s == %d, \"%s\");\n", name, code, name)
		}
		fmt.Fprintln(&statuses, "#endif")
	}
	check(synStatus, "<synapse_api.h>")
	results := maps.Clone(hcclResult)
	delete(results, -1) // newer than the oldest headers
	delete(results, 16) // newer than the oldest headers
	check(results, "<hccl.h>")
	check(hlmlReturn, "<hlml.h>")
	for name, kind := range map[string]DataType{
		"int8": I8, "bf16": BF16, "float": F32, "int32": I32, "fp16": F16, "uint32": U32,
		"fp8_143": E4M3, "fp8_152": E5M2,
	} {
		fmt.Fprintf(&statuses, "static_assert(syn_type_%s == %d, \"%s\");\n", name, kind, name)
	}
	fmt.Fprintf(&statuses, "static_assert(synDeviceGaudi2 == %d && synDeviceGaudi3 == %d, \"devices\");\n", Gaudi2, Gaudi3)
	fmt.Fprintf(&statuses, "static_assert(SYN_MAX_TENSOR_DIM == %d && HABANA_DIM_MAX == %d, \"ranks\");\n", MaxRank, arrayLength)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "statuses.inc"), []byte(statuses.String()), 0o666))
	compile(t, "-fsyntax-only", "-I"+dir, "testdata/headers.cpp")
}

func TestHeadersAgreeWithParams(t *testing.T) {
	program := filepath.Join(t.TempDir(), "params")
	compile(t, "-o", program, "testdata/params.cpp")
	out, err := exec.Command(program).Output()
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		got[line[:at]] = line[at+1:]
	}
	want := map[string]string{}
	for name, params := range map[string][]byte{
		"gemm":           GemmParams(false, true),
		"cast":           CastParams(Stochastic),
		"reduction":      ReductionParams(5, true),
		"rmsnorm":        RMSNormParams(1e-6),
		"rmsnorm grad":   RMSNormGradParams(),
		"sdpa":           SdpaParams(0.125, true, true),
		"constant":       ConstantParams(-2),
		"gather":         GatherParams(1),
		"embedding grad": EmbeddingGradParams(50304),
		"axis":           AxisParams(2),
		"transpose":      TransposeParams([]int{2, 0, 1}),
		"slice":          SliceParams(1, 4, 1<<33),
	} {
		want[name] = hex.EncodeToString(params)
	}
	require.Equal(t, want, got)
}
