package runs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/writers"
)

const someConfig = "recipe = \"fp8-smooth\"\nseed = 3\n[train]\nsteps = 4\n[precision]\nrows = []\n"

// folder writes a run folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

func appendTo(t *testing.T, dir, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func step(n int, loss string) string {
	return fmt.Sprintf(`{"step":%d,"loss":%s,"lr":0.5,"grad_norm":null,"tokens":%d,"skipped":false}`+"\n", n, loss, 10*n)
}

func TestOpen(t *testing.T) {
	dir := folder(t, map[string]string{
		"config.toml": someConfig,
		"metrics.jsonl": step(1, "5") + `{"step":2,"loss":4.5,"val_loss":4.25,"skipped":true,` +
			`"fp8":{"a.e4m3":{"amax":3,"sqnr_db":null}},"swiglu":{"layers.0":{"cosine":-0.5}}}` + "\n" +
			step(3, "4") + `{"step":4,"loss":3,"update":{"rms":1.5,"largest":null,"largest_in":"lm_head.weight","zero_v":0.125,"zero_v_in":"7"},"fp8":{"a.e4m3":{"amax":2,"flushed":0.25},"b":{"amax":7}}}` + "\n",
		"timing.jsonl": `{"step":1,"step_s":0.5,"tokens_per_s":20,"devices":[{"power_w":1}]}` + "\n",
		"run.log": `{"time":"T","level":"INFO","msg":"start","octet":"v1","backend":"emu, avx2"}` + "\n" +
			`{"time":"U","level":"WARN","msg":"spike","step":3}` + "\n",
	})
	r, err := Open(dir)
	require.NoError(t, err)
	require.Empty(t, r.Problems)
	require.Equal(t, "fp8-smooth", r.Config["recipe"])
	require.Equal(t, "3", r.Config["seed"])
	require.Equal(t, 4, r.Steps)
	require.Equal(t, 4, r.Step())
	require.True(t, r.Done())
	require.Equal(t, "v1", r.Version)
	require.Equal(t, "emu, avx2", r.Backend)
	require.Equal(t, []Alarm{{"U", 3, "spike"}}, r.Alarms)
	require.Equal(t, &Series{[]float64{1, 2, 3, 4}, []float64{5, 4.5, 4, 3}}, r.Metrics["loss"])
	require.Equal(t, &Series{[]float64{2}, []float64{4.25}}, r.Metrics["val_loss"])
	require.True(t, math.IsNaN(r.Metrics["grad_norm"].Values[0]))
	require.Equal(t, &Series{[]float64{1}, []float64{20}}, r.Timing["tokens_per_s"])
	require.Equal(t, &Series{[]float64{4}, []float64{1.5}}, r.Metrics["update.rms"])
	require.Equal(t, &Series{[]float64{4}, []float64{0.125}}, r.Metrics["update.zero_v"])
	require.True(t, math.IsNaN(r.Metrics["update.largest"].Values[0]))
	require.NotContains(t, r.Metrics, "update.largest_in")
	require.NotContains(t, r.Metrics, "update.zero_v_in")
	require.Equal(t, []string{"a.e4m3", "b"}, r.Casts.Names())
	require.Equal(t, []float64{2, 4}, r.Casts.Steps)
	require.Equal(t, []float64{3, 2}, r.Casts.Field("a.e4m3", "amax"))
	requireValues(t, []float64{math.NaN(), 0.25}, r.Casts.Field("a.e4m3", "flushed"))
	requireValues(t, []float64{math.NaN(), math.NaN()}, r.Casts.Field("a.e4m3", "sqnr_db"))
	requireValues(t, []float64{math.NaN(), 7}, r.Casts.Field("b", "amax"))
	require.Equal(t, []float64{-0.5}, r.Channels.Field("layers.0", "cosine"))
	require.False(t, r.Update())

	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "config.toml")
}

// requireValues compares values of which NaN equals NaN.
func requireValues(t *testing.T, want, got []float64) {
	t.Helper()
	require.Equal(t, fmt.Sprint(want), fmt.Sprint(got))
}

