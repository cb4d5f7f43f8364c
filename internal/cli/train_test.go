package cli

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/internal/exporter"
	"octet/internal/writers"
	"octet/run"
)

func TestTrain(t *testing.T) {
	text := corpus(t, 30_000)
	dir := filepath.Join(t.TempDir(), "runs", "one")
	stdout, stderr := succeed(t, trainArgs(text, dir, 25, "train.eval_every=10", "checkpoint.every=10", "checkpoint.keep_last=2")...)

	require.Equal(t, []string{
		".lock", "checkpoints", "config.toml", "data.json", "events.out.tfevents", "generation_config.json", "metrics.jsonl", "run.log",
		"timing.jsonl", "tokenizer.json", "tokenizer_config.json",
	}, names(t, dir))
	require.Equal(t, []string{"step-00000020", "step-00000025"}, names(t, filepath.Join(dir, "checkpoints")))
	last := filepath.Join(dir, "checkpoints", "step-00000025")
	require.Equal(t, []string{
		"MANIFEST.json", "config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors", "state.json",
		"tokenizer.json", "tokenizer_config.json",
	}, names(t, last))

	var info data.Info
	require.NoError(t, json.Unmarshal([]byte(read(t, dir, "data.json")), &info))
	require.Equal(t, []data.File{{Path: "text.txt", Bytes: 30_000, HeldOut: 3000}}, info.Files)
	require.Len(t, info.SHA256, 64)

	metrics := strings.Split(strings.TrimSpace(read(t, dir, "metrics.jsonl")), "\n")
	timing := strings.Split(strings.TrimSpace(read(t, dir, "timing.jsonl")), "\n")
	require.Len(t, metrics, 25)
	require.Len(t, timing, 25)
	for i, line := range metrics {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		require.EqualValues(t, i+1, m["step"])
		require.EqualValues(t, (i+1)*64, m["tokens"])
		require.Equal(t, i == 9 || i == 19 || i == 24, m["val_loss"] != nil, line)
		require.Less(t, m["loss"], 6.0)
	}
	for _, key := range []string{"step_s", "tokens_per_s", "flops_per_s", "memory"} {
		require.Contains(t, timing[0], `"`+key+`":`)
	}
	log := read(t, dir, "run.log")
	require.NotEqual(t, strings.Contains(log, "mfu left out"), strings.Contains(timing[24], `"mfu":`), "the last step ends an interval: %s", timing[24])
	if !strings.Contains(log, "mfu left out") {
		requireRateOfMFU(t, timing, stderr)
	}
	for line := range strings.Lines(log) {
		require.True(t, json.Valid([]byte(line)), line)
	}

	// Standard error shows the progress. The first line names the backend.
	doctor := ""
	for _, d := range backend.Drivers() {
		if err := d.Available(""); d.Priority > 0 && err != nil && !errors.Is(err, backend.ErrNotBuilt) {
			doctor = "; octet doctor says why"
		}
	}
	require.Regexp(t, `^octet: training on emu \(no cuda, no gaudi`+doctor+`\)\. Ctrl-C saves\.\n`, stderr)
	for _, want := range []string{
		"recipe fp8-smooth:", "\nparameters  24,160: embedding 8,192, attention 3,072, mlp 4,608, norms 96,\n            head 8,192\n", "\nmemory ", "\ncompute  ", "25 steps of 64 tokens",
		"\ndata        27,000 tokens to train on (5.9% read), 3,000 to validate\n", "\nto beat ", "\nrun         " + dir + "\n",
		"FLOP/s  mfu ", "\nstep 1/25  loss ", "\nstep 10: validation ", "\nstep 25/25  loss ",
	} {
		require.Contains(t, stderr, want)
	}
	// Standard output holds the result.
	require.Regexp(t, `^trained     1,600 tokens in 0:0\d
validation  \d\.\d{4} nats per token, \d\.\d{4} bits per byte

the \d+th fox ju(.|\n)+

checkpoint  `+regexp.QuoteMeta(last)+`
next        octet generate `+regexp.QuoteMeta(shellQuote(dir))+` --prompt "the \d+th fox ju"
$`, stdout)
	// The command that it suggests works.
	out, _ := succeed(t, "generate", dir, "--prompt", "the fox", "--tokens", "5")
	require.True(t, strings.HasPrefix(out, "the fox"))
}

