package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"octet/internal/bench"
)

// results is an output folder of gpu-check.sh.
type results struct {
	dir      string
	versions []string          // lines
	verdicts map[string]string // of parts: "ok", or the failure
	trial    bool              // a trial of the script, with meaningless figures
}

// summaryLine matches a part's line in summary.txt: name, seconds, verdict.
var summaryLine = regexp.MustCompile(`^(\S+)\s+(?:\d+ s|-)\s+(.*)$`)

func open(dir string) (*results, error) {
	summary, err := os.ReadFile(filepath.Join(dir, "summary.txt"))
	if err != nil {
		return nil, fmt.Errorf("%s has no results of gpu-check.sh: %w", dir, err)
	}
	r := &results{dir: dir, verdicts: map[string]string{}}
	for line := range strings.Lines(string(summary)) {
		if m := summaryLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			r.verdicts[m[1]] = m[2]
		}
	}
	versions, _ := os.ReadFile(filepath.Join(dir, "versions.txt")) // optional
	for line := range strings.Lines(string(versions)) {
		r.versions = append(r.versions, strings.TrimSpace(line))
		r.trial = r.trial || strings.HasPrefix(line, "TRIAL")
	}
	return r, nil
}

// why returns why a part has no figure. Parts that were skipped together share one line.
func (r *results) why(part string) string {
	verdict, ok := r.verdicts[part]
	for prefix, all := range map[string]string{"peer-": "peers", "ranks-": "ranks", "sanitizer-": "sanitizer"} {
		if !ok && strings.HasPrefix(part, prefix) && r.verdicts[all] != "" {
			verdict, ok, part = r.verdicts[all], true, all
		}
	}
	switch {
	case !ok:
		if _, err := os.Stat(filepath.Join(r.dir, part+".txt")); err == nil {
			return fmt.Sprintf("part %s started and did not finish", part)
		}
		return fmt.Sprintf("part %s was not run", part)
	case verdict == "ok":
		return fmt.Sprintf("the files of part %s do not contain the figure", part)
	default:
		return fmt.Sprintf("part %s: %s", part, verdict)
	}
}

// read returns a file of a successful part.
func (r *results) read(part, suffix string) []byte {
	if r.verdicts[part] != "ok" {
		return nil
	}
	raw, _ := os.ReadFile(filepath.Join(r.dir, part+suffix)) // missing: no figure
	return raw
}

// lines parses one JSON object per line and skips other lines.
func lines[T any](raw []byte) (list []T) {
	scan := bufio.NewScanner(bytes.NewReader(raw))
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		var x T
		if json.Unmarshal(scan.Bytes(), &x) == nil {
			list = append(list, x)
		}
	}
	return list
}

// bench returns the results of octet bench, without unsupported ones.
func (r *results) bench(part string) []bench.Result {
	return slices.DeleteFunc(lines[bench.Result](r.read(part, ".txt")), func(x bench.Result) bool { return x.Unsupported != "" })
}

// copyRate returns the copy bandwidth in bytes per second, 0 if it was not measured.
func (r *results) copyRate() float64 {
	for _, x := range r.bench("bench-quantize") {
		if x.Bench == "peak" {
			return 1e9 * x.CopyGBytes
		}
	}
	return 0
}

// bf16Rate returns the best rate of the BF16 GEMMs in FLOP/s, 0 if none was measured.
func (r *results) bf16Rate() (best float64) {
	for _, x := range r.bench("bench-gemm") {
		if strings.HasPrefix(x.Name, "bf16 ") {
			best = max(best, 1e9*x.GFLOPs)
		}
	}
	return best
}

// tokens returns the rates of training steps in tokens per second, by recipe.
func (r *results) tokens(part string) map[string]float64 {
	rates := map[string]float64{}
	for _, x := range r.bench(part) {
		if x.Step != nil {
			rates[x.Name] = x.TokensPerS
		}
	}
	return rates
}

// measurement is a line of a Go benchmark.
type measurement struct {
	name   string             // "4096x4096x4096/fprop"; empty without sub-benchmarks
	values map[string]float64 // by unit
}

// value returns NaN for a missing unit.
func (m measurement) value(unit string) float64 {
	if v, ok := m.values[unit]; ok {
		return v
	}
	return math.NaN()
}

