package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/bench"
)

// folder writes the results of a machine that just meets every target.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var summary strings.Builder
	ok := func(part string) { fmt.Fprintf(&summary, "%-28s %6s  %s\n", part, "12 s", "ok") }
	results := func(part string, list ...bench.Result) {
		var b strings.Builder
		for _, r := range list {
			require.NoError(t, json.NewEncoder(&b).Encode(r))
		}
		put(part+".txt", b.String())
		ok(part)
	}
	put("versions.txt", "octet 0.1\ncommit abc\n")
	put("tests-cuda.txt", "=== RUN   TestA\n--- PASS: TestA (0.01s)\n    --- PASS: TestA/x (0.01s)\n--- SKIP: TestB (0.00s)\nPASS\n")
	ok("tests-cuda")
	ok("conformance")
	results("bench-gemm", bench.Result{Bench: "peak"}, bench.Result{Bench: "gemm", Name: "fp8 fprop", GFLOPs: 1_400_000},
		bench.Result{Bench: "gemm", Name: "bf16 fprop", GFLOPs: 700_000}, bench.Result{Bench: "gemm", Name: "bf16 wgrad", GFLOPs: 650_000})
	results("bench-quantize", bench.Result{Bench: "peak", CopyGBytes: 4000},
		bench.Result{Bench: "quantize", Name: "bf16 to e4m3", Shape: "16384x4096", CopyShare: 0.9},
		bench.Result{Bench: "quantize", Name: "bf16 to e5m2", Shape: "16384x4096", CopyShare: 0.86},
		bench.Result{Bench: "quantize", Name: "bf16 to x", Unsupported: "no such format"})
	put("products.txt", `goos: linux
BenchmarkGEMMs/4096x4096x4096/fprop-16         	      30	      1300 TFLOP/s	      1320 cublaslt-TFLOP/s	         0.985 of-cublaslt
BenchmarkGEMMs/4096x4096x4096/dgrad         	      30	      1205 TFLOP/s	      1260 cublaslt-TFLOP/s	         0.956 of-cublaslt
PASS
`)
	ok("products")
	for model, part := range map[string]string{"llama2-7b": "step-7b-layers-", "1b": "step-1b-"} {
		for recipe, rate := range map[string]float64{"bf16": 10_000, "fp8-w3-bf16": 12_701, "fp8-smooth": 13_401, "fp8-delayed": 13_701} {
			results(part+recipe, bench.Result{Bench: "peak"}, bench.Result{Bench: "step", Name: recipe, Step: &bench.Step{Model: model, TokensPerS: rate}})
		}
	}
	put("outside.txt", "BenchmarkOutside-16   10   1.400 gaps-%   0.590 host-%   82.1 ms/step   1510 ns/gap   1.990 outside-%\nPASS\n")
	ok("outside")
	put("sanitizer-memcheck.txt", "========= COMPUTE-SANITIZER\n--- PASS: TestConformance (100.00s)\nPASS\n========= ERROR SUMMARY: 0 errors\n")
	ok("sanitizer-memcheck")
	event := func(name string, dur, flops, bytes float64) string {
		return fmt.Sprintf(`{"name":%q,"ph":"X","dur":%v,"args":{"flops":%v,"bytes":%v}}`, name, dur, flops, bytes)
	}
	put("profile-7b-layers-trace.json", `{"traceEvents":[`+strings.Join([]string{
		event("RMSNorm", 50, 1e6, 200e6), event("RMSNorm", 60, 1e6, 200e6), // 3.64 TB/s, 91 %
		event("SwiGLU", 100, 1e6, 345e6),
		event("Fill", 10, 0, 4),                    // below beyondCaches
		event("MatMul NT e4m3 e4m3 bf16", 9, 1, 1), // a GEMM, not a memory-bound op
		event("Attention", 1000, 425e9, 1e9), event("AttentionGrad", 3000, 951e9, 1e9),
	}, ",\n")+"]}")
	put("profile-7b-layers-mma-trace.json", `{"traceEvents":[`+event("Attention", 1900, 425e9, 1e9)+","+event("AttentionGrad", 4500, 951e9, 1e9)+"]}")
	ok("profile-7b-layers-mma")
	ok("memory-7b-layers")
	put("memory-7b-layers-run.log", `{"msg":"start"}`+"\n"+`{"msg":"device memory","allocated":1000,"outside":55,"total":9999}`+"\n")
	ok("profile-7b-layers")
	put("plan-7b-layers.txt", "{\n \"memory_bytes\": 1000\n}\n")
	ok("plan-7b-layers")
	for run, end := range map[string]float64{"curve-bf16-1": 2, "curve-fp8-smooth-1": 2.009, "parity-bf16-emu": 3, "parity-bf16-cuda-0": 3.5, "parity-bf16-cuda-1": 3.001} {
		var b strings.Builder
		for step := range 1000 {
			fmt.Fprintf(&b, `{"step":%d,"loss":%v}`+"\n", step+1, end+float64(max(0, 900-step)))
		}
		put(run+"-metrics.jsonl", b.String())
		ok(run)
	}
	put("peer-7b.json", `{"environment":{"torch":"2.15"},"attn":{"shape":{"T":4096},"flash":{"forward_tflops":500,"backward_tflops":400},"cudnn":{"error":"none"}},
"train":{"runs":[{"params":"fp32","linears":"bf16","compile":"block","tokens_per_s":9000},{"params":"bf16","linears":"bf16","compile":"block","tokens_per_s":10300},
{"params":"bf16","linears":"fp8","compile":"block","tokens_per_s":99999},{"params":"bf16","linears":"bf16","compile":"none","tokens_per_s":99999}]}}`)
	ok("peer-7b")
	put("ranks-lost.txt", "    processes_test.go:1: all 3 processes have ended 5.00 s after rank 1 was killed\n"+
		"    processes_test.go:1: all 3 processes have ended 2.25 s after rank 1 was stopped\nPASS\n")
	ok("ranks-lost")
	for run, x := range map[string]struct{ loss, rate float64 }{"ranks-one": {2, 10_000}, "ranks-all": {2.001, 38_000}, "ranks-overlap": {2.001, 41_800}, "ranks-shared": {2.002, 30_000}} {
		put(run+"-metrics.jsonl", fmt.Sprintf("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":%v}\n", x.loss))
		put(run+"-timing.jsonl", fmt.Sprintf("{\"tokens_per_s\":1}\n{\"tokens_per_s\":%v}\n{\"tokens_per_s\":%[1]v}\n", x.rate))
		ok(run)
	}
	put("ranks-collectives.txt", "BenchmarkCollectives/all-reduce/16MiB-16   1   90.0 GB/s\nBenchmarkCollectives/all-reduce/256MiB-16   1   364 GB/s\n"+
		"BenchmarkCollectives/all-gather/256MiB-16   1   300 GB/s\nPASS\n")
	ok("ranks-collectives")
	put("ranks-nccl-tests.txt", "#  size  count\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 400.0\n")
	ok("ranks-nccl-tests")
	fmt.Fprintf(&summary, "%-28s %6s  %s\n", "sanitizer", "-", "left out: compute-sanitizer is not in the PATH")
	fmt.Fprintf(&summary, "%-28s %6s  %s\n%-28s %6s  %s\n", "peer-1b", "9 s", "ok", "peer-1b", "300 s", "FAILED: timeout after 300 s") // run again
	fmt.Fprintf(&summary, "%-28s %6s  %s\n", "peer-numerics", "3 s", "FAILED (1): octet: a | b differ")
	put("summary.txt", summary.String())
	return dir
}

