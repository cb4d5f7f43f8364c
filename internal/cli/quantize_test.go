package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/npy"
	"octet/safetensors"
)

// npyFile writes a file of small powers of two in FP32, all representable in four bits with
// a scale, and returns its path.
func npyFile(t *testing.T, path string, rows, cols int) string {
	t.Helper()
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = []float32{0.5, -1, 2, 4, 0}[i%5]
	}
	var b bytes.Buffer
	require.NoError(t, npy.Write(&b, npy.Array{DType: npy.Float32, Shape: []int{rows, cols}, Data: fp8.AppendFloats(nil, x...)}))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func TestQuantize(t *testing.T) {
	dir := t.TempDir()
	w := npyFile(t, filepath.Join(dir, "w.npy"), 2, 20)
	out, _ := succeed(t, "quantize", w, "--format", "e2m1")
	require.Equal(t, `tensor     w: float32 [2 20], amax 4
cast       e2m1 tensor pow2 nearest, 4.8 bits per element
error      relative 0, SQNR no error
elements   0% saturated, 0% flushed to zero
scale_inv  2^0
  0           20%  ##################################################
  0.5         20%  ##################################################
  1           20%  ##################################################
  1.5          0%
  2           20%  ##################################################
  3            0%
  4           20%  ##################################################
`, out)
	out, _ = succeed(t, "quantize", w, "--format", "e2m1", "--granularity", "1x16", "--scale", "e4m3+fp32", "--json")
	var q quantized
	require.NoError(t, json.Unmarshal([]byte(out), &q))
	require.Equal(t, [2]int{2, 20}, q.Shape)
	require.Equal(t, []any{"e2m1", "1x16", "e4m3+fp32", "nearest", 4}, []any{q.Format, q.Granularity, q.Scale, q.Rounding, q.Blocks})
	require.EqualValues(t, 448, q.ScaleInvMax)
	require.NotNil(t, q.Outer)

	for _, out := range []string{w, filepath.Join(dir, "./w.npy")} {
		status, _, stderr := octet("quantize", w, "--format", "e2m1", "--out", out)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, "w.npy is the input: name another file")
	}

	file := filepath.Join(dir, "q.safetensors")
	succeed(t, "quantize", w, "--format", "e2m1", "--granularity", "1x10", "--scale", "e8m0", "--out", file)
	f, err := safetensors.Open(file)
	require.NoError(t, err)
	defer f.Close()
	codes, _ := f.Tensor("w")
	scale, _ := f.Tensor("w.scale_inv")
	require.Equal(t, []string{"F4", "F8_E8M0"}, []string{codes.DType, scale.DType})
	require.Equal(t, []int64{2, 2}, scale.Shape)
	succeed(t, "quantize", w, "--format", "e2m1", "--granularity", "1x10", "--scale", "e4m3+fp32", "--out", filepath.Join(dir, "nvfp4.safetensors"))
	for _, args := range [][]string{{file}, {file, "--tensor", "w"}, {filepath.Join(dir, "nvfp4.safetensors")}} {
		status, stdout, stderr := octet(append([]string{"quantize", "--format", "e4m3"}, args...)...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, ".safetensors: w is quantized already: give the values that it was cast from\n")
	}

	succeed(t, "quantize", w, "--format", "int8", "--granularity", "row", "--scale", "fp32", "--out", filepath.Join(dir, "q.npy"))
	a, err := npy.ReadFile(filepath.Join(dir, "q.npy"))
	require.NoError(t, err)
	require.Equal(t, []byte{16, 0xe0, 64, 127, 0}, a.Data[:5], "127/4 of 0.5, -1, 2, 4 and 0")
	a, err = npy.ReadFile(filepath.Join(dir, "q.scale_inv.npy"))
	require.NoError(t, err)
	require.Equal(t, npy.Float32, a.DType)
	require.Equal(t, []int{2, 1}, a.Shape)

	// Both tensors of a safetensors file, and one.
	two := filepath.Join(dir, "two.safetensors")
	var b bytes.Buffer
	source := func(name string) safetensors.Source {
		return safetensors.Source{Name: name, DType: "F32", Shape: []int64{2}, Data: safetensors.Bytes(fp8.AppendFloats(nil, 1, 3))}
	}
	require.NoError(t, safetensors.Write(&b, []safetensors.Source{source("a"), source("b")}, nil))
	require.NoError(t, os.WriteFile(two, b.Bytes(), 0o600))
	out, _ = succeed(t, "quantize", two, "--format", "e5m2")
	require.Equal(t, 2, strings.Count(out, "amax 3"))
	out, _ = succeed(t, "quantize", two, "--format", "e5m2", "--tensor", "b")
	require.Equal(t, 1, strings.Count(out, "amax 3"))

	for want, args := range map[string][]string{
		"missing flags: --format":                                 {w},
		"--format bf16: expected a format of up to":               {w, "--format", "bf16"},
		`--format: unknown number format "e9m9"`:                  {w, "--format", "e9m9"},
		`--granularity: unknown granularity "3"`:                  {w, "--format", "e4m3", "--granularity", "3"},
		"--granularity: it is empty":                              {w, "--format", "e4m3", "--granularity", ""},
		"--scale: unknown scale format":                           {w, "--format", "e4m3", "--scale", "e9"},
		"--rounding: unknown rounding":                            {w, "--format", "e4m3", "--rounding", "up"},
		"is a format of block scales":                             {w, "--format", "e4m3", "--scale", "e8m0"},
		"name ends in .npy or .safetensors":                       {"w.txt", "--format", "e4m3"},
		"--out: q.bin: expected":                                  {w, "--format", "e4m3", "--out", "q.bin"},
		"none.npy: no such file":                                  {"none.npy", "--format", "e4m3"},
		"matches c":                                               {two, "--format", "e4m3", "--tensor", "c"},
		"several matrices, a .npy file holds one":                 {two, "--format", "e4m3", "--out", filepath.Join(dir, "x.npy")},
		"odd: rows of 3 elements: a byte holds two codes of e2m1": {npyFile(t, filepath.Join(dir, "odd.npy"), 2, 3), "--format", "e2m1"},
	} {
		status, stdout, stderr := octet(append([]string{"quantize"}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Contains(t, stderr, want)
		if args[0] != two {
			require.Empty(t, stdout)
		}
	}
}

// octet quantize names values that are not finite.
// The codes are those of the device: its E4M3.
func TestQuantizeOnADevice(t *testing.T) {
	w := npyFile(t, filepath.Join(t.TempDir(), "w.npy"), 2, 20)
	out, _ := succeed(t, "quantize", w, "--format", "e4m3", "--backend", "emu:gaudi2")
	require.Contains(t, out, "cast       e4m3ieee tensor")
}

func TestQuantizeNotFinite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.npy")
	var b bytes.Buffer
	values := []float32{1, 2, 3, 4, float32(math.Inf(-1)), 5, float32(math.NaN()), float32(math.NaN())}
	require.NoError(t, npy.Write(&b, npy.Array{DType: npy.Float32, Shape: []int{2, 4}, Data: fp8.AppendFloats(nil, values...)}))
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	out, _ := succeed(t, "quantize", file, "--format", "e4m3")
	require.Contains(t, out, "not finite  2 NaN, 1 infinite, the first at [1 0]")
	out, _ = succeed(t, "quantize", file, "--format", "e4m3", "--json")
	require.Contains(t, out, `"nan":2,"infinite":1,"first_not_finite":[1,0]`)
}

