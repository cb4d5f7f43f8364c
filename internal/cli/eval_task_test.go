package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/task"
)

// taskFiles writes a task of each kind for models of text and returns their paths.
func taskFiles(t *testing.T) (dir string, paths map[string]string) {
	t.Helper()
	dir, paths = t.TempDir(), map[string]string{}
	for kind, lines := range map[string]string{
		"choice":  `{"context":"the ","choices":["abc","é","zz zz zz"],"gold":0}` + "\n\n" + `{"context":"","choices":["a","b"],"gold":1}`,
		"cloze":   `{"context":"one two","target":"three"}` + "\n" + `{"context":"` + strings.Repeat("long ", 40) + `","target":"x"}` + "\n" + `{"context":"","target":"y"}`,
		"partial": `{"contexts":["a cat","a dog"],"target":"runs","gold":1}` + "\n" + `{"contexts":["a","b","c"],"target":"d","gold":0}`,
		"rolling": `{"text":"` + strings.Repeat("a b ", 30) + `"}` + "\n" + `{"text":"short","words":2}`,
	} {
		header := `{"octet_task":1,"kind":"` + kind + `","name":"my ` + kind + `","delimiter":" "}`
		if kind == "rolling" {
			header = strings.Replace(header, `,"delimiter":" "`, "", 1)
		}
		paths[kind] = filepath.Join(dir, kind+".jsonl")
		require.NoError(t, os.WriteFile(paths[kind], []byte(header+"\n"+lines+"\n"), 0o600))
	}
	return dir, paths
}

func TestEvalTask(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), run, 20)...)
	dir, paths := taskFiles(t)
	all := strings.Join([]string{paths["choice"], paths["cloze"], paths["partial"], paths["rolling"]}, ",")
	eval := func(args ...string) (s scoredTasks) {
		t.Helper()
		out, _ := succeed(t, append([]string{"eval", "--json"}, args...)...)
		require.Equal(t, 1, strings.Count(out, "\n"))
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		return s
	}
	samples := filepath.Join(dir, "samples")
	s := eval(run, "--task", all, "--samples", samples, "--recipe", "fp32")
	require.Equal(t, "fp32", s.Recipe)
	require.Equal(t, 32, s.Window)
	require.Len(t, s.Tasks, 4)
	for i, want := range []struct {
		name      string
		documents int
		metrics   string
	}{{"my choice", 2, "acc acc_norm acc_bytes"}, {"my cloze", 3, "acc perplexity"}, {"my partial", 2, "acc"}, {"my rolling", 2, "word_perplexity byte_perplexity bits_per_byte"}} {
		var names []string
		for _, m := range s.Tasks[i].Metrics {
			names = append(names, m.Name)
			require.Positive(t, 1+float64(m.Value), m.Name)
			require.GreaterOrEqual(t, float64(m.StdErr), 0.0)
		}
		require.Equal(t, want.name, s.Tasks[i].Name)
		require.Equal(t, want.documents, s.Tasks[i].Documents)
		require.Equal(t, want.metrics, strings.Join(names, " "))
	}

	// The samples have the log-likelihoods of which the metrics are made.
	var list []sample
	for line := range strings.Lines(read(t, dir, "samples")) {
		var x sample
		require.NoError(t, json.Unmarshal([]byte(line), &x))
		list = append(list, x)
	}
	require.Len(t, list, 9)
	require.Len(t, list[0].LogLikelihoods, 3)
	require.Len(t, list[0].Greedy, 3)
	require.Equal(t, "my choice", list[1].Task)
	require.Equal(t, 1, list[1].Document)
	require.Equal(t, 1, *list[1].Gold)
	sum := 0.0
	for _, x := range list[2:5] {
		sum += x.LogLikelihoods[0]
	}
	require.InDelta(t, math.Exp(-sum/3), float64(s.Tasks[1].Metrics[1].Value), 1e-9)
	require.Equal(t, 61, list[7].Words, "the empty part after the last space counts")
	require.Equal(t, 120, list[7].Bytes)
	require.InDelta(t, -(list[7].LogLikelihoods[0]+list[8].LogLikelihoods[0])/125/math.Ln2, float64(s.Tasks[3].Metrics[2].Value), 1e-9)

	// Scores do not depend on the other tasks, and an exported model has the same.
	require.InDelta(t, float64(s.Tasks[1].Metrics[1].Value), float64(eval(run, "--task", paths["cloze"], "--recipe", "fp32").Tasks[0].Metrics[1].Value), 1e-2)
	out := filepath.Join(dir, "exported")
	succeed(t, "export", run, "--out", out)
	exported := eval(out, "--task", all)
	require.Equal(t, 32, exported.Window)
	for i, x := range exported.Tasks {
		for j, m := range x.Metrics {
			require.InEpsilon(t, 1+float64(s.Tasks[i].Metrics[j].Value), 1+float64(m.Value), 1e-4, m.Name)
		}
	}

	require.Equal(t, 1, eval(run, "--task", paths["cloze"], "--limit", "1").Tasks[0].Documents)
	require.Greater(t, eval(run, "--task", paths["cloze"], "--seq", "64").Window, 32)
	other := eval(run, "--task", paths["cloze"], "--prefix-token", "65", "--recipe", "fp32")
	require.NotEqual(t, s.Tasks[1].Metrics[1].Value, other.Tasks[0].Metrics[1].Value, "the third document has no context")
	require.Positive(t, eval(run, "--task", paths["cloze"], "--recipe", "nvfp4-plain").Calibrated)

	table, _ := succeed(t, "eval", run, "--task", all, "--threads", "1")
	require.Regexp(t, `(?s)^checkpoint .*\nwindow      32 tokens\n\ntask        documents  metric           value +± standard error\nmy choice   2          acc              [01]\.\d{4} +[01]\.\d{4}\n`, table)
}

