package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/sweep"
)

// sweepFile writes a sweep file for the smallest model and its text, and returns its path.
func sweepFile(t *testing.T, steps int, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text.txt"), []byte(goText(20_000)), 0o600))
	path := filepath.Join(dir, "s.toml")
	writeSweepFile(t, path, steps, more...)
	return path
}

func writeSweepFile(t *testing.T, path string, steps int, more ...string) {
	t.Helper()
	set := append([]string{"data.paths=text.txt", fmt.Sprintf("train.steps=%d", steps), "data.val_bytes=300"}, small...)
	text := fmt.Sprintf("set = [\"%s\"]\n%s\n", strings.Join(set, `", "`), strings.Join(more, "\n"))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// results returns results.csv without its heading.
func results(t *testing.T, dir string) [][]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(read(t, dir, "results.csv"))).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"variant", "seed", "backend", "state", "step", "steps", "loss", "val_loss", "run", "error"}, rows[0])
	return rows[1:]
}

// A sweep trains like octet train, and more seeds and recipes in its file add runs.
func TestSweep(t *testing.T) {
	file := sweepFile(t, 3, `recipes = ["bf16", "fp8-smooth"]`, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	table, stderr := succeed(t, "sweep", file, "-o", out)
	require.Contains(t, stderr, "4 of 4 runs are pending")
	require.Equal(t, 4, strings.Count(stderr, "validation"))
	lines := strings.Split(table, "\n")
	require.Regexp(t, `^variant +runs +validation loss +range +difference in % +p$`, lines[0])
	require.Regexp(t, `^bf16 +2 +\d\.\d{4} +\d\.\d{4}–\d\.\d{4} +baseline +–$`, lines[1])
	require.Regexp(t, `^fp8-smooth +2 +\d\.\d{4} +\d\.\d{4}–\d\.\d{4} +[+-]\d\.\d{3} ± \d\.\d{3} +[\d.e-]+$`, lines[2])

	require.Contains(t, table, "variant     worst step   largest update  spikes  bytes per parameter  per activation  sent per parameter  step\n")
	require.Regexp(t, `\nbf16 +baseline +– +0 +16\.00 +2\.\d\d +5\.\d\d +[\d.e+]+ ms\nfp8-smooth +-?\d\.\d{3}–-?\d\.\d{3} +– +0 +1\d\.\d\d +1\.\d\d +5\.\d\d +[\d.e+]+ ms\n\nworst step: `, table)

	markdown, _ := succeed(t, "sweep", file, "-o", out, "--markdown")
	require.Regexp(t, "^\\| variant \\| runs \\| mean loss \\| against `bf16` \\|.*\n\\| ---.*\n\\| `bf16` \\| 2 \\| \\d\\.\\d{4} \\| baseline \\|.*\n\\| `fp8-smooth` \\| 2 \\| \\d\\.\\d{4} \\| [+−]\\d\\.\\d{3} ± \\d\\.\\d{3} % \\|.*\n$", markdown)

	alone := filepath.Join(t.TempDir(), "alone")
	succeed(t, trainArgs(filepath.Join(filepath.Dir(file), "text.txt"), alone, 3, "--recipe", "bf16", "--seed", "2", "data.val_bytes=300")...)
	sameRun(t, alone, filepath.Join(out, "runs", "bf16", "seed-2"))

	again, stderr := succeed(t, "sweep", file, "-o", out)
	require.Equal(t, table, again)
	require.Empty(t, stderr)

	writeSweepFile(t, file, 3, `recipes = ["bf16", "fp8-smooth", "fp8-delayed"]`, "seeds = [1, 2, 3]")
	text, stderr := succeed(t, "sweep", file, "-o", out, "--json", "--jobs", "3")
	require.Contains(t, stderr, "5 of 9 runs are pending, 3 at a time")
	var all struct {
		Variants []struct {
			Name, Baseline string
			Done           int
			Difference     struct {
				Pairs int
				P     float64
			} `json:"difference_percent"`
		}
		Runs []struct {
			Variant, State, Run string
			Seed                int
			ValLoss             float64 `json:"val_loss"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &all))
	require.Len(t, all.Variants, 3)
	require.Equal(t, "bf16", all.Variants[2].Baseline)
	require.Equal(t, 3, all.Variants[2].Difference.Pairs)
	require.Positive(t, all.Variants[2].Difference.P)
	require.Len(t, all.Runs, 9)
	for i, r := range all.Runs {
		require.Equal(t, "done", r.State)
		require.Equal(t, 1+i/3, r.Seed, "all variants of a seed come first")
		require.Equal(t, fmt.Sprint(r.ValLoss), results(t, out)[i][7])
	}
	groups, err := sweep.Groups(out)
	require.NoError(t, err)
	pairs := groups[2].Pairs()
	require.Len(t, pairs, 3)
	for i, p := range pairs {
		loss, _ := p.Run.Metrics["val_loss"].Last()
		require.Equal(t, all.Runs[3*i+2].ValLoss, loss)
	}

	// A shorter list leaves the runs where they are.
	writeSweepFile(t, file, 3, `recipes = ["bf16", "fp8-smooth"]`, "seeds = [1, 2]")
	again, stderr = succeed(t, "sweep", file, "-o", out)
	require.Equal(t, table, again)
	require.Contains(t, stderr, "fp8-delayed is not part of the sweep file")
}

// Everything is checked before the first run starts, and all problems are listed.
func TestSweepChecksEverything(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	texts := func(lists string) string { // a file with texts instead of the one of sweepFile
		file := sweepFile(t, 3, lists)
		text := strings.Replace(read(t, file), `"data.paths=text.txt", `, "", 1)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	huge := sweepFile(t, 3)
	require.NoError(t, os.WriteFile(huge, []byte("set = [\"data.paths=text.txt\", \"model.dim=1024\"]\n[grid]\n\"model.ffn\" = [352, 16777216]\n"), 0o600))
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{texts(`recipes = ["bf16", "fp4"]` + "\ndata = [[\"gone.txt\"], [\"text.txt\"]]")}, []string{"fp4 data=gone.txt and 1 more: unknown recipe"}},
		{[]string{texts(`data = [["gone.txt"], ["lost.txt"], ["text.txt"]]`)}, []string{"data=gone.txt: ", "data=lost.txt: "}},
		{[]string{sweepFile(t, 3, `backends = ["emu", "rref", "emu:h900"]`, `recipes = ["bf16", "mxfp6"]`)}, []string{`bf16 on rref and 1 more: unknown backend "rref"`, "bf16 on emu:h900 and 1 more: "}},
		{[]string{sweepFile(t, 3, "seeds = [1, 2]"), "--backend", "emu,rref"}, []string{`unknown backend "rref"`}},
		{[]string{sweepFile(t, 3, `recipes = ["bf16", "mxfp6"]`, `backends = ["emu", "emu:h100"]`)}, []string{"mxfp6 on emu:h100: unsupported by backend emu"}},
		{[]string{sweepFile(t, 3, "[[variants]]", `name = "all"`, `set = ["train.accumulate=1"]`, "[[variants]]", `name = "none"`, `set = ["model.dim=30"]`)}, []string{"none: "}},
		{[]string{sweepFile(t, 3, "seeds = [1, 2]", "[[variants]]", `name = "many"`, `set = ["train.ranks=1025"]`)}, []string{"train.ranks = 1025"}},
		{[]string{huge}, []string{"ffn=16777216: a run needs ", " of memory"}},
		{[]string{sweepFile(t, 3, `backends = ["emu", "ref"]`), "--backend", "emu"}, []string{"keep one of them"}},
		{[]string{sweepFile(t, 3, "seeds = [1, 2]"), "--backend", "emu:h100,emu:gaudi2"}, []string{"list backends to compare in the sweep file"}},
		{[]string{sweepFile(t, 3, "seeds = [1, 2]"), "--jobs", "-1"}, []string{"--jobs -1"}},
		{[]string{sweepFile(t, 3, "recipe = 1")}, []string{"did you mean recipes?"}},
		{[]string{filepath.Join(t.TempDir(), "none.toml")}, []string{"the sweep file cannot be read"}},
	} {
		status, stdout, stderr := octet(append(append([]string{"sweep"}, test.args...), "-o", out)...)
		require.Equal(t, exitInput, status, stderr)
		require.Empty(t, stdout)
		for _, w := range test.want {
			require.Contains(t, stderr, w)
		}
		require.NoDirExists(t, out)
	}
	file := sweepFile(t, 3, "seeds = [1, 2]")
	status, _, stderr := octet("sweep", file, "-o", filepath.Dir(file))
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "so it is no sweep")
}

// A sweep refuses run folders of another configuration, by name, and changes nothing.
func TestSweepOfAnotherConfiguration(t *testing.T) {
	file := sweepFile(t, 2, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	succeed(t, "sweep", file, "-o", out)
	folder := names(t, filepath.Join(out, "runs"))[0]
	before := read(t, out, "sweep.toml")
	refused := func(want string, args ...string) {
		t.Helper()
		status, _, stderr := octet(append([]string{"sweep", file, "-o", out}, args...)...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, filepath.Join("runs", folder, "seed-1")+" and 1 more: the folder holds a run with another configuration")
		require.Contains(t, stderr, want)
		require.Equal(t, before, read(t, out, "sweep.toml"))
	}
	refused("the backend is emu in the run, emu:h100 given", "--backend", "emu:h100")
	writeSweepFile(t, file, 3, "seeds = [1, 2]")
	refused("train.steps is 2 in the run, 3 given")
	writeSweepFile(t, file, 2, "seeds = [1, 2]", `config = "base.toml"`)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "base.toml"), []byte("[optimizer]\nlr = 0.5\n"), 0o600))
	refused("optimizer.lr is 0.002 in the run, 0.5 given")
	unlock, err := checkpoint.Lock(out)
	require.NoError(t, err)
	status, _, stderr := octet("sweep", file, "-o", out)
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "in use by another octet process")
	require.NoError(t, unlock())
}

// A failed run is a row with its error. It stays failed until --retry.
func TestSweepWithAFailure(t *testing.T) {
	file := sweepFile(t, 2, `recipes = ["bf16", "fp8-smooth"]`, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	inTheWay := filepath.Join(out, "runs", "fp8-smooth", "seed-2", "notes.txt")
	succeed(t, "sweep", sweepFile(t, 2, `recipes = ["bf16", "fp8-smooth"]`, "seeds = [3, 4]"), "-o", out) // makes the folder
	require.NoError(t, os.RemoveAll(filepath.Join(out, "runs")))
	require.NoError(t, os.MkdirAll(filepath.Dir(inTheWay), 0o700))
	require.NoError(t, os.WriteFile(inTheWay, nil, 0o600))
	sweep := func(status int, args ...string) (stdout, stderr string) {
		t.Helper()
		got, stdout, stderr := octet(append([]string{"sweep", file, "-o", out}, args...)...)
		require.Equal(t, status, got, stderr)
		return stdout, stderr
	}
	first, stderr := sweep(exitFailed)
	const failure = `"notes.txt", which is not part of a run: name a new or an empty folder`
	require.Contains(t, stderr, "4 of 4: ")
	require.Contains(t, stderr, "fp8-smooth, seed 2: failed: ")
	require.Contains(t, stderr, "1 run failed; --retry tries again")
	require.Regexp(t, `\nfp8-smooth +1 of 2 +\d`, first)
	require.Regexp(t, `\nfailed      fp8-smooth, seed 2: .*`+failure, first)
	rows := results(t, out)
	require.Equal(t, []string{"fp8-smooth", "2", "emu", "failed", "0"}, rows[3][:5])
	require.Contains(t, rows[3][9], failure)

	require.NoError(t, os.Remove(inTheWay))
	again, stderr := sweep(exitFailed)
	require.Equal(t, first, again)
	require.NotContains(t, stderr, "pending")
	second, stderr := sweep(0, "--retry")
	require.Contains(t, stderr, "1 of 4 runs are pending")
	require.Regexp(t, `\nfp8-smooth +2 +\d`, second)
	require.NoFileExists(t, filepath.Join(out, "failures.json"))
}

// A run without its last checkpoint is not done, whatever its metrics say: octet train refuses
// it, and its row has the error.
func TestSweepWithoutACheckpoint(t *testing.T) {
	file := sweepFile(t, 3, "seeds = [1, 2]")
	out := filepath.Join(t.TempDir(), "out")
	succeed(t, "sweep", file, "-o", out)
	require.NoError(t, os.RemoveAll(filepath.Join(out, "runs", "fp8-smooth", "seed-2", checkpoint.Dir)))
	status, table, stderr := octet("sweep", file, "-o", out)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "1 of 2 runs are pending")
	require.Regexp(t, `fp8-smooth +1 of 2 `, table)
	require.Contains(t, table, "seed-2/run.log records the checkpoint of step 3")
}
