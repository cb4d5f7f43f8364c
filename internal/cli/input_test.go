package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// Bad input gives status 2, one sentence that says what is wrong, and leaves no folder.
func TestBadInput(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	}
	write("text.txt", goText(5000))
	write("empty.txt", "")
	write("short.txt", "hi")
	write("zero.txt", "a\x00b")
	write("junk.bin", strings.Repeat("junk", 1000))
	write("torn.bin", "torn")
	write("unknown.toml", "[model]\nlayer = 3\n")
	write("twice.toml", "seed = 1\nseed = 2\n")
	write("broken.toml", "[model\n")
	require.NoError(t, os.Mkdir("hollow", 0o700))
	before := names(t, ".")

	data := []string{"--data", "text.txt"}
	for _, test := range []struct {
		want string
		args []string
	}{
		{"unknown key model.layer; did you mean model.layers?", []string{"model.layer=3"}},
		{"unknown.toml:2: unknown key model.layer", []string{"unknown.toml"}},
		{"seed is given twice, on line 1 and on line 2", []string{"twice.toml"}},
		{"broken.toml:", []string{"broken.toml"}},
		{"none.toml", []string{"none.toml"}},
		{"hollow is a folder", []string{"hollow"}},
		{"seed is given twice, by seed=2 and by --seed 1", []string{"--seed", "1", "seed=2"}},
		{"given twice, as 1 and as 2", []string{"--steps", "1", "--steps", "2"}},
		{"train.steps = -3 is out of range", []string{"--steps", "-3"}},
		{"optimizer.min_lr = 1 is not below optimizer.lr", []string{"optimizer.min_lr=1"}},
		{"is a flag and not a configuration key", []string{"out=x"}},
		{"model.dim = 100 is not a multiple of 16, which FP8 GEMMs require; use 96", []string{"model.dim=100"}},
		{"model.ffn = 50 is not a multiple of 16, which FP8 GEMMs require; use 48", []string{"model.ffn=50"}},
		{"use data.seq = 16 or train.micro_batch = 16", []string{"train.micro_batch=1", "data.seq=13"}},
		{"use model.heads = 4", []string{"model.heads=5"}},
		{`unknown recipe "quick" (octet recipes lists all recipes)`, []string{"--recipe", "quick"}},
		{`unknown recipe "fp8_smooth"; did you mean fp8-smooth?`, []string{"--recipe", "fp8_smooth"}},
		{"there is no such preset; use one of tiny, small, 124m", []string{"--model", "3b"}},
		{"; did you mean small?", []string{"--model", "smal"}},
		{`unknown backend "tpu" (known: cuda, gaudi, emu`, []string{"--backend", "tpu"}},
		{"--backend is empty: name one, such as emu", []string{"--backend="}},
		{"--backend is empty: name one, such as emu", []string{"--backend", ""}},
		{`unknown device model "h900"`, []string{"--backend", "emu:h900"}},
		{"use --backend emu", []string{"--backend", "cuda"}},
		{"use --backend emu", []string{"--backend", "gaudi:0"}},
		{"--threads 70000 is out of range", []string{"--threads", "70000"}},
		{"--threads -1 is out of range", []string{"--threads=-1"}},
		{"--threads", []string{"--threads", "many"}},
		{"unknown flag --bogus\n", []string{"--bogus"}},
		{"unknown flag --step; did you mean --steps?\n", []string{"--step", "3"}},
		{"unknown flag --lr; did you mean optimizer.lr=VALUE?\n", []string{"--lr=0.1"}},
		{"unknown flag --micro-batch; did you mean train.micro_batch=VALUE?\n", []string{"--micro-batch", "2"}},
		{"unknown flag -x\n", []string{"-x"}},
		{"--recipe needs a value, but --steps follows\n", []string{"--recipe", "--steps", "2"}},
		{"--recipe needs a value\n", []string{"model.layers=2", "--recipe"}},
		{"; give a text to train on as data.paths\n", []string{"text.txt"}},
		{"unknown flag --sted; did you mean --seed?\n", []string{"--sted=3"}},
		{"none.txt\" does not exist", []string{"--data", "none.txt"}},
		{"empty.txt\" is empty", []string{"--data", "empty.txt"}},
		{"hollow\" has no file", []string{"--data", "hollow"}},
		{"2 tokens are too few for training", []string{"--data", "short.txt"}},
		{"zero byte at offset 1", []string{"--data", "zero.txt"}},
		{"junk.bin\": it begins with", []string{"--data", "junk.bin"}},
		{"torn.bin", []string{"--data", "torn.bin"}},
		{"name shards or text, not both", []string{"--data", "junk.bin", "--data", "text.txt"}},
		{"named twice", []string{"--data", "text.txt", "--data", "text.txt"}},
		{"data.paths holds an empty path", []string{"--data", ""}},
		{"model.vocab must be at least 256", append(data, "model.vocab=128")},
		{"no config.json", append(data, "model.init=hollow")},
		{"of memory and this machine has", append(data, "model.layers=8", "model.dim=32768", "model.ffn=131072", "model.vocab=1000000")},
	} {
		if strings.Contains(test.want, "memory") && runtime.GOOS == "windows" {
			continue // the free memory is unknown there
		}
		// The test's own arguments replace those of the small model.
		args := []string{"train", "--out", filepath.Join("runs", "deep", "bad")}
		for _, s := range small {
			key, _, _ := strings.Cut(s, "=")
			if !slices.ContainsFunc(test.args, func(a string) bool { return strings.HasPrefix(a, key+"=") }) {
				args = append(args, s)
			}
		}
		status, stdout, stderr := octet(append(args, test.args...)...)
		require.Equal(t, exitInput, status, "%v\n%s", test.args, stderr)
		require.Empty(t, stdout)
		// A slow start prints the announcement first.
		stderr = strings.TrimPrefix(stderr, firstLines(stderr))
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
		require.Equal(t, before, names(t, "."), test.args)
	}
}