// The ladder prints the scores of each precision, and the difference to the first with its paired
// standard error.
func TestEvalTaskLadder(t *testing.T) {
	text, run := corpus(t, 20_000), filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, run, 20)...)
	dir, paths := taskFiles(t)
	samples := filepath.Join(dir, "samples")
	out, _ := succeed(t, "eval", run, "--json", "--recipe", "fp32", "--ladder", "w4a16-g32-rtn,w2a16-g128-rtn", "--task", paths["cloze"]+","+paths["choice"], "--samples", samples)
	var e evaluated
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	require.Len(t, e.Tasks, 2)
	require.Len(t, e.Quantized, 2)
	var lines []sample
	for line := range strings.Lines(read(t, dir, "samples")) {
		var x sample
		require.NoError(t, json.Unmarshal([]byte(line), &x))
		lines = append(lines, x)
	}
	require.Len(t, lines, 15)
	require.Equal(t, "w4a16-g32-rtn", lines[5].Quantization)
	for i, r := range e.Quantized {
		m, base := r.Tasks[0].Metrics[1], e.Tasks[0].Metrics[1]
		require.Equal(t, "perplexity", m.Name)
		require.InDelta(t, float64(m.Value-base.Value), float64(*m.Above), 1e-9)
		require.NotZero(t, *m.Above)
		// By hand: the standard error of the mean of p'·ll' − p·ll over documents.
		var d []float64
		for k := range 3 {
			d = append(d, float64(base.Value)*lines[k].LogLikelihoods[0]-float64(m.Value)*lines[5*(i+1)+k].LogLikelihoods[0])
		}
		mean, squares := (d[0]+d[1]+d[2])/3, 0.0
		for _, x := range d {
			squares += (x - mean) * (x - mean)
		}
		require.InEpsilon(t, math.Sqrt(squares/2/3), float64(*m.Paired), 1e-9)
	}
	table, _ := succeed(t, "eval", run, "--quant", "w4a16-g32-rtn", "--task", paths["partial"])
	require.Regexp(t, `(?s)\nquantization .*\n\nmy partial, 2 documents\nmetric  quantization   value   above    ± standard error\nacc     none           \d\.\d{4} *\nacc     w4a16-g32-rtn  \d\.\d{4}  [+-]\d\.\d{4}  \d\.\d{4}\n$`, table)
}