// rows returns the figures of a folder, by name.
func rows(t *testing.T, dir string) map[string]Figure {
	t.Helper()
	require.NoError(t, write(dir, io.Discard))
	raw, err := os.ReadFile(filepath.Join(dir, "figures.json"))
	require.NoError(t, err)
	var list []Figure
	require.NoError(t, json.Unmarshal(raw, &list))
	rows := map[string]Figure{}
	for _, f := range list {
		require.NotContains(t, rows, f.Name)
		require.NotEmpty(t, f.Verdict, f.Name)
		rows[f.Name] = f
	}
	return rows
}

// edit replaces text in a file of a folder.
func edit(t *testing.T, dir, file, from, to string) {
	t.Helper()
	path := filepath.Join(dir, file)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(raw), from, file)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), from, to)), 0o600))
}

const (
	gemms     = "FP8 GEMMs at Llama-7B's shapes, share of cuBLASLt alone"
	forward   = "attention forward, 4,096 tokens, heads of 128, share of the BF16 GEMM rate"
	backward  = "attention backward, 4,096 tokens, heads of 128, share of the BF16 GEMM rate"
	overTorch = "whole step, 8 layers of Llama-7B, fp8-smooth over PyTorch's BF16, compiled"
	outside   = "upper bound of time outside kernels, of a step of 8 layers of Llama-7B, fp8-smooth"
	memcheck  = "compute-sanitizer, memcheck, every seventh case of conformance"
	memory    = "memory, 2 layers of Llama-7B"
	killed    = "time until all processes have ended, after one was killed"
	allReduce = "all-reduce between processes, bus bandwidth, share of nccl-tests"
	beside    = "collectives beside the compute, rate over that without, 124m, bf16"
	curve     = "1,000 steps of 124m, seed 1, fp8-smooth compared with bf16"
)