// octet gemm casts the values of .npy files, multiplies them with their scales, and writes
// .npy files.
func TestGemmOfValues(t *testing.T) {
	dir := t.TempDir()
	a, b := npyFile(t, filepath.Join(dir, "a.npy"), 2, 20), npyFile(t, filepath.Join(dir, "b.npy"), 3, 20)
	want := strings.Repeat("85 85 85\n", 2) // 4 (0.25 + 1 + 4 + 16): the casts are exact
	for _, args := range [][]string{
		{"--formats", "e2m1,e2m1"},
		{"--formats", "e2m1,e2m3", "--granularity", "1x10", "--scale", "e8m0"},
		{"--formats", "e4m3,e5m2", "--backend", "emu:h100"},
	} {
		out, _ := succeed(t, append([]string{"gemm", a, b}, args...)...)
		require.Equal(t, want, out, args)
	}
	out, _ := succeed(t, "gemm", a, b, "--json")
	require.Contains(t, out, `"m":2,"n":3,"k":20,"values":[85,`)
	c := filepath.Join(dir, "c.npy")
	out, _ = succeed(t, "gemm", a, b, "--out", c)
	require.Empty(t, out)
	got, err := npy.ReadFile(c)
	require.NoError(t, err)
	require.Equal(t, npy.Array{DType: npy.Float32, Shape: []int{2, 3}, Data: fp8.AppendFloats(nil, 85, 85, 85, 85, 85, 85)}, got)

	q := filepath.Join(dir, "q.safetensors")
	succeed(t, "quantize", a, "--format", "e2m1", "--out", q)
	out, _ = succeed(t, "gemm", q, b, "--formats", "e4m3") // codes of one operand, values of the other
	require.Equal(t, want, out)

	// Blocks that do not divide the matrix: the last one of a row is shorter.
	wide, tall := npyFile(t, filepath.Join(dir, "wide.npy"), 18, 72), npyFile(t, filepath.Join(dir, "tall.npy"), 40, 72)
	for _, cast := range [][3]string{
		{"e2m1", "1x16", "e4m3+fp32"},
		{"e2m1", "16x16", "e4m3+fp32"},
		{"e3m2", "1x32", "e8m0"},
		{"int4", "1x64", "fp32"},
		{"int8", "row", "fp32"},
		{"e4m3", "tensor", "pow2"},
		{"e3m4", "7x9", "fp32"},
	} {
		flags := []string{"--granularity", cast[1], "--scale", cast[2]}
		other := filepath.Join(dir, "other.safetensors")
		succeed(t, append([]string{"quantize", wide, "--format", cast[0], "--out", q}, flags...)...)
		succeed(t, append([]string{"quantize", tall, "--format", cast[0], "--out", other}, flags...)...)
		values, _ := succeed(t, append([]string{"gemm", wide, tall, "--json", "--formats", cast[0]}, flags...)...)
		out, _ := succeed(t, "gemm", q, other, "--json")
		require.Equal(t, values, out, cast)
	}
	raw, err := os.ReadFile(q)
	require.NoError(t, err)
	damaged := func(name, old, replacement string) string {
		path := filepath.Join(dir, name)
		require.Len(t, replacement, len(old))
		require.Contains(t, string(raw), old)
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), old, replacement)), 0o600))
		return path
	}
	blockless, otherBlock := damaged("blockless.safetensors", `"block.wide"`, `"bl0ck.wide"`), damaged("block.safetensors", `"7x9"`, `"3x9"`)

	codes := filepath.Join(dir, "codes.txt")
	require.NoError(t, os.WriteFile(codes, []byte("38\n"), 0o600))
	for want, args := range map[string][]string{
		"metadata block.wide: unknown block":             {blockless, tall},
		"wide.scale_inv has shape [3 8], expected [6 8]": {otherBlock, tall},
		"two text files of codes":                        {a, codes},
		"--explain shows the sums of codes":              {a, b, "--explain", "0,0", "--backend", "emu:h100"},
		"--scales gives the scales of codes":             {a, b, "--scales", "random"},
		"both must have the same length K":               {a, npyFile(t, filepath.Join(dir, "d.npy"), 2, 4)},
		"are for .npy and safetensors files of values":   {codes, codes, "--granularity", "row"},
		"give .npy files of values":                      {codes, codes, "--formats", "e2m1,e2m1"},
		"--out: c.txt: expected a file whose name ends":  {a, b, "--out", "c.txt"},
		"is a format of block scales":                    {a, b, "--scale", "e8m0"},
		"unsupported by backend emu:gaudi2":              {a, b, "--formats", "e2m1,e2m1", "--backend", "emu:gaudi2"},
	} {
		status, _, stderr := octet(append([]string{"gemm"}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Contains(t, stderr, want)
	}
}