// firstLines returns the announcement of a run, if it was printed.
func firstLines(stderr string) (lines string) {
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "octet: training ") {
			break
		}
		lines += line
	}
	return lines
}

func TestBadFolders(t *testing.T) {
	text := corpus(t, 5000)
	dir := t.TempDir()
	refused := func(want string, args ...string) {
		t.Helper()
		status, _, stderr := octet(args...)
		require.Equal(t, exitInput, status, stderr)
		requireOneSentence(t, strings.TrimPrefix(stderr, firstLines(stderr)))
		require.Contains(t, stderr, want)
	}
	run := filepath.Join(dir, "run")
	succeed(t, trainArgs(text, run, 1)...)
	before := names(t, run)
	refused(run+" already holds a run: name another folder with --out, or resume the run with --resume", trainArgs(text, run, 1)...)
	require.Equal(t, before, names(t, run))

	unlock, err := checkpoint.Lock(run)
	require.NoError(t, err)
	refused("in use by another octet process", "train", "--resume", "--out", run)
	require.NoError(t, unlock())

	refused("cannot be made", trainArgs(text, filepath.Join(text, "below"), 1)...)
	require.FileExists(t, text)

	// An existing folder stays as it was.
	own := filepath.Join(dir, "own")
	require.NoError(t, os.Mkdir(own, 0o700))
	refused("too few", trainArgs(corpus(t, 20), own, 1)...)
	require.Empty(t, names(t, own))
	require.NoError(t, os.WriteFile(filepath.Join(own, "data.json"), nil, 0o600))
	refused(`holds "data.json", which is not part of a run`, trainArgs(text, own, 1)...)
	require.Equal(t, []string{"data.json"}, names(t, own))

	if os.Getuid() > 0 { // root may write anywhere; Windows has no such number
		require.NoError(t, os.Chmod(dir, 0o500))
		refused("permission denied", trainArgs(text, filepath.Join(dir, "new"), 1)...)
		require.NoError(t, os.Chmod(dir, 0o700))
	}
}