// TestUpdate follows a run that writes half a line, rewinds, and is replaced.
func TestUpdate(t *testing.T) {
	dir := folder(t, map[string]string{"config.toml": someConfig, "metrics.jsonl": step(1, "5") + step(2, "4")[:9]})
	r, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 1, r.Step())
	require.False(t, r.Update())
	appendTo(t, dir, "metrics.jsonl", step(2, "4")[9:]+step(3, "3")+step(4, "2"))
	appendTo(t, dir, "timing.jsonl", `{"step":1,"memory":7}`+"\n")
	require.True(t, r.Update())
	require.Equal(t, []float64{5, 4, 3, 2}, r.Metrics["loss"].Values)
	require.Equal(t, []float64{7}, r.Timing["memory"].Values)

	// The run rewinds: it truncates the file and continues.
	require.NoError(t, os.Truncate(filepath.Join(dir, "metrics.jsonl"), int64(len(step(1, "5")))))
	appendTo(t, dir, "metrics.jsonl", `{"step":2,"loss":9,"fp8":{"a":{"amax":1}}}`+"\n")
	require.True(t, r.Update())
	require.Equal(t, []float64{5, 9}, r.Metrics["loss"].Values)
	appendTo(t, dir, "metrics.jsonl", `{"step":3,"loss":8,"fp8":{"b":{"amax":2}}}`+"\n"+`{"step":3,"loss":7,"fp8":{"b":{"amax":3}}}`+"\n")
	require.True(t, r.Update())
	require.Equal(t, []float64{5, 9, 7}, r.Metrics["loss"].Values)
	require.Equal(t, []float64{2, 3}, r.Casts.Steps)
	requireValues(t, []float64{math.NaN(), 3}, r.Casts.Field("b", "amax"))

	// Between two readings, the run rewinds and writes more than was read.
	require.NoError(t, os.Truncate(filepath.Join(dir, "metrics.jsonl"), int64(len(step(1, "5")))))
	appendTo(t, dir, "metrics.jsonl", `{"step":2,"loss":4.125}`+"\n"+step(3, "6.5")+step(4, "6")+step(5, "5"))
	require.True(t, r.Update())
	require.Equal(t, []float64{5, 4.125, 6.5, 6, 5}, r.Metrics["loss"].Values)
	require.Empty(t, r.Casts.Steps)
	require.False(t, r.Update())

	// Another configuration takes the place of the first: the run becomes longer.
	longer := strings.Replace(someConfig, "steps = 4", "steps = 14", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(longer), 0o600))
	require.True(t, r.Update())
	require.Equal(t, 14, r.Steps)

	// Another file of the same length takes its place.
	appendTo(t, dir, "run.log", `{"level":"WARN","msg":"one"}`+"\n")
	require.True(t, r.Update())
	for _, name := range []string{"metrics.jsonl", "run.log"} {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path+".new", []byte(strings.ReplaceAll(string(text), "one", "two")), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	require.True(t, r.Update())
	require.Equal(t, []float64{5, 4.125, 6.5, 6, 5}, r.Metrics["loss"].Values)
	require.Equal(t, []Alarm{{Message: "two"}}, r.Alarms)
	require.Empty(t, r.Problems)
}

