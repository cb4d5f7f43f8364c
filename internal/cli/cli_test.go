package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/cuda"
	"octet/backend/emu"
	_ "octet/backend/gaudi"
	"octet/recipe"
)

// asCommand makes the test binary the octet command.
const asCommand = "OCTET_TEST_AS_COMMAND"

// Variables that shorten the deadlines of ranks.
const (
	joinDeadline    = "OCTET_TEST_JOIN"
	silenceDeadline = "OCTET_TEST_SILENCE"
)

func TestMain(m *testing.M) {
	registerProcesses()
	// A sweep starts its own binary with the command train.
	if os.Getenv(asCommand) != "" || len(os.Args) > 1 && os.Args[1] == "train" {
		if text := os.Getenv(killAt); text != "" {
			p, err := parseFailpoint(text)
			if err != nil {
				panic(err)
			}
			p.arm()
		}
		for variable, to := range map[string]*time.Duration{joinDeadline: &deadlines.join, silenceDeadline: &deadlines.silence} {
			if text := os.Getenv(variable); text != "" {
				var err error
				if *to, err = time.ParseDuration(text); err != nil {
					panic(err)
				}
			}
		}
		status := Main(append([]string{"octet"}, os.Args[1:]...), ownSource)
		emu.Exit(status)
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// ownSource stands in for Octet's own source.
var ownSource = fstest.MapFS{
	"main.go":       {Data: []byte(goText(20_000))},
	"octet.go":      {Data: []byte(goText(9_000))},
	"octet_test.go": {Data: []byte("not read")},
}

// octet runs a command line within this process.
func octet(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	t := &terminal{name: "octet", out: &out, err: &err, sources: ownSource}
	status = t.run(context.Background(), args)
	return status, out.String(), err.String()
}

// succeed runs a command line that must succeed.
func succeed(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	status, stdout, stderr := octet(args...)
	require.Zero(t, status, "octet %s\n%s%s", strings.Join(args, " "), stdout, stderr)
	return stdout, stderr
}

// small is the smallest model that every recipe can train.
var small = strings.Fields("model.layers=1 model.dim=32 model.heads=2 model.kv_heads=1 model.ffn=48 data.seq=32 train.micro_batch=2")

// corpus writes a text of n bytes to train on and returns its path.
func corpus(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, []byte(goText(n)), 0o600))
	return path
}

func goText(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "the %dth fox jumps over %d dogs.\n", i, i*i%97)
	}
	return b.String()[:n]
}

// trainArgs returns the arguments to train some steps on a text, into a folder.
func trainArgs(text, out string, steps int, more ...string) []string {
	return slices.Concat([]string{"train", "--data", text, "--out", out, "--steps", fmt.Sprint(steps)}, small, more)
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(text)
}

// names lists a folder, without the varying part of the names of event files.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "events.out.tfevents.") {
			name = "events.out.tfevents"
		}
		list = append(list, name)
	}
	return list
}

// sameRun requires that two runs have equal metrics and an equal last checkpoint.
func sameRun(t *testing.T, want, got string) {
	t.Helper()
	require.Equal(t, read(t, want, "metrics.jsonl"), read(t, got, "metrics.jsonl"))
	checkpoints := names(t, filepath.Join(want, "checkpoints"))
	last := checkpoints[len(checkpoints)-1]
	require.Contains(t, names(t, filepath.Join(got, "checkpoints")), last)
	files := names(t, filepath.Join(want, "checkpoints", last))
	require.Equal(t, files, names(t, filepath.Join(got, "checkpoints", last)))
	for _, file := range files {
		require.Equal(t, []byte(read(t, want, "checkpoints", last, file)), []byte(read(t, got, "checkpoints", last, file)), file)
	}
}

func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	alone, stderr := succeed(t)
	require.Empty(t, stderr)
	for _, args := range [][]string{{"help"}, {"--help"}, {"-h"}} {
		help, _ := succeed(t, args...)
		require.Equal(t, alone, help)
	}
	for _, command := range []string{"train", "sweep", "eval", "generate", "inspect", "diff", "plan", "recipes", "compare", "quantize", "dump", "gemm", "bench", "doctor", "serve", "version"} {
		require.Contains(t, alone, "\n  "+command+" ")
		help, stderr := succeed(t, "help", command)
		require.Empty(t, stderr)
		again, _ := succeed(t, command, "--help")
		require.Equal(t, help, again)
		require.Contains(t, help, "octet "+command)
		for line := range strings.Lines(help) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
		}
	}
	status, _, stderr := octet("help", "trian")
	require.Equal(t, exitInput, status)
	require.Equal(t, "octet: unknown command trian; did you mean train? (octet --help lists the commands)\n", stderr)
	status, _, stderr = octet("bench", "gem", "--json")
	require.Equal(t, exitInput, status)
	require.Equal(t, "octet: unknown command bench gem; did you mean gemm? (octet bench --help lists the commands)\n", stderr)
}