// benchmarkLine matches Go's format: name, rounds, and values with their units.
var benchmarkLine = regexp.MustCompile(`^(Benchmark\w+?)(?:/(\S+?))?(?:-\d+)?\s+\d+\s+(.*)$`)

func (r *results) benchmark(part, name string) (list []measurement) {
	for line := range strings.Lines(string(r.read(part, ".txt"))) {
		m := benchmarkLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[1] != name {
			continue
		}
		x, fields := measurement{m[2], map[string]float64{}}, strings.Fields(m[3])
		for i := 0; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				x.values[fields[i+1]] = v
			}
		}
		list = append(list, x)
	}
	return list
}

// kind is one kind of op in a profile: sums over its calls.
type kind struct {
	name                  string
	calls                 int
	seconds, flops, bytes float64
	minBytes              float64 // bytes of its smallest call
}

// kinds returns the kinds of a run's trace, sorted by name.
func (r *results) kinds(part string) []kind {
	var trace struct {
		TraceEvents []struct {
			Name string  `json:"name"`
			Took float64 `json:"dur"` // microseconds
			Args struct {
				FLOPs float64 `json:"flops"`
				Bytes float64 `json:"bytes"`
			} `json:"args"`
		} `json:"traceEvents"`
	}
	if json.Unmarshal(r.read(part, "-trace.json"), &trace) != nil {
		return nil
	}
	byName := map[string]*kind{}
	for _, e := range trace.TraceEvents {
		k := byName[e.Name]
		if k == nil {
			k = &kind{name: e.Name, minBytes: math.Inf(1)}
			byName[e.Name] = k
		}
		k.calls++
		k.seconds += e.Took / 1e6
		k.flops += e.Args.FLOPs
		k.bytes += e.Args.Bytes
		k.minBytes = min(k.minBytes, e.Args.Bytes)
	}
	var list []kind
	for _, k := range byName {
		list = append(list, *k)
	}
	slices.SortFunc(list, func(a, b kind) int { return strings.Compare(a.name, b.name) })
	return list
}

// memory returns a run's allocated bytes, and the device's other used bytes.
func (r *results) memory(part string) (allocated, outside int64) {
	type entry struct {
		Message   string `json:"msg"`
		Allocated int64  `json:"allocated"`
		Outside   int64  `json:"outside"`
	}
	for _, e := range lines[entry](r.read(part, "-run.log")) {
		if e.Message == "device memory" {
			return e.Allocated, e.Outside
		}
	}
	return 0, 0
}

// planned returns the bytes that octet plan predicts for a run.
func (r *results) planned(part string) int64 {
	var p struct {
		Memory int64 `json:"memory_bytes"`
	}
	_ = json.Unmarshal(r.read(part, ".txt"), &p) // 0: unknown
	return p.Memory
}

// losses returns the losses of all steps of a run.
func (r *results) losses(part string) (list []float64) {
	type line struct {
		Loss *float64 `json:"loss"`
	}
	for _, l := range lines[line](r.read(part, "-metrics.jsonl")) {
		if l.Loss != nil {
			list = append(list, *l.Loss)
		} else {
			list = append(list, math.NaN())
		}
	}
	return list
}

// rate returns the median rate of a run's steps in tokens per second, 0 if it is unknown.
func (r *results) rate(part string) float64 {
	type line struct {
		TokensPerS float64 `json:"tokens_per_s"`
	}
	var rates []float64
	for _, l := range lines[line](r.read(part, "-timing.jsonl")) {
		rates = append(rates, l.TokensPerS)
	}
	if len(rates) == 0 {
		return 0
	}
	slices.Sort(rates)
	return rates[len(rates)/2]
}

// peer is the output of peer_torch.py.
type peer struct {
	Environment struct {
		Torch string `json:"torch"`
	} `json:"environment"`
	Attention map[string]json.RawMessage `json:"attn"`
	Train     struct {
		Runs []struct {
			Params, Linears, Compile string
			TokensPerS               float64 `json:"tokens_per_s"`
		} `json:"runs"`
	} `json:"train"`
}

func (r *results) peer(part string) (p peer) {
	_ = json.Unmarshal(r.read(part, ".json"), &p) // missing values are zero
	return p
}

// bf16 returns the rate of the best compiled BF16 run.
func (p *peer) bf16() (best float64) {
	for _, x := range p.Train.Runs {
		if x.Linears == "bf16" && x.Compile != "none" {
			best = max(best, x.TokensPerS)
		}
	}
	return best
}
