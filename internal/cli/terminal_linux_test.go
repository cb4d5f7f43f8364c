package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"octet/checkpoint"
	"octet/recipe"
)

// A run whose terminal is closed saves a checkpoint, although it can no longer print.
func TestClosedTerminal(t *testing.T) {
	master, slave := openTerminal(t)
	require.True(t, isTerminal(&stdout{to: slave}), "printSummary writes through stdout")
	shown := &syncBuffer{}
	go func() { _, _ = io.Copy(shown, master) }() // until it is closed

	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], trainArgs(corpus(t, 20_000), dir, 1_000_000, "checkpoint.every=0", "train.eval_every=0")...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // the terminal of descriptor 0
	require.NoError(t, cmd.Start())
	require.NoError(t, slave.Close())
	waitFor(t, func() bool { return steps(dir) >= 20 && strings.Contains(shown.String(), "\rstep ") })
	require.NoError(t, master.Close())
	require.Error(t, cmd.Wait())
	require.Equal(t, 128+int(syscall.SIGHUP), cmd.ProcessState.ExitCode(), shown)
	list, err := checkpoint.List(filepath.Join(dir, "checkpoints"))
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, steps(dir), list[0].Step)
	require.NoError(t, checkpoint.Verify(list[0].Path))
}

// A run continues if standard error cannot be written; if the result cannot be written, the
// command fails.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, full.Close()) }()
	dir := filepath.Join(t.TempDir(), "run")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		return cmd
	}
	cmd := command(trainArgs(corpus(t, 20_000), dir, 3)...)
	cmd.Stderr = full
	result, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(result), "\ncheckpoint  ")
	require.Equal(t, 3, steps(dir))

	for _, args := range [][]string{
		{"diff", dir, dir}, {"diff", "--json", dir, dir}, {"inspect", dir}, {"eval", dir}, {"plan"}, {"generate", dir, "--prompt", "the "},
	} {
		cmd := command(args...)
		cmd.Stdout = full
		stderr := &syncBuffer{}
		cmd.Stderr = stderr
		require.Error(t, cmd.Run(), args)
		require.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "no space left on device"), args)
	}

	for _, args := range [][]string{nil, {"--json"}} {
		cmd := command(append([]string{"train", "--resume", "--out", dir}, args...)...)
		cmd.Stdout = full
		stderr := &syncBuffer{}
		cmd.Stderr = stderr
		require.Error(t, cmd.Run(), args)
		require.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), args)
		require.True(t, strings.HasSuffix(stderr.String(), "\noctet: the run is done and saved in "+dir+
			"; its result could not be written: no space left on device\n"), stderr)
	}
}

// openTerminal makes a pseudo terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	// Non-blocking, so that Close ends a Read.
	return os.NewFile(uintptr(fd), "/dev/ptmx"), slave
}

// A narrow terminal breaks no word, and no echo of Ctrl-C remains.
func TestNarrowTerminal(t *testing.T) {
	const columns = 60
	master, slave := openTerminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: columns}))
	shown := &syncBuffer{}
	go func() { _, _ = io.Copy(shown, master) }() // until it is closed
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], trainArgs(corpus(t, 20_000), dir, 1_000_000, "checkpoint.every=0", "train.eval_every=0")...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // the terminal of descriptor 0
	require.NoError(t, cmd.Start())
	require.NoError(t, slave.Close())
	waitFor(t, func() bool { return steps(dir) >= 20 && strings.Contains(shown.String(), "\rstep ") })
	_, err := master.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), shown)
	waitFor(t, func() bool { return strings.Contains(shown.String(), "resume ") })
	require.NoError(t, master.Close())

	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(shown.String(), "\r\n", "\n"), "\n") {
		cells, at := []byte(strings.Repeat(" ", 400)), 0
		for _, c := range []byte(strings.TrimPrefix(line, "\n")) {
			if c == '\r' {
				at = 0
				continue
			}
			cells[at] = c
			at++
		}
		line = strings.TrimRight(string(cells), " ")
		lines = append(lines, line)
		if !strings.Contains(line, dir) {
			require.LessOrEqual(t, len(line), columns, line)
		}
	}
	require.Contains(t, lines, "octet: stopping; a second signal quits without saving", "alone on its line")
}