func TestCompare(t *testing.T) {
	text := corpus(t, 20_000)
	run := append([]string{"--data", text, "--steps", "4"}, small...)
	out, _ := succeed(t, append([]string{"compare", "--backend", "emu", "--backend", "emu"}, run...)...)
	require.Contains(t, out, "no bit differs")
	differ := append([]string{"compare", "--backend", "emu", "--backend", "ref", "--recipe", "bf16"}, run...)
	out, _ = succeed(t, differ...)
	require.Contains(t, out, "ref against emu: bf16, tiny, step 1 of 4,")
	require.Contains(t, out, "the first difference, step 1, program micro.first.last:")
	// Every heading stands alone, since a narrow terminal omits columns by their headings.
	require.Regexp(t, `\nmodule +tensors +forced: differ +forced: error +free: differ +free: error +worst op, free\n`, out)
	require.Regexp(t, `\nno module +\d`, out)
	require.Regexp(t, `layers\.\*\.mlp +\d+ +\d+ +\d\.\de-\d\d`, out)
	out, _ = succeed(t, append(differ, "--json")...)
	for line := range strings.Lines(out) {
		var d comparedDiff
		require.NoError(t, json.Unmarshal([]byte(line), &d))
		require.NotZero(t, d.Differ)
		require.Contains(t, []string{"forced", "free"}, d.Mode)
	}
	status, _, stderr := octet("compare", "--backend", "emu")
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "two backends, not 1")
	for _, name := range []string{"cuda:65535", "gaudi:65535", ""} { // no machine has such a device
		status, stdout, stderr := octet(append([]string{"compare", "--backend", "emu", "--backend", name}, run...)...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		requireOneSentence(t, stderr)
	}
}