// requireRateOfMFU checks that the last line of a run gives the rate of the steps to which its
// mfu refers.
func requireRateOfMFU(t *testing.T, timing []string, stderr string) {
	t.Helper()
	tokens, seconds := 0.0, 0.0
	var last writers.Timing
	for i, line := range timing {
		known := last.MFU != nil
		last = writers.Timing{}
		require.NoError(t, json.Unmarshal([]byte(line), &last))
		if known || i == 0 {
			tokens, seconds = 0, 0
		}
		tokens += 64
		seconds += float64(last.StepSeconds)
	}
	require.NotNil(t, last.MFU)
	shown := regexp.MustCompile(`\nstep 25/25 .*  ([\d,]+) tok/s`).FindStringSubmatch(stderr)
	require.NotNil(t, shown)
	rate, err := strconv.ParseFloat(strings.ReplaceAll(shown[1], ",", ""), 64)
	require.NoError(t, err)
	require.InEpsilon(t, tokens/seconds, rate, 1e-3)
}

func TestPassesText(t *testing.T) {
	for passes, want := range map[float64]string{
		0.00123: "0.12% read", 0.123: "12% read", 0.994: "99% read", 0.996: "read 1.0 times", 2.84: "read 2.8 times", 31.4: "read 31 times",
	} {
		require.Equal(t, want, passesText(passes))
	}
}

// A run whose last validation loss is not its lowest prints its best step.
func TestTrainBest(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.txt") // its end is unlike the rest
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("01", 450)+strings.Repeat("ab", 50)), 0o600))
	dir := filepath.Join(t.TempDir(), "run")
	args := trainArgs(text, dir, 40, "train.eval_every=10", "checkpoint.every=10", "checkpoint.keep_last=4", "optimizer.lr=0.01")
	out, stderr := succeed(t, args...)
	require.Contains(t, stderr, "900 tokens to train on (read 2.8 times), 100 to validate\n")
	best := filepath.Join(dir, "checkpoints", "step-00000010")
	require.Regexp(t, `validation  .*
best        \d\.\d{4} nats per token at step 10
            `+regexp.QuoteMeta(best)+`
hint        overfitting: the text was read 3 times, the training loss is 0\.\d{4};
            use more text or fewer --steps
`, out)

	// After a resume the records still have the best step; its checkpoint was not kept.
	out, _ = succeed(t, "train", "--resume", "--out", dir, "--steps", "60")
	require.Contains(t, out, " at step 10\n            its checkpoint is not kept: see checkpoint.every, keep_last\nhint ")

	out, _ = succeed(t, trainArgs(corpus(t, 20_000), filepath.Join(t.TempDir(), "run"), 20, "train.eval_every=10")...)
	require.NotContains(t, out, "best")
	require.NotContains(t, out, "hint")
}

// With --json standard output is one object, which agrees with the records.
func TestTrainJSON(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	object := func(args ...string) (got map[string]any) {
		t.Helper()
		stdout, _ := succeed(t, append(args, "--json")...)
		require.NoError(t, json.Unmarshal([]byte(stdout), &got), stdout)
		require.Greater(t, got["seconds"], 0.0)
		delete(got, "seconds")
		return got
	}
	got := object(trainArgs(text, dir, 3)...)
	var last map[string]any
	lines := strings.Split(strings.TrimSpace(read(t, dir, "metrics.jsonl")), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &last))
	newest := filepath.Join(dir, "checkpoints", "step-00000003")
	require.Equal(t, map[string]any{
		"run": dir, "checkpoint": newest, "step": 3.0, "tokens": last["tokens"], "loss": last["loss"],
		"val_loss": last["val_loss"], "bits_per_byte": last["val_loss"].(float64) / math.Ln2,
	}, got)

	require.Equal(t, map[string]any{"run": dir, "checkpoint": newest, "step": 3.0, "tokens": 192.0},
		object("train", "--resume", "--out", dir), "there was nothing to do")

	blind := object(trainArgs(text, filepath.Join(t.TempDir(), "blind"), 2, "data.val_bytes=0")...)
	require.Contains(t, blind, "loss")
	require.NotContains(t, blind, "val_loss")
	require.NotContains(t, blind, "bits_per_byte")
}

