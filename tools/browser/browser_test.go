package browser

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// octet is the command under test.
var octet string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "browser")
	if err != nil {
		panic(err)
	}
	octet = filepath.Join(dir, "octet")
	build := exec.Command("go", "build", "-o", octet, ".")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	status := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(status)
}

// chromium returns a context for a tab of a new browser, and a function that returns the
// messages of its console so far.
func chromium(t *testing.T) (ctx context.Context, console func() []string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: apt-get install chromium")
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox)...)
	t.Cleanup(cancel)
	ctx, cancelTab := chromedp.NewContext(allocator)
	t.Cleanup(cancelTab)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	var mu sync.Mutex
	var messages []string
	started := make(chan struct{})
	go func() {
		close(started)
		for m, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			mu.Lock()
			messages = append(messages, fmt.Sprintf("%v: %s", m.Type, m.Text))
			mu.Unlock()
		}
	}()
	<-started
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, messages...)
	}
}

func eval[T any](t *testing.T, ctx context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	require.NoError(t, err, script)
	return v
}

// line is a line of metrics.jsonl.
func line(step int, loss float64) string {
	return fmt.Sprintf(`{"step":%d,"loss":%g,"val_loss":%g,"lr":0.001,"grad_norm":1,"fp8":{"layers.0.mlp.input.e4m3":{"amax":2,"saturated":0.001,"flushed":0.01,"sqnr_db":31,"scale":64}},"swiglu":{"layers.0":{"channel":1,"amax":3,"median":1,"cosine":0.5}}}`+"\n", step, loss, loss)
}

// writeRun writes a run folder with some steps.
func writeRun(t *testing.T, dir, recipe string, seed, steps int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	var metrics, timing bytes.Buffer
	for i := range steps {
		metrics.WriteString(line(i+1, 2+3*math.Exp(-float64(i)/10)))
		fmt.Fprintf(&timing, `{"step":%d,"step_s":0.1,"tokens_per_s":1000,"memory":1000000}`+"\n", i+1)
	}
	for name, text := range map[string]string{
		"config.toml":   fmt.Sprintf("recipe = '''%s'''\nseed = %d\n[train]\nsteps = 100\n", recipe, seed),
		"metrics.jsonl": metrics.String(), "timing.jsonl": timing.String(),
		"run.log": `{"level":"INFO","msg":"start","backend":"emu, avx2"}` + "\n" + `{"level":"WARN","msg":"a <b>warning</b>","step":3,"time":"T"}` + "\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// requireAccessible fails if the page has a chart without a name or numbers, a table without
// headings, or a control without a name.
func requireAccessible(t *testing.T, ctx context.Context) {
	t.Helper()
	require.Empty(t, eval[string](t, ctx, `[
		...[...document.querySelectorAll("svg.chart")].filter(s => s.getAttribute("role") !== "img" || !s.getAttribute("aria-label")).map(() => "a chart without a name"),
		...[...document.querySelectorAll("figure")].filter(f => !f.querySelector("details table tbody tr")).map(() => "a chart without numbers"),
		...[...document.querySelectorAll("table")].filter(t => !t.querySelector("th[scope=col]")).map(() => "a table without headings"),
		...[...document.querySelectorAll("input,button,a")].filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length))).map(e => "no name: " + e.outerHTML),
		...[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1 && e.querySelector("table") && e.tabIndex !== 0).map(() => "scrolls by mouse only"),
	].join("\n")`))
	require.Equal(t, "en", eval[string](t, ctx, "document.documentElement.lang"))
	require.Equal(t, 1, eval[int](t, ctx, `document.querySelectorAll("h1").length`))
}

// hostile is a name that would do harm if it were markup.
const hostile = `<img src=x onerror=alert(1)><script>alert(2)<|script>"'&`

// backgrounds are the backgrounds of pages and pictures, by colour scheme.
var backgrounds = map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}

// emulate sets the colour scheme.
func emulate(t *testing.T, ctx context.Context, scheme string) {
	t.Helper()
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(t, err)
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	for seed := range 3 {
		writeRun(t, filepath.Join(dir, fmt.Sprint("bf16-", seed)), "bf16", seed, 60)
		writeRun(t, filepath.Join(dir, fmt.Sprint("fp8-", seed)), "fp8-smooth", seed, 60)
	}
	writeRun(t, filepath.Join(dir, hostile), strings.ReplaceAll(hostile, "|", "/"), 1, 20)
	html := filepath.Join(t.TempDir(), "report.html")
	out, err := exec.Command(octet, "report", dir, "-o", html).CombinedOutput()
	require.NoError(t, err, "%s", out)
	ctx, console := chromium(t)
	for scheme, background := range backgrounds {
		emulate(t, ctx, scheme)
		for _, width := range []int64{1280, 400} {
			require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate("file://"+html)))
			requireAccessible(t, ctx)
			require.Empty(t, eval[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:"))`), "requests")
			require.LessOrEqual(t, eval[int64](t, ctx, "document.documentElement.scrollWidth"), width, "only parts of the page scroll sideways")
			require.Equal(t, background, eval[string](t, ctx, "getComputedStyle(document.body).backgroundColor"))
			frame := eval[string](t, ctx, `getComputedStyle(document.querySelector("svg .frame")).fill`)
			require.Equal(t, background, frame)
			t.Logf("%s, %d pixels wide: %.0f ms", scheme, width, eval[float64](t, ctx, `performance.getEntriesByType("navigation")[0].loadEventEnd`))
		}
	}
	require.Zero(t, eval[int](t, ctx, `document.querySelectorAll("main img, main script, main b").length`))
	require.Empty(t, console())
}

// TestLargeReport opens the page of 20 runs with 20,000 steps, which have measurements, within
// a second: the best of three times.
func TestLargeReport(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		writeRun(t, filepath.Join(dir, fmt.Sprint("run", i)), fmt.Sprint("recipe", i/5), i%5, 20_000)
	}
	html := filepath.Join(t.TempDir(), "report.html")
	out, err := exec.Command(octet, "report", dir, "-o", html).CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := os.Stat(html)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(3<<20))
	ctx, console := chromium(t)
	best := math.Inf(1)
	for range 3 {
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900), chromedp.Navigate("file://"+html)))
		took := eval[float64](t, ctx, `performance.getEntriesByType("navigation")[0].loadEventEnd`)
		t.Logf("%d bytes in %.0f ms", info.Size(), took)
		best = min(best, took)
	}
	require.Less(t, best, 1000.0)
	require.Empty(t, console())
}