func TestTargetsThatAreMet(t *testing.T) {
	got := rows(t, folder(t))
	for name, measured := range map[string]string{
		"Go tests on the real libraries, cuda":       "1 passed, 0 failed, 1 for stand-ins only",
		"conformance, every op against float64":      "ok",
		gemms:                                        "97.0 % on average; minimum 95.6 %, 4096x4096x4096/dgrad: 1.2e+03 of 1.26e+03 TFLOP/s",
		"casts to FP8, share of copy bandwidth":      "minimum 86.0 %, bf16 to e5m2, 16384x4096; 2 casts",
		"RMSNorm in a step, share of copy bandwidth": "90.9 %, 3636 GB/s",
		"SwiGLU in a step, share of copy bandwidth":  "86.2 %, 3450 GB/s",
		forward:                                 "60.7 %, 425 of 700 TFLOP/s",
		backward:                                "45.3 %, 317 of 700 TFLOP/s",
		"whole step, 1b, fp8-w3-bf16 over bf16": "+27.0 %, 12701 against 10000 tokens/s",
		"whole step, 1b, fp8-smooth over bf16":  "+34.0 %, 13401 against 10000 tokens/s",
		"whole step, 8 layers of Llama-7B, fp8-delayed over bf16": "+37.0 %, 13701 against 10000 tokens/s",
		overTorch: "1.30 times, 13401 against 10300 tokens/s (torch 2.15)",
		outside:   "1.99 %: gaps between kernels 1.40 %, 1510 ns each with an empty kernel; waiting for the host and copies 0.59 %",
		memcheck:  "ERROR SUMMARY: 0 errors",
		killed:    "5.00 s, 3 processes",
		"time until all processes have ended, after one was stopped": "2.25 s, 3 processes",
		allReduce: "all-reduce/256MiB: 364 GB/s, 91.0 % of 400 GB/s",
		beside:    "1.10 times, 41800 against 38000 tokens/s, losses equal in 2 steps",
		memory:    "allocated 1000 bytes, planned 1000; driver, libraries and other processes 55",
		curve:     "+0.45 %: 2.0090 against 2.0000 nats, mean of the last tenth of 1000 steps",
	} {
		require.Equal(t, measured, got[name].Measured, name)
		require.Equal(t, met, got[name].Verdict, name)
	}
	require.NotContains(t, got, "Fill in a step, share of copy bandwidth")
	require.Equal(t, "at most 0.001 nats apart in 1000 steps", got["losses compared with emu, bf16"].Measured)
	require.Equal(t, "at most 0.001 nats apart in 2 steps", got["losses of several ranks compared with one, bf16"].Measured)
	require.Equal(t, "at most 0.002 nats apart in 2 steps", got["losses of ranks that share layers and weights compared with one, bf16"].Measured)
	require.Equal(t, "3.80 times, 38000 against 10000 tokens/s", got["rate of several ranks over one, 124m, bf16"].Measured)
	require.Equal(t, "takes longer than the chosen kernels: forward 1.90 times, backward 1.50 times", got["attention by mma.sync, the same shape"].Measured)
	require.Equal(t, "flash 500 forward, 400 backward TFLOP/s", got["attention of PyTorch, the same shape"].Measured)
}

