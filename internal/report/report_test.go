package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/runs"
)

// writeRun writes a run folder with steps lines, and measurements on every health-th.
func writeRun(t *testing.T, dir, recipe string, seed, steps, health int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	files := map[string][]byte{"config.toml": fmt.Appendf(nil, "recipe = %q\nseed = %d\n[train]\nsteps = %d\n", recipe, seed, steps)}
	for i := range steps {
		loss := 2 + 4*math.Exp(-float64(i)/float64(steps)*5) + 0.05*math.Sin(float64(i*(seed+1)))
		line := map[string]any{"step": i + 1, "loss": loss, "lr": 0.001, "grad_norm": loss / 3, "tokens": 100 * i, "skipped": false}
		if i%health == health-1 {
			line["val_loss"] = loss + 0.1
			casts, channels := map[string]any{}, map[string]any{}
			for layer := range 12 {
				for _, cast := range []string{"mlp.input.e4m3", "mlp.down_proj.grad.e5m2", "mlp.hidden.e4m3"} {
					casts[fmt.Sprintf("layers.%d.%s", layer, cast)] = map[string]any{
						"amax": loss * float64(layer+1), "kurtosis": 3 + float64(i%5), "saturated": float64(i%3) / 1000, "flushed": 0.01, "sqnr_db": 30 + loss, "scale": 128,
					}
				}
				channels[fmt.Sprintf("layers.%d", layer)] = map[string]any{"channel": 3, "amax": 9, "median": 3, "others_rms": 4, "cosine": -0.4}
			}
			line["fp8"], line["swiglu"] = casts, channels
		}
		for name, value := range map[string]any{
			"metrics.jsonl": line,
			"timing.jsonl":  map[string]any{"step": i + 1, "step_s": 0.5, "tokens_per_s": 200 + i%7, "memory": 1 << 30},
		} {
			text, err := json.Marshal(value)
			require.NoError(t, err)
			files[name] = append(append(files[name], text...), '\n')
		}
	}
	files["run.log"] = []byte(`{"time":"T","level":"INFO","msg":"start","octet":"v1","backend":"emu, avx2"}` + "\n")
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
}

// elements returns the names of a page's elements with their attributes. It fails unless the
// elements are nested properly.
func elements(t *testing.T, page []byte) (list []xml.StartElement) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(page))
	d.AutoClose, d.Entity = xml.HTMLAutoClose, xml.HTMLEntity
	d.Strict = false // HTML has attributes without values and elements without an end
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			list = append(list, e.Copy())
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func TestPage(t *testing.T) {
	top := t.TempDir()
	for seed := range 3 {
		for _, recipe := range []string{"bf16", "fp8"} {
			writeRun(t, filepath.Join(top, fmt.Sprint(recipe, "-", seed)), recipe, seed, 50, 10)
		}
	}
	list, err := runs.OpenAll(top)
	require.NoError(t, err)
	page := Page(Options{Title: "three seeds", Describe: func(r *runs.Run) []Text {
		return []Text{{"Recipe", "table of " + r.Config["recipe"]}}
	}}, runs.GroupsOf(list))
	require.Equal(t, page, Page(Options{Title: "three seeds", Describe: func(r *runs.Run) []Text {
		return []Text{{"Recipe", "table of " + r.Config["recipe"]}}
	}}, runs.GroupsOf(list)), "a page depends on the runs alone")

	ids := map[string]bool{}
	links, figures, tables, headings := 0, 0, 0, 0
	for _, e := range elements(t, page) {
		if id := attribute(e, "id"); id != "" {
			require.False(t, ids[id], id)
			ids[id] = true
		}
		switch e.Name.Local {
		case "a":
			links++
			require.NotEmpty(t, attribute(e, "href"))
		case "script", "iframe", "object":
			require.Fail(t, e.Name.Local)
		case "svg":
			if attribute(e, "class") == "chart" {
				require.Equal(t, "img", attribute(e, "role"))
				require.NotEmpty(t, attribute(e, "aria-label"))
			}
		case "figure":
			figures++
		case "table":
			tables++
		case "h2":
			headings++
		case "image":
			require.True(t, strings.HasPrefix(attribute(e, "href"), "data:image/png;base64,"))
		}
	}
	require.Equal(t, headings, links)
	require.GreaterOrEqual(t, tables, figures, "every figure has its numbers")
	require.NotContains(t, string(page), "http:")
	require.NotContains(t, string(page), "https:")
	for _, text := range []string{"table of bf16", "table of fp8", "layers.11.mlp.hidden.e4m3", "No run warned", "fp8-2", "Training loss against bf16", "Kurtosis", "<td>v1</td>"} {
		require.Contains(t, string(page), text)
	}
	// The browser applies the style only if its hash is that of the policy.
	style := regexp.MustCompile(`<style>(.*)</style>`).FindSubmatch(page)
	sum := sha256.Sum256(style[1])
	require.Contains(t, string(page), "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
}

// TestHostileRun writes a page about a run whose names hold markup.
func TestHostileRun(t *testing.T) {
	const evil = `</style></svg><script>alert(1)</script><img src=x onerror=alert(1)>"'`
	dir := filepath.Join(t.TempDir(), strings.ReplaceAll(evil, "/", "|"))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	quoted, err := json.Marshal(evil)
	require.NoError(t, err)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "EVIL", string(quoted))), 0o600))
	}
	write("config.toml", "recipe = '''"+evil+"'''\n'"+`<b>`+"' = 1\n")
	write("metrics.jsonl", `{"step":1,"loss":null,"val_loss":1e308,"fp8":{EVIL:{"saturated":0.5,"amax":1e300,EVIL:1}},"swiglu":{EVIL:{"cosine":1,"amax":1,"median":0}}}`+"\n"+
		`{"step":2,"loss":-1e308}`+"\nEVIL\n"+`{"step":3,"lo`)
	write("timing.jsonl", `{"step":1,"tokens_per_s":-1,"step_s":null,"memory":1e308}`+"\n")
	write("run.log", `{"level":"WARN","msg":EVIL,"time":EVIL,"step":1}`+"\n"+`{"msg":"start","backend":EVIL,"octet":EVIL}`+"\n")
	list, err := runs.OpenAll(dir)
	require.NoError(t, err)
	page := Page(Options{Title: evil}, runs.GroupsOf(list))
	for _, e := range elements(t, page) {
		require.NotContains(t, []string{"script", "img", "b"}, e.Name.Local)
		require.Empty(t, attribute(e, "onerror"))
	}
	require.Contains(t, string(page), `<path class="mark"`)
	require.Contains(t, string(page), "Damaged files")
	require.Contains(t, string(page), "metrics.jsonl: the line before byte")
}