// TestPicture opens the picture of the losses, whose background follows the colour scheme.
func TestPicture(t *testing.T) {
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "bf16"), "bf16", 1, 60)
	writeRun(t, filepath.Join(dir, "fp8"), "fp8-smooth", 1, 60)
	svg := filepath.Join(t.TempDir(), "loss.svg")
	out, err := exec.Command(octet, "report", dir, "-o", svg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	ctx, console := chromium(t)
	for scheme, background := range backgrounds {
		emulate(t, ctx, scheme)
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("file://"+svg)))
		for _, frame := range eval[[]string](t, ctx, `[...document.querySelectorAll(".frame")].map(e => getComputedStyle(e).fill)`) {
			require.Equal(t, background, frame)
		}
		require.Equal(t, "Training loss Training loss against bf16", eval[string](t, ctx, `[...document.querySelectorAll(".title")].map(e => e.textContent).join(" ")`))
	}
	require.Empty(t, console())
}

// startBoard starts a board until the test ends and returns its address.
func startBoard(t *testing.T, dir string) (url string) {
	t.Helper()
	board := exec.Command(octet, "board", dir)
	stdout, err := board.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, board.Start())
	t.Cleanup(func() {
		require.NoError(t, board.Process.Signal(os.Interrupt))
		require.NoError(t, board.Wait())
	})
	first, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return strings.Fields(first)[0]
}