func TestGemm(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	a, b := write("a", "38 01\n3c 00\n"), write("b", "38 01\n") // 1 2^-9, 1.5 0
	out, _ := succeed(t, "gemm", a, b, "--backend", "emu")
	require.Equal(t, "1.0000038\n1.5\n", out)
	out, _ = succeed(t, "gemm", a, b, "--backend", "emu:h100", "--json")
	require.JSONEq(t, `{"m":2,"n":1,"k":2,"values":[1,1.5],"bits":["3f800000","3fc00000"]}`, out)
	out, _ = succeed(t, "gemm", a, b, "--backend", "emu:h100", "--explain", "0,0")
	require.Contains(t, out, "truncated: k 1: 0.001953125 * 0.001953125 = 3.814697265625e-06 becomes 0")
	sa, sb := write("sa", "80\n7f\n"), write("sb", "81\n") // 2 1, 4
	out, _ = succeed(t, "gemm", a, b, "--backend", "emu:b200", "--scales", sa+","+sb)
	require.Equal(t, "8.0000305\n6\n", out)
	out, _ = succeed(t, "gemm", "--backend", "emu:b200", "--scales", "random", "--explain", "0,0")
	require.Contains(t, out, "block scales multiply the products before they are aligned")
	random, _ := succeed(t, "gemm", "--backend", "emu:gaudi2", "--formats", "e5m2,e5m2", "--shape", "2x3x100")
	require.Len(t, strings.Fields(random), 6)
	// The matrix units multiply E5M2 by E5M2, which cuBLASLt does not take.
	for _, model := range []string{"h100", "ada", "b200"} {
		both, _ := succeed(t, "gemm", a, b, "--backend", "emu:"+model, "--formats", "e5m2,e5m2", "--explain", "0,0")
		require.Contains(t, both, "\ne5m2 times e5m2, 2 products\n")
	}
	for want, args := range map[string][]string{
		"give two files, or none":                                     {a},
		"--explain prints text: omit --json":                          {a, b, "--backend", "emu:h100", "--explain", "0,0", "--json"},
		"expected formats of up to eight bits":                        {"--formats", "bf16"},
		"not of the form MxNxK":                                       {"--shape", "3x3"},
		"the result has 2 rows and 1 columns":                         {a, b, "--explain", "0,1"},
		"expected a row and a column":                                 {a, b, "--explain", "x"},
		"both must have the same length K":                            {a, write("c", "38\n")},
		"expected two files":                                          {a, b, "--scales", sa},
		"1×1 scales for 2×2 codes: expected 2×1":                      {a, b, "--scales", sb + "," + sb},
		"expected two hexadecimal digits":                             {a, write("d", "xy\n")},
		"did you mean h100? (known: h100, ada, b200, gaudi2, gaudi3)": {"--backend", "emu:h200"},
		"such as --backend emu:h100\n":                                {"--backend", "emu", "--explain", "0,0"},
		`such as --backend emu:h100: unknown device model "amx"`:      {"--backend", "emu:amx", "--explain", "0,0"},
		"matmul: unsupported by backend emu:gaudi2: e5m2 tensor fp32 × e4m3ieee tensor fp32, A is a:e5m2[1, 64] and B is b:e4m3ieee[1, 64]; it multiplies e4m3ieee × e4m3ieee, e5m2 × e5m2\n": {"--backend", "emu:gaudi2", "--formats", "e5m2,e4m3"},
	} {
		status, _, stderr := octet(append([]string{"gemm"}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Contains(t, stderr, want)
	}
}

func TestVersion(t *testing.T) {
	out, _ := succeed(t, "version")
	same, _ := succeed(t, "--version")
	require.Equal(t, out, same)
	require.Regexp(t, `^octet \S+.*, go\S+ \w+/\w+, (no tags|tags \S+( without cgo)?)\n$`, out)
}

func TestRecipes(t *testing.T) {
	all, _ := succeed(t, "recipes")
	for _, name := range []string{"fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-w3-bf16", "fp8-smooth", "fp8-unit"} {
		one, _ := succeed(t, "recipes", name)
		require.Contains(t, one, "recipe "+name+":")
		require.Contains(t, all, "  "+name+"  ")
	}
	coat, _ := succeed(t, "recipes", "coat-adam")
	require.Contains(t, coat, "m1 and m2 scaled in blocks of 128, expanded")
	require.Contains(t, coat, "\nsource: COAT (arXiv 2410.19313;")
	two, _ := succeed(t, "recipes", "bf16", "fp8-smooth")
	require.Contains(t, two, "recipe bf16:")
	require.Contains(t, two, "recipe fp8-smooth:")
	require.NotContains(t, two, "note:")
	tables, _ := succeed(t, append([]string{"recipes"}, recipe.Names()...)...)
	for line := range strings.Lines(all + tables) {
		require.LessOrEqual(t, len(line), len("\n")+80, line)
	}
	require.Contains(t, tables, "e4m3 1x128 fp32  e4m3 128x128 fp32\n")
	require.Contains(t, tables, "\nrow, block scales  current\n")
	gaudi, _ := succeed(t, "recipes", "fp8-smooth", "--backend", "emu:gaudi2")
	require.Contains(t, gaudi, "e4m3ieee delayed")
	require.Contains(t, gaudi, "\nnote: e4m3 is e4m3ieee on this device, with maximum 240\n")
	require.Contains(t, gaudi, "\nnote: wgrad reads input in e5m2: this device has no GEMM of e5m2 by e4m3ieee\n")
	for line := range strings.Lines(gaudi) {
		require.LessOrEqual(t, len(line), 80, line)
	}
	for _, name := range []string{"cuda", "gaudi"} {
		table, _ := succeed(t, "recipes", "mxfp8", "--backend", name)
		assumed := map[string]string{"cuda": "cuda (any GPU from Ada on; cuda:sm_90 names Hopper, cuda:sm_100 Blackwell)", "gaudi": "gaudi (Gaudi 2)"}[name]
		require.Contains(t, strings.ReplaceAll(table, "\n", " "), " note: unsupported by backend "+assumed+": recipe mxfp8: layers.0.self_attn.q_proj:")
		status, _, stderr := octet("plan", "--recipe", "mxfp8", "--backend", name)
		require.Equal(t, exitInput, status)
		e4m3 := map[string]string{"cuda": "e4m3", "gaudi": "e4m3ieee"}[name]
		require.Equal(t, fmt.Sprintf("octet: unsupported by backend %s: recipe mxfp8: layers.0.self_attn.q_proj: fprop multiplies input in %s 1x32 e8m0 by weight in %[2]s 1x32 e8m0, "+
			"which the device's GEMM library does not support; to change the granularity and scale of input and weight, add this row before all others in [[precision.rows]]: "+
			`scope = "layers.*", granularity = "tensor", scale = "pow2"`+"\n", assumed, e4m3), stderr)
	}
	notes := func(args ...string) string {
		table, _ := succeed(t, append([]string{"recipes"}, args...)...)
		_, notes, _ := strings.Cut(table, "\nnote: ")
		return strings.Join(strings.Fields(notes), " ")
	}
	const outside = ", which the GEMM library of the modelled device does not support: only "
	require.Equal(t, "fprop multiplies input in e2m1 1x32 e8m0 by weight in e2m1 1x32 e8m0"+outside+"emu:b200 computes this recipe (docs/device-models.md says how)", notes("mxfp4", "--backend", "emu:b200"))
	require.Contains(t, notes("mxfp8", "--backend", "emu:h100"), outside+"emu:h100")
	require.Empty(t, notes("deepseek-v3", "--backend", "emu:h100"))
	require.Equal(t, "recipe fp8-smooth multiplies no integers: its results are those of backend emu, as emu:accum16,saturate adds up integers alone in 16 bits", notes("fp8-smooth", "--backend", "emu:accum16,saturate"))
	require.Empty(t, notes("int8-switchback", "--backend", "emu:accum16"))
	require.Contains(t, notes("fp16", "--backend", "cuda:sm_90"), "unsupported by backend cuda (compute capability 9.0): recipe fp16 has activations in fp16")
	status, out, stderr := octet("recipes", "fp8_smooth")
	require.Equal(t, exitInput, status)
	require.Empty(t, out)
	require.Equal(t, "octet: unknown recipe \"fp8_smooth\"; did you mean fp8-smooth? (octet recipes lists all recipes)\n", stderr)
}

func TestDoctor(t *testing.T) {
	out, _ := succeed(t, "doctor")
	require.Regexp(t, `(?m)^20\d\d-\d\d-\d\d \d\d:\d\d UTC`, out)
	require.Contains(t, out, "✓ emu")
	for _, name := range []string{"cuda", "gaudi"} {
		d, _, err := backend.Find(name)
		require.NoError(t, err)
		if err := d.Available(""); errors.Is(err, backend.ErrNotBuilt) {
			require.Contains(t, out, fmt.Sprintf("✗ %s: %v\n", name, err))
			require.Equal(t, 1, strings.Count(out, "TAGS="+name+" "), "once")
		}
		require.Contains(t, out, name)
	}
	report := filepath.Join(t.TempDir(), "report.txt")
	out, _ = succeed(t, "doctor", "--backend", "emu", "--report", report)
	require.Regexp(t, `conformance of emu: [1-9]\d+ passed, 0 failed`, out)
	written, err := os.ReadFile(report)
	require.NoError(t, err)
	require.Equal(t, out, string(written))
	status, _, stderr := octet("doctor", "--report", filepath.Join(report, "below"))
	require.Equal(t, exitInput, status)
	requireOneSentence(t, stderr)
	for _, name := range []string{"tpu", "emu:h900", "cuda"} {
		status, out, stderr := octet("doctor", "--backend", name)
		require.Equal(t, exitInput, status)
		requireOneSentence(t, stderr)
		require.Equal(t, name == "cuda", out != "", "a known name prints what is here")
	}
}

// doctor fails if its report cannot be written.
func TestDoctorsReportOnAFullDisk(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /dev/full")
	}
	status, stdout, stderr := octet("doctor", "--report", "/dev/full")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stdout, "✓ emu")
	require.Contains(t, stderr, "write /dev/full: no space left on device")
}