// TestEmptyRuns writes pages about runs that have hardly begun.
func TestEmptyRuns(t *testing.T) {
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "none"), "bf16", 1, 0, 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "none", "metrics.jsonl"), nil, 0o600))
	writeRun(t, filepath.Join(dir, "one"), "fp8", 1, 1, 1)
	list, err := runs.OpenAll(dir)
	require.NoError(t, err)
	require.Len(t, list, 2)
	elements(t, Page(Options{Title: "begun"}, runs.GroupsOf(list)))
}

// TestSummary compares three pairs with known differences.
func TestSummary(t *testing.T) {
	top := t.TempDir()
	for seed, losses := range [][2]float64{{2, 2.02}, {4, 4.08}, {5, 5.15}} { // 1, 2 and 3 %
		for i, recipe := range []string{"bf16", "fp8"} {
			dir := filepath.Join(top, fmt.Sprint(recipe, seed))
			writeRun(t, dir, recipe, seed, 1, 10)
			line := fmt.Sprintf(`{"step":1,"loss":1,"val_loss":%g}`+"\n", losses[i])
			require.NoError(t, os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(line), 0o600))
		}
	}
	list, err := runs.OpenAll(top)
	require.NoError(t, err)
	page := string(Page(Options{Title: "three seeds"}, runs.GroupsOf(list)))
	require.Contains(t, page, `<tr><th scope="row">fp8</th><td>3</td><td>3.7500</td><td>2.0200</td><td>5.1500</td><td>bf16</td><td>+2.000 %</td><td>0.577 %</td><td>0.074</td></tr>`)
}

// TestBaselineOf names the one baseline.
func TestBaselineOf(t *testing.T) {
	a, b := &runs.Group{Name: "a"}, &runs.Group{Name: "b"}
	require.Equal(t, "a", baselineOf([]*runs.Group{a, {Baseline: a}, {Baseline: a}}))
	require.Equal(t, "the baseline", baselineOf([]*runs.Group{a, b, {Baseline: a}, {Baseline: b}, {Baseline: b}}))
}