// onTerminal runs a command line on a pseudo terminal and returns what it shows.
func onTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, slave := openTerminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	var shown syncBuffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&shown, master) // until the terminal is closed
	}()
	(&terminal{name: "octet", out: slave, err: slave, sources: ownSource}).run(t.Context(), args)
	require.NoError(t, slave.Close())
	<-done
	require.NoError(t, master.Close())
	return strings.ReplaceAll(shown.String(), "\r\n", "\n")
}

// No command writes a line of more than 80 columns to a terminal of 80, except paths. JSON,
// dumped programs and generated text are as they are.
func TestLinesOfATerminal(t *testing.T) {
	const columns = 80
	t.Setenv("COLUMNS", "")
	text, dir := corpus(t, 20_000), t.TempDir()
	t.Chdir(dir)
	other := filepath.Join(dir, "other")
	succeed(t, trainArgs(text, other, 2, "seed=2")...)
	sweeps := sweepFile(t, 2, `recipes = ["bf16", "fp8-smooth-token"]`, "[[variants]]", `name = "a long name of a variant in which m1 is in e5m2"`, `set = ["recipe=bf16"]`)
	require.NoError(t, os.WriteFile("rows.jsonl", []byte(`{"text":"a long text"}`), 0o600))
	taskPath := filepath.Join(dir, "long.jsonl")
	require.NoError(t, os.WriteFile(taskPath, []byte(`{"octet_task":1,"kind":"rolling","name":"a long name of a task of three metrics"}`+"\n"+`{"text":"a text"}`), 0o600))
	lines := map[string][]string{ // by command
		"train": {
			"train --out run --steps 3 --data " + text + " " + strings.Join(small, " "),
			"train --dry-run", "train --out run", "train --resume --out none", "train --recipe fp9", "train --no-such-flag",
			"train --out " + other + " --data " + text, "train --backend emu:h200", "train --rendezvous node1:29500",
			"train --ranks 2 --backend " + processes + ":absent --out two --data " + text,
		},
		"sweep":    {"sweep " + sweeps + " -o swept", "sweep " + sweeps + " -o swept", "sweep " + sweeps + " -o run", "sweep none.toml -o x", "sweep " + sweeps},
		"eval":     {"eval run", "eval none", "eval run --task " + taskPath, "eval run --quant w4a16-g32-rtn --task " + taskPath, "eval run --task " + text},
		"parity":   {"parity run --windows 1", "parity run --windows 0"},
		"generate": {"generate run", "generate run --prompt the --tokens 0"},
		"export":   {"export run --out fp8 --format fp8", "export run --out fp8"},
		"inspect":  {"inspect run", "inspect run --all", "inspect fp8", "inspect none"},
		"report":   {"report run", "report run other -o two.html", "report none"},
		"board":    {"board none", "board . --port 99999"},
		"diff":     {"diff run other", "diff run none"},
		"plan": {
			"plan", "plan --model llama3-8b --backend cuda", "plan --backend gaudi train.ranks=8", "plan --recipe mxfp8 --backend cuda",
			"plan --cluster h100:8x16 --recipe bf16,fp8-smooth,fp8-smooth-token,fp8-w3-bf16,fp8-delayed --tokens 1.5T --price 2 --grid 400 --sweep 1..16",
			"plan --cluster gaudi2", "plan --cluster mi300x", "plan --cluster h100:8x999", "plan --tokens 2T", "plan --cluster h100 --assume a=1", "plan --cluster l40s",
		},
		"recipes":           {"recipes", "recipes --backend emu", "recipes fp8-smooth --backend emu:gaudi2", "recipes " + strings.Join(recipe.Names(), " ")},
		"compare":           {"compare --backend emu --backend emu:h100 --data " + text + " " + strings.Join(small, " "), "compare --backend emu"},
		"quantize":          {"quantize " + npyFile(t, "w.npy", 4, 32) + " --format e2m1 --granularity 1x16 --scale e4m3+fp32", "quantize w.npy --format e9m9", "quantize other/checkpoints --format e4m3"},
		"dump":              {"dump run --step 2 --tensor layers.0.* --out dumped", "dump run --step 2 --tensor nothing --out d", "dump none --step 2 --tensor * --out d"},
		"gemm":              {"gemm --shape 3x16x64", "gemm --backend emu:h100 --explain 0,0", "gemm --backend emu --explain 0,0"},
		"data prepare":      {"data prepare " + text + " --tokenizer tok.json --out tokens", "data prepare " + text + " --out tokens", "data prepare none -o x", "data prepare tok.json --kind messages -o x"},
		"data inspect":      {"data inspect tokens --verify", "data inspect none", "data inspect tokens/train-000000.bin"},
		"data task":         {"data task lambada rows.jsonl -o task.jsonl", "data task lambada rows.jsonl -o task.jsonl", "data task poems rows.jsonl"},
		"tokenizer train":   {"tokenizer train " + text + " --vocab 300 -o tok.json", "tokenizer train " + text + " --vocab 9 -o tok2.json"},
		"tokenizer encode":  {"tokenizer encode none " + text, "tokenizer encode tok.json none"},
		"tokenizer decode":  {"tokenizer decode tok.json " + text},
		"bench step":        {"bench step --seconds 0 --recipe bf16,fp8-smooth,fp8-delayed,fp8-current,te-current " + strings.Join(small, " ")},
		"bench gemm":        {"bench gemm --seconds 0 16x32x48 --calibrate cpu.toml", "plan --calibration cpu.toml"},
		"bench attention":   {"bench attention --seconds 0 1x32x2x16"},
		"bench layers":      {"bench layers --seconds 0 16x32"},
		"bench quantize":    {"bench quantize --seconds 0 16x32"},
		"bench optimizer":   {"bench optimizer --seconds 0 3000"},
		"bench collectives": {"bench collectives --backend emu --ranks 2 --seconds 0 4k --calibrate net.toml", "bench collectives --backend emu"},
		"doctor":            {"doctor", "doctor --backend cuda:65535", "doctor --backend emu:h900"},
		"serve":             {"serve", "serve --stdio --threads -1"},
		"version":           {"version"},
	}
	sample := regexp.MustCompile(`(?s)\n\nthe \d.*\n\ncheckpoint`)
	parser, err := kong.New(&commands{}, kong.Vars{})
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		name := leaf.Path()
		require.Contains(t, lines, name, "give command lines for a new command")
		for _, line := range append(lines[name], name+" --help", name+" --nothing") {
			shown := onTerminal(t, columns, strings.Fields(line)...)
			require.NotEmpty(t, shown, line)
			shown = sample.ReplaceAllString(shown, "\n\ncheckpoint")
			for _, l := range strings.FieldsFunc(shown, func(r rune) bool { return r == '\n' || r == '\r' }) {
				if utf8.RuneCountInString(l) > columns {
					require.Contains(t, strings.Fields(l)[len(strings.Fields(l))-1], os.TempDir(), "octet %s", line)
				}
			}
		}
	}
}

// A terminal shows a picture of the loss after training and in inspect; a pipe does not.
func TestPictureOnATerminal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	args := trainArgs(corpus(t, 20_000), dir, 3)
	require.Contains(t, onTerminal(t, 80, args...), "training loss, nats per token")
	require.Contains(t, onTerminal(t, 80, "inspect", dir), "training loss, nats per token")
	out, _ := succeed(t, "inspect", dir)
	require.NotContains(t, out, "training loss")

	metrics := filepath.Join(dir, "metrics.jsonl")
	require.NoError(t, os.WriteFile(metrics, []byte(`{"step":1,"loss":3,"fp8":{"a":{"saturated":0.5}}}`+"\n"+`{"step":2,"loss":2,"fp8":{"a":{"saturated":0.5}}}`+"\n"), 0o600))
	require.Contains(t, onTerminal(t, 30, "inspect", dir), "saturated")
}