// TestTabs opens more tabs than a browser has connections to a server.
func TestTabs(t *testing.T) {
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "a"), "bf16", 1, 10)
	url := startBoard(t, dir)
	ctx, _ := chromium(t)
	for range 8 {
		tab, cancel := chromedp.NewContext(ctx)
		t.Cleanup(cancel)
		limited, cancelLimit := context.WithTimeout(tab, 20*time.Second)
		require.NoError(t, chromedp.Do(limited, chromedp.Navigate(url+"/report?run=a")))
		cancelLimit()
	}
}

func TestBoard(t *testing.T) {
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "b"), "bf16", 1, 10)
	writeRun(t, filepath.Join(dir, "a"), "fp8-smooth", 2, 20)
	writeRun(t, filepath.Join(dir, hostile), "bf16", 3, 5)
	url := startBoard(t, dir)
	ctx, console := chromium(t)
	names := func() string {
		return eval[string](t, ctx, `[...document.querySelectorAll("#runs tbody a")].map(a => a.textContent).join(" ")`)
	}
	wait := func(want string, script string) {
		t.Helper()
		require.Eventually(t, func() bool { return eval[string](t, ctx, script) == want }, 20*time.Second, 50*time.Millisecond, "%s", script)
	}
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1000, 800), chromedp.Navigate(url)))
	wait("3 of 3 runs", `document.getElementById("count").textContent`)
	require.Equal(t, hostile+" a b", names())
	requireAccessible(t, ctx)

	// A heading sorts, by the keyboard too.
	require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector('th[data-key=step] button').focus()`), chromedp.KeyEvent("\r")))
	require.Equal(t, hostile+" b a", names())
	require.Equal(t, "ascending", eval[string](t, ctx, `document.querySelector('th[data-key=step]').getAttribute("aria-sort")`))
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent("\r")))
	require.Equal(t, "a b "+hostile, names())

	require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`document.getElementById("filter").focus()`), chromedp.KeyEvent("smooth")))
	require.Equal(t, "a", names())
	require.Equal(t, "1 of 3 runs", eval[string](t, ctx, `document.getElementById("count").textContent`))

	// Chosen runs stay chosen while the filter hides them.
	choose := func(name string) {
		require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector('input[value=`+name+`]').click()`)))
	}
	filter := func(text string) {
		require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`{ const f = document.getElementById("filter"); f.value = "`+text+`"; f.dispatchEvent(new Event("input")); }`)))
	}
	require.True(t, eval[bool](t, ctx, `document.getElementById("compare").disabled`))
	choose("a")
	filter("bf16")
	choose("b")
	require.Equal(t, "2 chosen", eval[string](t, ctx, `document.getElementById("chosen").textContent`))
	require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`document.getElementById("compare").click()`)))
	wait("/report?run=a&run=b", `location.pathname + location.search`)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)))
	wait("3 of 3 runs", `document.getElementById("count").textContent`)
	filter("smooth")
	wait("1 of 3 runs", `document.getElementById("count").textContent`)

	// A step appears, and so does a new run.
	f, err := os.OpenFile(filepath.Join(dir, "a", "metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(line(21, 1.5))
	require.NoError(t, err)
	began := time.Now()
	wait("21", `document.querySelectorAll("#runs tbody td")[4].textContent`)
	t.Logf("the new step appeared after %v", time.Since(began).Round(time.Millisecond))
	writeRun(t, filepath.Join(dir, "c"), "fp8-smooth", 4, 3)
	wait("2 of 4 runs", `document.getElementById("count").textContent`)

	// The report of a run follows it, and keeps open what the reader opened.
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url+"/report?run=a")))
	requireAccessible(t, ctx)
	require.Equal(t, "a", eval[string](t, ctx, `document.querySelector("h1").textContent`))
	require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector("figure details").open = true`)))
	_, err = f.WriteString(line(22, 1.25))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	wait("22", `document.querySelectorAll("table")[1].tBodies[0].rows[0].cells[5].textContent`)
	require.True(t, eval[bool](t, ctx, `document.querySelector("figure details").open`))
	require.Empty(t, eval[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:") && !n.startsWith(location.origin))`), "requests elsewhere")
	require.Zero(t, eval[int](t, ctx, `document.querySelectorAll("main img, main script").length`))
	require.Empty(t, console())
}