// A figure that falls short by a little is missed.
func TestTargetsThatAreMissed(t *testing.T) {
	for name, c := range map[string]struct{ file, from, to string }{
		"Go tests on the real libraries, cuda":      {"tests-cuda.txt", "--- PASS", "--- SKIP"},
		"conformance, every op against float64":     {"summary.txt", "conformance                    12 s  ok", "conformance                    12 s  FAILED (1): add"},
		gemms:                                       {"products.txt", "0.956 of", "0.949 of"},
		"casts to FP8, share of copy bandwidth":     {"bench-quantize.txt", "0.86", "0.849"},
		"SwiGLU in a step, share of copy bandwidth": {"profile-7b-layers-trace.json", "3.45e+08", "3.39e+08"},
		forward:                                 {"profile-7b-layers-trace.json", "4.25e+11", "4.15e+11"},
		backward:                                {"profile-7b-layers-trace.json", "9.51e+11", "9.4e+11"},
		"whole step, 1b, fp8-smooth over bf16":  {"step-1b-fp8-smooth.txt", "13401", "13399"},
		"whole step, 1b, fp8-w3-bf16 over bf16": {"step-1b-fp8-w3-bf16.txt", "12701", "12699"},
		"whole step, 8 layers of Llama-7B, fp8-delayed over bf16": {"step-7b-layers-fp8-delayed.txt", "13701", "13699"},
		overTorch: {"peer-7b.json", "10300", "10310"},
		outside:   {"outside.txt", "0.590 host", "0.610 host"},
		memcheck:  {"sanitizer-memcheck.txt", "========= ERROR SUMMARY: 0 errors", "nothing"},
		killed:    {"ranks-lost.txt", "5.00 s", "5.01 s"},
		allReduce: {"ranks-collectives.txt", "364", "359"},
		memory:    {"plan-7b-layers.txt", "1000", "999"},
		curve:     {"curve-fp8-smooth-1-metrics.jsonl", "2.009}", "2.011}"},
	} {
		dir := folder(t)
		edit(t, dir, c.file, c.from, c.to)
		require.Contains(t, rows(t, dir)[name].Verdict, missed, name)
	}
	// Losses may differ because of other algorithms of GEMMs.
	differs := folder(t)
	edit(t, differs, "ranks-overlap-metrics.jsonl", "2.001", "2.003")
	require.Equal(t, Figure{beside, "1.10 times, 41800 against 38000 tokens/s, losses at most 0.002 nats apart in 2 steps", "equal losses", "to be judged"}, rows(t, differs)[beside])
	// A missing value does not meet a target, and a negative share does not reduce
	// another.
	for from, to := range map[string]string{"1.400 gaps-%": "", "1.400 gaps-%   0.590 host": "2.010 gaps-%  -0.500 host"} {
		dir := folder(t)
		edit(t, dir, "outside.txt", from, to)
		require.Equal(t, missed, rows(t, dir)[outside].Verdict)
	}
	// The last summary of a sanitizer counts, even if the exit status is 0.
	warned := folder(t)
	edit(t, warned, "sanitizer-memcheck.txt", "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)")
	require.Equal(t, Figure{memcheck, "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)", "all pass", missed}, rows(t, warned)[memcheck])
	found := folder(t)
	edit(t, found, "summary.txt", "sanitizer-memcheck             12 s  ok", "sanitizer-memcheck             12 s  FAILED (86): ========= ERROR SUMMARY: 2 errors")
	edit(t, found, "sanitizer-memcheck.txt", "0 errors", "2 errors")
	require.Equal(t, Figure{memcheck, "ERROR SUMMARY: 2 errors", "all pass", missed}, rows(t, found)[memcheck])

	dir := folder(t)
	require.Equal(t, missed, rows(t, dir)["numerics of FP8 GEMMs, probe_numerics.py ran"].Verdict)

	// A shorter curve does not meet its target; a trial has no verdicts.
	short := folder(t)
	path := filepath.Join(short, "curve-bf16-1-metrics.jsonl")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(raw), "\n")
	require.NoError(t, os.WriteFile(path, []byte(rest), 0o600))
	require.Equal(t, missed, rows(t, short)[curve].Verdict)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "versions.txt"), []byte("octet\nTRIAL: tiny\n"), 0o600))
	for name, f := range rows(t, dir) {
		require.NotContains(t, []string{met, missed}, f.Verdict, name)
	}
}

