package cli

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// traced returns the number of events in a run's trace by program.
func traced(t *testing.T, dir string) map[string]int {
	t.Helper()
	var trace struct {
		TraceEvents []struct {
			Name string
			Args struct{ Program string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, dir, "trace.json")), &trace))
	count := map[string]int{}
	for _, e := range trace.TraceEvents {
		require.NotEmpty(t, e.Name)
		count[e.Args.Program]++
	}
	return count
}

// A profiled run computes the same as one without a profile, prints its profile once, and
// writes a trace of the profiled steps.
func TestProfile(t *testing.T) {
	text := corpus(t, 20_000)
	plain, dir := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "profiled")
	more := []string{"train.accumulate=2", "train.eval_every=6"}
	succeed(t, trainArgs(text, plain, 10, more...)...)
	stdout, stderr := succeed(t, trainArgs(text, dir, 10, append(more, "--profile")...)...)
	sameRun(t, plain, dir)
	require.NoFileExists(t, filepath.Join(plain, "trace.json"))

	_, text, ok := strings.Cut(stdout, "\nprofile of 5 steps, ")
	require.True(t, ok, stdout)
	require.NotContains(t, stderr, "profile of")
	require.Less(t, strings.Index(stdout, "profile of"), strings.Index(stdout, "\ntrained "))
	require.Contains(t, text, filepath.Join(dir, "trace.json")+"\n")
	for _, want := range []string{
		` ms each\npeaks measured just before: \d[\d.]* \wFLOP/s, copy \d[\d.]* \wB/s\n`,
		`\nMatMul NT e4m3 e4m3 bf16 +[\d.]+ +[\d.]+% +14 +[\d.]+ +[\d.]+ +\d+%\n`, // 7 in each micro-batch
		`\nAdamW +[\d.]+ +[\d.]+% +3 +[\d.]+ +\d+%\n`,
		`\nlayers\.\*\.mlp +`, `\nlm_head +`, `\nbetween the ops +[\d.]+ +[\d.]+%\n`,
	} {
		require.Regexp(t, want, text)
	}
	table, _, _ := strings.Cut(text, "\nroof: ")
	for line := range strings.Lines(table) {
		require.LessOrEqual(t, len(line), 80, line)
	}
	// The shares of each table add up to the whole time.
	for part := range strings.SplitSeq(table, "\nmodule ") {
		sum := 0.0
		for _, m := range regexp.MustCompile(`\n(.{33}) +[\d.]+ +([\d.]+)%`).FindAllStringSubmatch(part, -1) {
			share, err := strconv.ParseFloat(m[2], 64)
			require.NoError(t, err)
			if !strings.HasPrefix(m[1], "all ops") {
				sum += share
			}
		}
		require.InDelta(t, 100, sum, 2, part)
	}

	count := traced(t, dir)
	require.Len(t, count, 3, "no evaluation, no calibration: %v", count)
	for program, n := range count {
		require.Contains(t, []string{"micro.first", "micro.last", "update"}, program)
		require.Zero(t, n%5, "%s: five steps", program)
	}
}

// A short run profiles the steps that it has, and a resumed run its own steps.
func TestProfileShort(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	out, _ := succeed(t, trainArgs(text, dir, 2, "--profile", "train.ranks=2")...)
	require.Contains(t, out, "\nprofile of 2 steps on the first rank, ")
	require.Contains(t, out, "\nAllReduce ")
	require.Len(t, traced(t, dir), 4, "the first step calibrates and prepares")

	out, _ = succeed(t, "train", "--resume", "--out", dir, "--profile")
	require.NotContains(t, out, "profile of", "there was nothing to do")
	out, stderr := succeed(t, "train", "--resume", "--out", dir, "--steps", "12", "--profile", "--json")
	require.True(t, json.Valid([]byte(out)), out)
	require.Contains(t, stderr, "\nprofile of 5 steps on the first rank, ")
	require.Len(t, traced(t, dir), 2)
	before, after, _ := strings.Cut(stderr, "\nprofile of ")
	require.Contains(t, before, "\nstep 3/12 ")
	require.Contains(t, after, "\nstep 12/12 ")
}