// TestDivergedRun draws a run that diverges without flattening the others, and its error.
func TestDivergedRun(t *testing.T) {
	top := t.TempDir()
	writeRun(t, filepath.Join(top, "a"), "bf16", 1, 50, 10)
	writeRun(t, filepath.Join(top, "b"), "fp8", 1, 50, 10)
	var text bytes.Buffer
	for i := range 11 {
		fmt.Fprintf(&text, `{"step":%d,"loss":%g}`+"\n", i+1, math.Pow(20, float64(i)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(top, "b", "metrics.jsonl"), text.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(top, "b", "run.log"), []byte(`{"level":"ERROR","msg":"stopped","step":11,"error":"training is not finite"}`+"\n"), 0o600))
	list, err := runs.OpenAll(top)
	require.NoError(t, err)
	groups := runs.GroupsOf(list)
	c := newLossCharts(groups)
	require.InDelta(t, 1.5*6, c.training.Y.Max, 0.2)
	page := string(Page(Options{Title: "diverged"}, groups))
	for _, want := range []string{"<td>failed</td>", "stopped: training is not finite", "<td>0 of 1</td>", "<td>1.024e13</td>"} {
		require.Contains(t, page, want)
	}
}

// TestSize bounds the page of 20 runs of 20,000 steps.
func TestSize(t *testing.T) {
	top := t.TempDir()
	var metrics, timing bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&metrics, `{"step":%d,"loss":%g,"lr":0.001,"grad_norm":1}`+"\n", i+1, 2+math.Sin(float64(i*i)))
		fmt.Fprintf(&timing, `{"step":%d,"step_s":0.5,"tokens_per_s":%d,"memory":1000000}`+"\n", i+1, 200+i%7)
	}
	for i := range 20 {
		dir := filepath.Join(top, fmt.Sprint("run", i))
		writeRun(t, dir, fmt.Sprint("recipe", i/5), i%5, 200, 1) // the first steps, with measurements
		for name, text := range map[string]*bytes.Buffer{"metrics.jsonl": &metrics, "timing.jsonl": &timing} {
			lines := text.Bytes()
			for range 200 {
				_, lines, _ = bytes.Cut(lines, []byte("\n"))
			}
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0o600)
			require.NoError(t, err)
			_, err = f.Write(lines)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	list, err := runs.OpenAll(top)
	require.NoError(t, err)
	require.Equal(t, 20_000, list[19].Step())
	require.Empty(t, list[19].Problems)
	page := Page(Options{Title: "large"}, runs.GroupsOf(list))
	require.Less(t, len(page), 3<<20)
	require.Contains(t, string(page), "The training loss is the mean of 100 steps.")
	t.Logf("%d bytes", len(page))
}

// seriesOf returns a series from step 1.
func seriesOf(values ...float64) *runs.Series {
	s := &runs.Series{Values: values}
	for i := range values {
		s.Steps = append(s.Steps, float64(i+1))
	}
	return s
}

// pairOf returns two groups of one run each, the first of which is the baseline.
func pairOf(baseline, own map[string]*runs.Series, steps int) []*runs.Group {
	config := map[string]string{"seed": "1"}
	a := &runs.Group{Name: "a", Runs: []*runs.Run{{Config: config, Steps: steps, Metrics: baseline}}}
	b := &runs.Group{Name: "b", Runs: []*runs.Run{{Config: config, Steps: steps, Metrics: own}}, Baseline: a}
	return []*runs.Group{a, b}
}

// TestPairsOfEqualSteps compares a run that has ended with one in progress at the last step of
// both, and runs that have ended at their ends.
func TestPairsOfEqualSteps(t *testing.T) {
	ended := map[string]*runs.Series{"loss": seriesOf(1, 1, 1, 1), "val_loss": {Steps: []float64{2, 4}, Values: []float64{5, 3}}}
	inProgress := map[string]*runs.Series{"loss": seriesOf(1, 1, 1), "val_loss": {Steps: []float64{2, 3}, Values: []float64{6, 4}}}
	own, baseline := valLosses(pairOf(ended, inProgress, 4)[1].Pairs())
	require.Equal(t, []float64{6}, own)
	require.Equal(t, []float64{5}, baseline)
	own, baseline = valLosses(pairOf(ended, inProgress, 3)[1].Pairs()) // both have ended
	require.Equal(t, []float64{4}, own)
	require.Equal(t, []float64{3}, baseline)
	none := map[string]*runs.Series{"val_loss": {Steps: []float64{9}, Values: []float64{6}}}
	own, _ = valLosses(pairOf(ended, none, 4)[1].Pairs())
	require.Empty(t, own)
}

// TestDivergedRuns shows that a mean over runs of which one diverged is not finite.
func TestDivergedRuns(t *testing.T) {
	diverged := map[string]*runs.Series{"loss": seriesOf(1), "val_loss": seriesOf(math.NaN())}
	page := string(Page(Options{}, pairOf(map[string]*runs.Series{"loss": seriesOf(1), "val_loss": seriesOf(2)}, diverged, 1)))
	require.Contains(t, page, `<th scope="row">b</th><td>1</td><td>not finite</td><td>not finite</td><td>not finite</td><td>a</td><td>not finite</td><td></td>`)
	require.NotContains(t, page, "NaN")
}

// TestDifferencesOfDamagedRuns compares windows of equal steps although a run lacks a step.
func TestDifferencesOfDamagedRuns(t *testing.T) {
	whole, damaged := seriesOf(1, 1, 1, 1, 2, 2, 2), seriesOf(1, 1, 1, 1, 2, 2, 2)
	damaged.Steps, damaged.Values = slices.Delete(damaged.Steps, 1, 2), slices.Delete(damaged.Values, 1, 2)
	groups := pairOf(map[string]*runs.Series{"loss": whole}, map[string]*runs.Series{"loss": damaged}, 7)
	require.Equal(t, []runs.Series{{Steps: []float64{2, 4, 6, 7}, Values: []float64{0, 0, 0, 0}}}, differing(groups[1], 2))
}