// A figure that was not measured has the reason.
func TestWhatWasNotMeasured(t *testing.T) {
	dir := folder(t)
	got := rows(t, dir)
	for name, why := range map[string]string{
		"Go tests on the real libraries, gorgonia":                        "part tests-gorgonia was not run",
		"compute-sanitizer, racecheck, every seventh case of conformance": "part sanitizer: left out: compute-sanitizer is not in the PATH",
		"whole step, 1b, fp8-smooth over PyTorch's BF16, compiled":        "part peer-1b: FAILED: timeout after 300 s",
		"1,000 steps of 124m, seed 2, fp8-smooth compared with bf16":      "part curve-bf16-2 was not run",
		"losses compared with emu, fp8-smooth":                            "part parity-fp8-smooth-cuda was not run",
	} {
		require.Equal(t, "not measured: "+why, got[name].Verdict, name)
		require.Empty(t, got[name].Measured)
	}

	// On a machine with one GPU, a line of part ranks stands for its parts.
	one := folder(t)
	path := filepath.Join(one, "summary.txt")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	text := regexp.MustCompile(`(?m)^ranks-.*$`).ReplaceAllString(string(raw), "") + "ranks   -  left out: needs two GPUs\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Remove(filepath.Join(one, "ranks-lost.txt")))
	for _, name := range []string{killed, allReduce, "losses of several ranks compared with one, bf16", "losses of ranks that share layers and weights compared with one, bf16", "rate of several ranks over one, 124m, bf16", beside} {
		require.Equal(t, "not measured: part ranks: left out: needs two GPUs", rows(t, one)[name].Verdict, name)
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "curve-bf16-2.txt"), nil, 0o600))
	require.Equal(t, "not measured: part curve-bf16-2 started and did not finish", rows(t, dir)["1,000 steps of 124m, seed 2, fp8-smooth compared with bf16"].Verdict)

	// Empty files, and files without results.
	for _, text := range []string{"", "{", "[1]\nnull\n{\"bench\":3}\n"} {
		list, err := filepath.Glob(filepath.Join(dir, "*[0-9a-z].*"))
		require.NoError(t, err)
		for _, path := range list {
			if base := filepath.Base(path); base != "summary.txt" {
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
		}
		for name, f := range rows(t, dir) {
			require.NotContains(t, f.Measured, "TFLOP", name)
			require.NotContains(t, f.Measured, "tokens/s", name)
		}
	}
	require.ErrorContains(t, write(t.TempDir(), io.Discard), "has no results of gpu-check.sh")
}

func TestTable(t *testing.T) {
	dir := folder(t)
	var out strings.Builder
	require.NoError(t, write(dir, &out))
	text, err := os.ReadFile(filepath.Join(dir, "table.md"))
	require.NoError(t, err)
	require.Equal(t, string(text), out.String())
	require.True(t, strings.HasPrefix(out.String(), "    octet 0.1\n    commit abc\n\n| figure | measured | asked | verdict |\n|---|---|---|---|\n"), out.String())
	_, rest, _ := strings.Cut(out.String(), "|---|---|---|---|\n")
	for line := range strings.Lines(rest) {
		require.Equal(t, 5, strings.Count(strings.ReplaceAll(line, "\\|", ""), "|"), line)
	}
	require.Contains(t, out.String(), "| numerics of FP8 GEMMs, probe_numerics.py ran | FAILED (1): octet: a \\| b differ | all pass | **missed** |\n")
}
