package cli

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/runs"
)

// octet report writes a page about runs, with their recipes and memory.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte(goText(20_000)), 0o600))
	for _, recipe := range []string{"bf16", "fp8-smooth"} {
		succeed(t, trainArgs(text, filepath.Join(dir, "runs", recipe), 3, "--recipe", recipe, "data.val_bytes=300")...)
	}
	page := filepath.Join(dir, "page.html")
	out, _ := succeed(t, "report", filepath.Join(dir, "runs"), "-o", page)
	require.Equal(t, page+"  2 runs\n", out)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, want := range []string{"<title>Octet: runs</title>", "Memory plan", "fp8-smooth", "wgrad", "in total"} {
		require.Contains(t, string(html), want)
	}
	picture := filepath.Join(dir, "loss.svg")
	succeed(t, "report", filepath.Join(dir, "runs"), "-o", picture)
	svg, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Regexp(t, `^<svg xmlns=.*>Training loss<.*>Training loss against bf16<.*</svg>\n$`, string(svg))
	for want, args := range map[string][]string{
		"holds no run":                      {t.TempDir()},
		"no such file":                      {filepath.Join(dir, "none")},
		`writes .html and .svg, not ".pdf"`: {filepath.Join(dir, "runs"), "-o", filepath.Join(dir, "x.pdf")},
		"unknown flag --oout":               {filepath.Join(dir, "runs"), "--oout", page},
	} {
		status, _, stderr := octet(append([]string{"report"}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Contains(t, stderr, want)
	}
}

// A terminal must not obey the names and the content of a run folder.
func TestReportHidesControlCharacters(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows refuses such names")
	}
	dir := filepath.Join(t.TempDir(), "\x1b]0;title\a")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"config.toml", "metrics.jsonl"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("damage\n"), 0o600))
	}
	out, stderr := succeed(t, "report", dir, "-o", filepath.Join(t.TempDir(), "page.html"))
	require.Contains(t, out, "page.html  1 run\n")
	require.Contains(t, stderr, "·]0;title·: config.toml: ")
	require.NotContains(t, stderr, "\x1b")
}

func TestBoardRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"no such file":        {filepath.Join(t.TempDir(), "none")},
		"expected 0 to 65535": {t.TempDir(), "--port", "70000"},
	} {
		status, _, stderr := octet(append([]string{"board"}, args...)...)
		require.Equal(t, exitInput, status, want)
		require.Contains(t, stderr, want)
	}
}

func TestSaturation(t *testing.T) {
	nan := float32(math.NaN())
	name, highest, shares := saturation(&runs.Measurements{Steps: []float64{1, 2, 3}, Values: map[string]map[string][]float32{
		"a": {"saturated": {0, 0.25, nan}}, "b": {"saturated": {0.125, 0, 0}, "amax": {9, 9, 9}}, "c": {},
	}})
	require.Equal(t, "a", name)
	require.Equal(t, 0.25, highest)
	require.Equal(t, []float64{0.125, 0.25, 0}, shares)
}

func TestASCIITerminal(t *testing.T) {
	for _, c := range []struct {
		all, lang string
		want      bool
	}{{"", "en_US.UTF-8", false}, {"C", "en_US.UTF-8", true}, {"", "", true}, {"", "C.utf8", false}} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", "")
		t.Setenv("LANG", c.lang)
		require.Equal(t, c.want, asciiTerminal(), c)
	}
}