// A run's config.toml repeats the run bit for bit, from any folder, although the run was
// given relative paths.
func TestRepeat(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	require.NoError(t, os.WriteFile("text.txt", []byte(goText(20_000)), 0o600))
	for _, recipe := range []string{"fp8-smooth", "bf16"} {
		first, second := filepath.Join(home, recipe), filepath.Join(home, recipe+"-again")
		t.Chdir(home)
		succeed(t, trainArgs("text.txt", recipe, 12, "--recipe", recipe, "--seed", "7", "--threads", "1", "train.accumulate=2")...)
		t.Chdir(t.TempDir())
		succeed(t, "train", filepath.Join(first, "config.toml"), "--out", second, "--threads", "3")
		sameRun(t, first, second)
		require.Equal(t, read(t, first, "config.toml"), read(t, second, "config.toml"))
		require.Equal(t, read(t, first, "data.json"), read(t, second, "data.json"))
	}
}

func TestDefaultFolder(t *testing.T) {
	text := corpus(t, 5000)
	t.Chdir(t.TempDir())
	args := append([]string{"train", "--data", text, "--steps", "1", "--recipe", "bf16"}, small...)
	stdout, _ := succeed(t, args...)
	runs := names(t, "runs")
	require.Len(t, runs, 1)
	require.Regexp(t, `^\d{4}-\d\d-\d\d-\d{6}-bf16$`, runs[0])
	require.Contains(t, stdout, filepath.Join("runs", runs[0]))
}

// Runs that begin in the same second get different folders, unless the user named one.
func TestFoldersOfOneSecond(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "date-recipe")
	c, err := run.NewConfig("", append([]string{"data.paths=" + corpus(t, 5000)}, small...)...)
	require.NoError(t, err)
	o := run.Options{Config: c, Dir: dir, Backend: "emu"}
	var held []*run.Run
	for _, want := range []string{dir, dir + "-2", dir + "-3"} {
		r, err := startNumbered(t.Context(), o, true)
		require.NoError(t, err)
		require.Equal(t, want, r.Dir)
		held = append(held, r)
	}
	_, err = startNumbered(t.Context(), o, false)
	require.ErrorIs(t, err, checkpoint.ErrLocked)
	for _, r := range held {
		require.NoError(t, r.Close())
	}
	r, err := startNumbered(t.Context(), o, true)
	require.NoError(t, err)
	require.Equal(t, dir+"-4", r.Dir, "the others hold runs now")
	require.NoError(t, r.Close())
}

func TestDryRun(t *testing.T) {
	t.Chdir(t.TempDir())
	args := append([]string{"train", "--dry-run", "--data", "no such text", "--recipe", "fp8-delayed", "precision.margin=2"}, small...)
	text, stderr := succeed(t, args...)
	require.Empty(t, stderr)
	require.Empty(t, names(t, "."), "nothing is written")
	require.NoError(t, os.WriteFile("c.toml", []byte(text), 0o600))
	loaded, err := config.Load(config.Args{File: "c.toml"})
	require.NoError(t, err)
	again, err := config.Marshal(loaded.Config)
	require.NoError(t, err)
	require.Equal(t, text, string(again))
	require.Equal(t, 32, loaded.Model.Dim)
	require.Equal(t, 2, *loaded.Precision.Margin)
	require.True(t, filepath.IsAbs(loaded.Data.Paths[0]))
}

// --dry-run accepts what train on the same backend accepts.
func TestDryRunRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"fprop multiplies input in e2m1 1x16 e4m3+fp32 by": {"--recipe", "nvfp4-plain", "--backend", "emu:h100"},
		"unknown device model \"h1000\"":                   {"--backend", "emu:h1000"},
		"input of fprop: e4m3 current 48x48 shares scales": {"--recipe", "fp8-current", `precision.rows=[{scope="layers.*", granularity="48x48"}]`},
	} {
		status, stdout, stderr := octet(append(append([]string{"train", "--dry-run"}, small...), args...)...)
		require.Equal(t, 2, status, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
	succeed(t, append([]string{"train", "--dry-run", "--recipe", "nvfp4-plain", "--backend", "emu:b200"}, small...)...)
}

// Two ranks in one process double the batch of a step.
func TestRanks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "two")
	_, stderr := succeed(t, trainArgs(corpus(t, 20_000), dir, 6, "train.ranks=2", "train.eval_every=3")...)
	require.Contains(t, stderr, "\ndevice      2 ranks, each ")
	require.Contains(t, stderr, " on each rank: ")
	require.Contains(t, stderr, "6 steps of 128 tokens")
	require.Contains(t, read(t, dir, "metrics.jsonl"), `"tokens":768,`)
}