// The reason why a backend is absent is printed once: as a finding, or otherwise as an error.
func TestDoctorSaysItOnce(t *testing.T) {
	lacking := backend.Finding{What: "driver", Detail: "not found: lib.so", Fix: "install it"}
	absent := backend.Driver{
		Name: "absent", Priority: -1,
		Available: func(string) error { return errors.New("the driver does not start: not found: lib.so; install it") },
		Spec:      func(string) (backend.Spec, error) { return backend.Spec{}, nil },
		Open:      func(string, backend.Options) (backend.Backend, error) { return nil, backend.ErrNoDevice },
		Probe:     func() []backend.Finding { return []backend.Finding{lacking} },
	}
	t.Cleanup(backend.Register(absent))
	status, out, stderr := octet("doctor", "--backend", "absent")
	require.Equal(t, exitInput, status)
	require.Contains(t, out, "\n✗ absent\n  ✗ driver: not found: lib.so\n    install it\n")
	require.Equal(t, "octet: backend absent is not available here: see what is marked with ✗ above\n", stderr)

	lacking.Optional = true
	_, out, _ = octet("doctor")
	require.Contains(t, out, "\n✗ absent: the driver does not start: not found: lib.so; install it\n  - driver: not found: lib.so\n")
}

// requireOneSentence requires one line with an error and no stack trace.
func requireOneSentence(t *testing.T, stderr string) {
	t.Helper()
	require.Regexp(t, `^octet: .{10,}\n$`, stderr)
	require.NotContains(t, stderr, "goroutine")
}
