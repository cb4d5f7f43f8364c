package cli

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/bench"
)

// objects reads the JSON lines of a bench: the peaks, and then the rest.
func objects(t *testing.T, args ...string) (peaks, rest []bench.Result) {
	t.Helper()
	out, stderr := succeed(t, append([]string{"bench"}, args...)...)
	require.Empty(t, stderr)
	for line := range strings.Lines(out) {
		var r bench.Result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, "emu", r.Backend)
		if r.Bench == "peak" {
			require.Empty(t, rest, "peaks come first")
			peaks = append(peaks, r)
		} else {
			rest = append(rest, r)
		}
	}
	return peaks, rest
}

// benchTable returns the lines of a bench's table. It requires the peaks above the table and at
// most 80 columns.
func benchTable(t *testing.T, args ...string) []string {
	t.Helper()
	out, stderr := succeed(t, append([]string{"bench"}, args...)...)
	require.Empty(t, stderr)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 80, line)
	}
	require.Regexp(t, `^(peak of emu, .* +\d+ GFLOP/s +copy [\d.]+ GB/s\n){1,2}\n`, out)
	_, lines, _ := strings.Cut(out, "\n\n")
	return strings.Split(strings.TrimSuffix(lines, "\n"), "\n")
}

func TestBenchGemm(t *testing.T) {
	lines := benchTable(t, "gemm", "--seconds", "0", "16x32x48", "--threads", "2", "20x16x16")
	require.Len(t, lines, 2+2*3)
	const rates = `( +[\d.]+ +\d+%){3}$`
	for i, start := range []string{"16x32x48 +fp8", " +bf16", " +fp32", "20x16x16 +fp8", " +bf16", " +fp32"} {
		require.Regexp(t, "^"+start+rates, lines[2+i])
	}
	peaks, rest := objects(t, "gemm", "16x32x48", "--seconds=0", "--threads", "1", "--json")
	require.Len(t, peaks, 1, "with one thread there is one peak")
	require.Len(t, rest, 9)
	require.Equal(t, "fp8 wgrad", rest[2].Name)
	require.Equal(t, "32x48x16", rest[2].Shape)
}

func TestBenchAttention(t *testing.T) {
	lines := benchTable(t, "attention", "2x32x2x16", "--seconds", "0", "1x48x4/2x32", "--threads", "2")
	require.Len(t, lines, 2+2)
	for i, shape := range []string{"2x32x2x16", "1x48x4/2x32"} {
		require.Regexp(t, "^"+shape+`( +[\d.]+ +\d+%){2}$`, lines[2+i])
	}
	_, rest := objects(t, "attention", "2x32x2x16", "--seconds=0", "--backend", "emu:amx", "--json")
	require.Len(t, rest, 2)
	require.Equal(t, "backward", rest[1].Name)
}

func TestBenchLayers(t *testing.T) {
	lines := benchTable(t, "layers", "16x64", "--seconds", "0", "--threads", "1")
	require.Len(t, lines, 1+14)
	require.Regexp(t, `^swiglu, smoothed per channel +16x64 +[\d.]+ ms +[\d.]+ +\d+%$`, lines[1+7])
}

func TestBenchQuantize(t *testing.T) {
	lines := benchTable(t, "quantize", "16x40", "--seconds", "0", "--threads", "1")
	require.Len(t, lines, 1+15)
	require.Regexp(t, `^bf16 to e5m2, stochastic +16x40 +[\d.]+ ms +[\d.]+ +\d+%$`, lines[1+8])
}

func TestBenchOptimizer(t *testing.T) {
	lines := benchTable(t, "optimizer", "2k", "3000", "--seconds", "0", "--threads", "1")
	require.Len(t, lines, 1+6)
	require.Regexp(t, `^fp16, e4m3, e5m2, stochastic +3000 +[\d.]+ ms +[\d.]+ +\d+%$`, lines[6])
}

func TestBenchStep(t *testing.T) {
	t.Chdir(t.TempDir())
	args := append([]string{"step", "--seconds", "0", "--threads", "1"}, small...)
	lines := benchTable(t, append(args, "--recipe", "bf16,fp8-smooth", "--model", "tiny")...)
	require.Equal(t, "model tiny: 24,160 parameters, 64 tokens a step, 3 repeats", lines[0])
	require.Regexp(t, `^recipe +bf16 +fp8-smooth$`, lines[1])
	require.Regexp(t, `^  ratio of pairs +1\.000 +\d+\.\d{3}$`, lines[6])
	number := func(line, name string, column int) float64 {
		require.True(t, strings.HasPrefix(line, name), line)
		x, err := strconv.ParseFloat(strings.TrimSuffix(strings.Fields(strings.TrimPrefix(line, name))[column], "%"), 64)
		require.NoError(t, err)
		return x
	}
	for column := range 2 {
		rate, peak := number(lines[7], "GFLOP/s", column), number(lines[8], "  peak between", column)
		require.InDelta(t, 100*rate/peak, number(lines[9], "  of peak", column), 1, "of the figure above it")
	}

	_, rest := objects(t, append(args, "--json")...)
	require.Len(t, rest, 1)
	require.Equal(t, "fp8-smooth", rest[0].Name)
	require.EqualValues(t, 64, rest[0].Tokens)
	require.Positive(t, rest[0].TokensPerS)
	require.Empty(t, names(t, "."), "nothing is written")
}

func TestBenchInput(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", "step"},
		{"gem", "gem"},
		{"gemm 16x32", "1024x2048x768"},
		{"gemm 1048576x1048576x1048576 --seconds 0", "memory"},
		{"gemm --seconds NaN", "--seconds"},
		{"gemm --threads 99999999", "--threads"},
		{"gemm --backend tpu", "unknown backend"},
		{"quantize 0x3", "4096x4096"},
		{"layers 16", "4096x4096"},
		{"attention 4x256x6", "1x4096x8/2x128"},
		{"attention 4x256x6/4x64", "heads"},
		{"optimizer 14m", "14M"},
		{"step --recipe bf16,fp7", "octet recipes lists all"},
		{"step data.sq=1", "data.seq"},
		{"step data.seq=17", "data.seq"},
		{"step train.ranks=1025", "train.ranks = 1025"},
		{"step no-such.toml", "no-such.toml"},
		{"step --backend tpu", "unknown backend"},
		{"step model.layers=1 model.dim=65536 model.heads=1024 model.kv_heads=1024 model.ffn=1048576", "memory"},
	} {
		status, stdout, stderr := octet(append([]string{"bench"}, strings.Fields(test.args)...)...)
		require.Equal(t, exitInput, status, "%s\n%s%s", test.args, stdout, stderr)
		require.Empty(t, stdout, test.args)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want, test.args)
	}
}

func TestBenchHelp(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	for _, command := range []string{"step", "gemm", "quantize", "optimizer"} {
		help, _ := succeed(t, "bench", command, "--help")
		require.Contains(t, help, "octet bench "+command)
		again, _ := succeed(t, "help", "bench", command)
		require.Equal(t, help, again)
		for line := range strings.Lines(help) {
			require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
		}
	}
}