func TestEvalTaskRefuses(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), run, 1)...)
	dir, paths := taskFiles(t)
	file := func(text string) string {
		path := filepath.Join(dir, "wrong.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const header = `{"octet_task":1,"kind":"cloze","name":"x","delimiter":" "}` + "\n"
	for _, test := range []struct {
		want string
		file string
		args []string
	}{
		{"wrong.jsonl: line 2: target is missing", header + `{"context":"a"}`, nil},
		{"wrong.jsonl: line 4: 33 tokens are scored, but the window has 32: use a larger --seq", header + `{"context":"a","target":"b"}` + "\n\n" + `{"context":"a","target":"` + strings.Repeat("b", 32) + `"}`, nil},
		{`wrong.jsonl: line 1: kind is "poem"`, strings.Replace(header, "cloze", "poem", 1), nil},
		{"wrong.jsonl has no documents", header, nil},
		{"wrong.jsonl has no documents", "", nil},
		{"--limit -1: expected a positive number", header, []string{"--limit", "-1"}},
		{"--prefix-token 256: expected an id of the vocabulary, 0 to 255", header, []string{"--prefix-token", "256"}},
		{"--seq -1: expected a number from 1 to 2^20", header, []string{"--seq", "-1"}},
		{"--sharpness is of a text: give it without --task", header, []string{"--sharpness"}},
	} {
		status, out, stderr := octet(append([]string{"eval", run, "--task", file(test.file)}, test.args...)...)
		require.Equal(t, exitInput, status, test.want)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
	}
	for want, args := range map[string][]string{
		"no such file": {"--task", filepath.Join(dir, "none.jsonl")},
		"--samples, --limit and --prefix-token need --task FILE": {"--limit", "3"},
		"wrong.jsonl: line 1:": {"--quant", "w8a8-fp8", "--task", file("{}")},
	} {
		status, _, stderr := octet(append([]string{"eval", run}, args...)...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, want)
	}
	require.NotEmpty(t, paths)
}

func TestDataTask(t *testing.T) {
	dir := t.TempDir()
	rows := filepath.Join(dir, "rows.jsonl")
	require.NoError(t, os.WriteFile(rows, []byte(`{"text":"a <b> c"}`+"\n"+`{"text":"d e"}`+"\n"), 0o600))
	want := `{"octet_task":1,"kind":"cloze","name":"lambada","delimiter":" "}` + "\n" + `{"context":"a <b>","target":"c"}` + "\n" + `{"context":"d","target":"e"}` + "\n"
	out, stderr := succeed(t, "data", "task", "lambada", rows)
	require.Equal(t, want, out)
	require.Empty(t, stderr)
	path := filepath.Join(dir, "task.jsonl")
	out, stderr = succeed(t, "data", "task", "lambada", rows, "--out", path)
	require.Empty(t, out)
	require.Equal(t, path+": 2 documents of kind cloze\n", stderr)
	require.Equal(t, want, read(t, dir, "task.jsonl"))
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, test := range []struct {
		want string
		args []string
	}{
		{"task.jsonl is there: remove it", []string{"lambada", rows, "--out", path}},
		{`there is no converter for "mmlu": the names are arc_challenge,`, []string{"mmlu", rows}},
		{"rows.jsonl: line 1: the field goal is missing", []string{"piqa", rows}},
		{"empty has no rows", []string{"piqa", empty}},
		{"no such file", []string{"piqa", rows + "x"}},
	} {
		status, out, stderr := octet(append([]string{"data", "task"}, test.args...)...)
		require.Equal(t, exitInput, status, test.want)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
	}
	// Each converter's file is one that eval reads.
	for _, name := range task.Converters() {
		c, err := task.ConverterOf(name)
		require.NoError(t, err)
		raw, err := json.Marshal(c.Header)
		require.NoError(t, err)
		_, err = new(task.Parser).Parse(raw)
		require.NoError(t, err)
	}
}