// Without a validation part nothing is evaluated, and the sample continues the
// training text.
func TestNoValidation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	stdout, _ := succeed(t, trainArgs(corpus(t, 5000), dir, 2, "data.val_bytes=0")...)
	require.NotContains(t, stdout, "validation")
	require.Contains(t, stdout, "\nthe 1th fox jump")
	require.NotContains(t, read(t, dir, "metrics.jsonl"), "val_loss")
}

func TestShards(t *testing.T) {
	dir := t.TempDir()
	ids := make([]uint16, 4000)
	for i := range ids {
		ids[i] = uint16(i * i % 300)
	}
	for _, name := range []string{"train.bin", "val.bin"} {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, data.WriteShard(f, ids))
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "photo.png"), []byte{0}, 0o666))
	out := filepath.Join(t.TempDir(), "run")
	stdout, stderr := succeed(t, trainArgs(dir, out, 3, "model.vocab=300")...)
	require.Contains(t, stderr, "\nleft out    1 file that is not text\n")
	require.Contains(t, read(t, out, "data.json"), `"left_out": 1`)
	require.Contains(t, stderr, "300, padded to 304 for the matrix units")
	require.NotContains(t, stderr, "to beat")
	require.NotContains(t, stdout, "bits per byte")
	require.Contains(t, stdout, "next        octet eval "+shellQuote(out)+"\n")
	table, _ := succeed(t, "eval", out)
	require.NotContains(t, table, "bits per byte")
}

// Without a Go installation and without --data, octet trains on its own source.
func TestOwnSource(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("GOROOT", "")
	dir := filepath.Join(t.TempDir(), "run")
	args := append([]string{"train", "--out", dir, "--steps", "2"}, small...)
	stdout, stderr := succeed(t, args...)
	require.Contains(t, stderr, "\ncorpus      octet's own source: no Go installation found\n")
	require.Contains(t, stdout, "\nfunc ")
	require.Contains(t, stdout, ` --prompt "func "`)
	require.Contains(t, read(t, dir, "data.json"), `"octet-source"`)
	_, stderr = succeed(t, "eval", dir, "--data", corpus(t, 1000))
	require.Empty(t, stderr)
}

// A failure after the start gives status 1, and the error names the last checkpoint.
func TestDiverged(t *testing.T) {
	text := corpus(t, 20_000)
	for _, test := range []struct{ every, want string }{
		{"0", "there is no checkpoint yet\n"},
		{"1", "the last checkpoint is "},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		status, stdout, stderr := octet(trainArgs(text, dir, 50, "optimizer.lr=1e30", "optimizer.clip=0", "optimizer.warmup=0",
			"train.on_nonfinite=2", "checkpoint.every="+test.every)...)
		require.Equal(t, exitFailed, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "\nstep 2: update skipped: the gradient norm or an amax is not finite\n")
		require.Contains(t, stderr, "octet: training is not finite: 2 consecutive steps were skipped: ")
		require.Contains(t, stderr, test.want)
		require.Contains(t, read(t, dir, "metrics.jsonl"), `"grad_norm":null`)
		require.Contains(t, read(t, dir, "run.log"), `"msg":"stopped"`)
	}
}

// The message and the status if a checkpoint cannot be written.
func TestFullDisk(t *testing.T) {
	full := func(c disk.Change) error {
		if c.Op == disk.Sync && strings.Contains(c.Path, ".step-00000004") {
			return &os.PathError{Op: "sync", Path: c.Path, Err: syscall.ENOSPC}
		}
		return c.Do()
	}
	text := corpus(t, 20_000)
	for _, on := range []string{"stop", "continue"} {
		dir := filepath.Join(t.TempDir(), "run")
		restore := disk.Intercept(full)
		status, _, stderr := octet(trainArgs(text, dir, 8, "checkpoint.every=2", "checkpoint.on_error="+on)...)
		restore()
		cause := `writing the checkpoint of step 4: writing ` + dir + `/checkpoints/step-00000004: model\.safetensors: .*: ` + syscall.ENOSPC.Error()
		if on == "stop" {
			require.Equal(t, exitFailed, status)
			require.Regexp(t, `\noctet: `+cause+`; the last checkpoint is `+dir+`/checkpoints/step-00000002: free some space, then resume the run with octet train --resume --out `+dir+`\n$`, stderr)
		} else {
			require.Zero(t, status)
			require.Regexp(t, `\nstep [56]: `+cause+`; training continues and tries again at the next checkpoint\n`, stderr)
			require.Equal(t, []string{"step-00000006", "step-00000008"}, names(t, filepath.Join(dir, "checkpoints")))
		}
	}
}