// TestHostileFolders opens folders that a run of this version does not write.
func TestHostileFolders(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"n%d":{"amax":1}`, i)
		}
		return `{"step":1,"fp8":{` + b.String()[1:] + "}}\n"
	}
	lines := func(n int, format string) string { // with %[1]d, the step
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+"\n", i+1)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		files   map[string]string
		problem string // part of the only problem
		steps   int    // that the run has all the same
	}{
		"markup":      {map[string]string{"metrics.jsonl": `{"step":1,"fp8":{"<b>":{"<i>":1}}}` + "\n"}, "", 0},
		"no JSON":     {map[string]string{"metrics.jsonl": step(1, "5") + "nonsense\n" + step(2, "4")}, "metrics.jsonl: the line before byte", 2},
		"no step":     {map[string]string{"metrics.jsonl": `{"loss":1}` + "\n"}, "it has no step", 0},
		"half a step": {map[string]string{"metrics.jsonl": `{"step":1.5,"loss":1}` + "\n"}, "it has no step", 0},
		"huge step":   {map[string]string{"metrics.jsonl": `{"step":1e300,"loss":1}` + "\n"}, "it has no step", 0},
		"NaN":         {map[string]string{"metrics.jsonl": `{"step":1,"loss":NaN}` + "\n"}, "is damaged", 0},
		"overflow":    {map[string]string{"metrics.jsonl": `{"step":1,"loss":1e999}` + "\n"}, "", 0},
		"zeros":       {map[string]string{"metrics.jsonl": step(1, "5") + strings.Repeat("\x00", writers.MaxLine+10) + "\n" + step(2, "4")}, "longer than", 2},
		"names":       {map[string]string{"metrics.jsonl": many(maxNames + 1)}, "more than 20000 names", 0},
		"new fields":  {map[string]string{"metrics.jsonl": lines(maxFields-1, `{"step":%d,"loss":5,"f%[1]d":1}`) + `{"step":64,"x":1}` + "\n"}, "more than 64 fields", 63},
		"gaps":        {map[string]string{"metrics.jsonl": lines(maxNames-1, `{"step":%d,"loss":5,"fp8":{"n%[1]d":{"a":1}}}`)}, "more than 134217728 measurements", 19999},
		"dotted key":  {map[string]string{"config.toml": strings.Repeat("a.", 10_000) + "a = 1"}, "more than 32 nested", 0},
		"log":         {map[string]string{"run.log": "[]\n"}, "run.log: the line", 0},
		"no TOML":     {map[string]string{"config.toml": "= ="}, "config.toml: ", 0},
		"other keys":  {map[string]string{"config.toml": "[train]\nsteps = \"many\"\nnew = [1, 2]\n"}, "", 0},
		"huge config": {map[string]string{"config.toml": strings.Repeat("#", maxConfig+1)}, "longer than", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if c.files["config.toml"] == "" {
				c.files["config.toml"] = someConfig
			}
			r, err := Open(folder(t, c.files))
			require.NoError(t, err)
			if c.problem == "" {
				require.Empty(t, r.Problems)
			} else {
				require.NotEmpty(t, r.Problems)
				require.LessOrEqual(t, len(r.Problems), maxProblems+1)
				require.Contains(t, r.Problems[0], c.problem)
			}
			require.Equal(t, c.steps, r.Step())
		})
	}
}

func TestFind(t *testing.T) {
	top := t.TempDir()
	for _, name := range []string{"b/runs/layers.10", "b/runs/layers.2", "a", ".hidden", "1/2/3/4/5/deep", "a/inside"} {
		dir := filepath.Join(top, name)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		for _, file := range []string{"config.toml", "metrics.jsonl"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		}
	}
	require.NoError(t, os.Symlink(top, filepath.Join(top, "loop")))
	other := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.CopyFS(other, os.DirFS(filepath.Join(top, "a"))))
	list, err := OpenAll(top, filepath.Join(top, "a"), other, top)
	require.NoError(t, err)
	var names []string
	for _, r := range list {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"a", "b/runs/layers.2", "b/runs/layers.10", "a (2)"}, names)
	_, err = OpenAll(t.TempDir())
	require.ErrorContains(t, err, "holds no run")
	_, err = OpenAll(filepath.Join(top, "none"))
	require.Error(t, err)
}

// TestState reads how a run ended from run.log.
func TestState(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, errors.Join(err, f.Close()))
	}
	write("config.toml", "[train]\nsteps = 2\n")
	r, err := Open(dir)
	require.NoError(t, err)
	for _, c := range []struct{ name, text, want string }{
		{"run.log", `{"level":"INFO","msg":"start"}`, "not done"},
		{"run.log", `{"level":"INFO","msg":"interrupted"}`, "stopped"},
		{"run.log", `{"level":"INFO","msg":"start"}`, "not done"},
		{"run.log", `{"level":"ERROR","msg":"stopped","step":1,"error":"the disk is full"}`, "failed"},
		{"run.log", `{"level":"WARN","msg":"no rewind","reason":"too early"}`, "failed"},
		{"metrics.jsonl", `{"step":2,"loss":1}`, "done"},
	} {
		write(c.name, c.text+"\n")
		r.Update()
		require.Equal(t, c.want, r.State(), c.text)
	}
	require.Equal(t, []Alarm{{Step: 1, Message: "stopped: the disk is full"}, {Message: "no rewind: too early"}}, r.Alarms)
}

// TestNamesAreText opens a run whose folder has a name that is not UTF-8.
func TestNamesAreText(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a\xff", "b")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Skip(err) // some file systems refuse such names
	}
	for _, file := range []string{"config.toml", "metrics.jsonl"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
	}
	list, err := OpenAll(top)
	require.NoError(t, err)
	require.Equal(t, "a\ufffd/b", list[0].Name)
}

func FuzzMetrics(f *testing.F) {
	f.Add(step(1, "5") + step(2, "4"))
	f.Add(`{"step":2,"fp8":{"a":{"b":1}}}` + "\n" + `{"step":1,"fp8":{"a":{"c":null}},"swiglu":{"x":{}}}` + "\n")
	f.Add("{\"step\":1\n}\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := newRun("")
		for line := range strings.Lines(text + "\n" + text) {
			_ = r.metricsLine([]byte(line))
			_ = r.timingLine([]byte(line))
			_ = r.logLine([]byte(line))
		}
		for _, s := range r.Metrics {
			require.Len(t, s.Values, len(s.Steps))
			for i := range s.Steps {
				require.True(t, s.Steps[i] >= 1 && (i == 0 || s.Steps[i-1] < s.Steps[i]))
			}
		}
		for _, m := range []*Measurements{&r.Casts, &r.Channels} {
			for _, name := range m.Names() {
				for field, values := range m.Values[name] {
					require.LessOrEqual(t, len(values), len(m.Steps))
					require.Len(t, m.Field(name, field), len(m.Steps))
				}
			}
		}
	})
}