// A port in use is an error before anything is created; the header shows the address of the
// metrics.
func TestMetricsAddress(t *testing.T) {
	taken, err := exporter.Open("0", exporter.Build{})
	require.NoError(t, err)
	defer taken.Close()
	address := strings.TrimSuffix(strings.TrimPrefix(taken.URL(), "http://"), "/metrics")
	dir := filepath.Join(t.TempDir(), "run")
	text := corpus(t, 10_000)
	for _, bad := range []string{address, "example.com:9100"} {
		status, _, stderr := octet(trainArgs(text, dir, 1, "--metrics-addr", bad)...)
		require.Equal(t, exitInput, status)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.Contains(t, stderr, "--metrics-addr ")
		require.NoDirExists(t, dir)
	}
	_, stderr := succeed(t, trainArgs(text, dir, 1, "--metrics-addr", "0")...)
	url := regexp.MustCompile(`\nmetrics +(http://127\.0\.0\.1:\d+/metrics)\n`).FindStringSubmatch(stderr)
	require.NotNil(t, url, stderr)
	_, err = http.Get(url[1])
	require.Error(t, err, "the exporter is closed")
}

// A long compilation gives one line; other devices give none.
func TestCompileNotice(t *testing.T) {
	silence := compileNoticeAfter
	defer func() { compileNoticeAfter = silence }()
	compileNoticeAfter = 0
	var stderr *syncBuffer
	said := func() bool { return strings.Contains(stderr.String(), "octet: compiling ") }
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	openEmu := emu.Open
	emu.Name, emu.Priority = "emu-compiled", -1
	emu.Open = func(_ string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu("", o)
		return compiling{b, func() { waitFor(t, said) }}, err
	}
	emu.Spec = func(string) (backend.Spec, error) { return backend.Spec{}, nil }
	t.Cleanup(backend.Register(emu))

	run := func(args ...string) {
		t.Helper()
		stderr = &syncBuffer{}
		terminal := &terminal{name: "octet", out: io.Discard, err: stderr, sources: ownSource}
		require.Zero(t, terminal.run(t.Context(), append(args, "--backend", "emu-compiled")), stderr)
	}
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 10_000), dir, 1, "--backend", "emu")...)
	run("eval", dir)
	run("generate", dir, "--prompt", "a", "--tokens", "2")
	run("export", dir, "--out", filepath.Join(t.TempDir(), "out"))
	dir = filepath.Join(t.TempDir(), "run")
	run(trainArgs(corpus(t, 10_000), dir, 2)...)
	require.Regexp(t, `^octet: training on emu-compiled .*\noctet: compiling programs that this machine has not cached; .*\n\nrecipe `, stderr.String())
	require.Regexp(t, `"msg":"start".*"load_s":\d`, read(t, dir, "run.log"))

	_, quiet := succeed(t, trainArgs(corpus(t, 10_000), filepath.Join(t.TempDir(), "run"), 2, "--backend", "emu")...)
	require.NotContains(t, quiet, "compiling")
}

// compiling is emu as a device with its own memory and slow loading of programs.
type compiling struct {
	backend.Backend
	wait func()
}

func (d compiling) Spec() backend.Spec {
	s := d.Backend.Spec()
	s.HostMemory = false
	return s
}

func (d compiling) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	d.wait()
	return d.Backend.Load(programs...)
}

// optimizer.stats adds a description of each update to metrics.jsonl and changes no other value.
func TestUpdateStatsInMetrics(t *testing.T) {
	text := corpus(t, 20_000)
	var losses [2][]writers.Float
	for i, stats := range []string{"false", "true"} {
		dir := filepath.Join(t.TempDir(), stats)
		succeed(t, trainArgs(text, dir, 3, "optimizer.stats="+stats)...)
		for line := range strings.Lines(read(t, dir, "metrics.jsonl")) {
			var m writers.Metrics
			require.NoError(t, json.Unmarshal([]byte(line), &m))
			losses[i] = append(losses[i], m.Loss)
			require.Equal(t, stats == "true", m.Update != nil, line)
			if m.Update != nil {
				require.InDelta(t, 1, float64(m.Update.RMS), 0.6)
				require.InDelta(t, 1, float64(m.Update.Largest), 0.6)
				require.Positive(t, float64(m.Update.EmbeddingRMS))
				require.Contains(t, m.Update.LargestIn, ".weight")
				require.Contains(t, line, `"zero_v":0}`)
			}
		}
	}
	require.Equal(t, losses[0], losses[1])
}
