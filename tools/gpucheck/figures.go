package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Figure is a line of the table.
type Figure struct {
	Name     string `json:"figure"`
	Measured string `json:"measured"` // empty if not measured
	Asked    string `json:"asked"`    // empty: no target
	Verdict  string `json:"verdict"`  // met, missed, or why it was not measured
}

const (
	met    = "met"
	missed = "**missed**"
)

func verdict(ok bool) string {
	if ok {
		return met
	}
	return missed
}

func absent(name, asked, why string) Figure {
	return Figure{Name: name, Asked: asked, Verdict: "not measured: " + why}
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// figures returns all figures, in the order of the parts.
func (r *results) figures() []Figure {
	var list []Figure
	for _, p := range []string{"tests-libcuda", "tests-kernels", "tests-cuda", "tests-gorgonia"} {
		list = append(list, r.tests(p))
	}
	list = append(list, r.passed("conformance", "conformance, every op against float64"), r.sanitizer("memcheck"), r.sanitizer("racecheck"))
	for _, recipe := range []string{"bf16", "fp8-delayed", "fp8-smooth"} {
		list = append(list, r.parity(recipe))
	}
	list = append(list, r.fp8GEMMs())
	list = append(list, r.casts())
	list = append(list, r.memoryOps()...)
	list = append(list, r.attention("Attention", "forward", 0.60, 0.40), r.attention("AttentionGrad", "backward", 0.45, 0.30))
	list = append(list, r.attentionByMMA(), r.peerAttention())
	list = append(list, r.speedUps("8 layers of Llama-7B", "step-7b-layers-", "peer-7b")...)
	list = append(list, r.speedUps("1b", "step-1b-", "peer-1b")...)
	list = append(list, r.outside(), r.allocated())
	for _, seed := range []string{"1", "2"} {
		list = append(list, r.curve(seed))
	}
	list = append(list, r.ranks()...)
	list = append(list, r.passed("peer-numerics", "numerics of FP8 GEMMs, probe_numerics.py ran"))
	for i := range list {
		if r.trial && (list[i].Verdict == met || strings.HasPrefix(list[i].Verdict, missed)) {
			list[i].Verdict = "a trial: no verdict"
		}
	}
	return list
}

// passed is the figure of a part that passes or fails.
func (r *results) passed(part, name string) Figure {
	const asked = "all pass"
	switch v, ok := r.verdicts[part]; {
	case !ok || strings.HasPrefix(v, "left out"):
		return absent(name, asked, r.why(part))
	case v != "ok":
		return Figure{name, v, asked, missed}
	}
	return Figure{name, r.verdicts[part], asked, met}
}

// tests counts the results of a test binary.
func (r *results) tests(part string) Figure {
	f := r.passed(part, "Go tests on the real libraries, "+strings.TrimPrefix(part, "tests-"))
	raw, err := os.ReadFile(filepath.Join(r.dir, part+".txt")) // also of a failed part
	if f.Measured == "" || err != nil {
		return f
	}
	count := func(what string) int { return strings.Count("\n"+string(raw), "\n--- "+what+": ") }
	f.Measured = fmt.Sprintf("%d passed, %d failed, %d for stand-ins only", count("PASS"), count("FAIL"), count("SKIP"))
	if count("PASS") == 0 {
		f.Verdict = missed // no test ran
	}
	return f
}

var sanitizerSummary = regexp.MustCompile(`(?m)^=+ (\w+ SUMMARY: .*)$`)

// sanitizer reports the summary of a compute-sanitizer tool. Without a summary the figure
// is missed, whatever the exit status: the tool saw no kernel.
func (r *results) sanitizer(tool string) Figure {
	part := "sanitizer-" + tool
	f := r.passed(part, "compute-sanitizer, "+tool+", every seventh case of conformance")
	raw, err := os.ReadFile(filepath.Join(r.dir, part+".txt"))
	if f.Measured == "" || err != nil {
		return f
	}
	all := sanitizerSummary.FindAllSubmatch(raw, -1)
	switch {
	case all != nil:
		f.Measured = string(all[len(all)-1][1])
		if !strings.Contains(f.Measured, "SUMMARY: 0 ") { // warnings do not change the exit status
			f.Verdict = missed
		}
	case f.Verdict == met:
		f.Measured, f.Verdict = "no summary of errors", missed
	}
	return f
}

// parity compares losses of the GPU with emu's.
func (r *results) parity(recipe string) Figure {
	name := "losses compared with emu, " + recipe
	parts := []string{"parity-" + recipe + "-emu", ""}
	for p := range r.verdicts {
		if strings.HasPrefix(p, "parity-"+recipe+"-cuda") {
			parts[1] = max(parts[1], p) // the same one of several GPUs each time
		}
	}
	if parts[1] == "" {
		return absent(name, "", r.why("parity-"+recipe+"-cuda"))
	}
	a, b := r.losses(parts[0]), r.losses(parts[1])
	for i, l := range [][]float64{a, b} {
		if len(l) == 0 {
			return absent(name, "", r.why(parts[i]))
		}
	}
	largest := 0.0
	for i := range min(len(a), len(b)) {
		largest = max(largest, math.Abs(a[i]-b[i]))
	}
	return Figure{name, fmt.Sprintf("at most %.2g nats apart in %d steps", largest, min(len(a), len(b))), "", "to be judged"}
}

// fp8GEMMs is the worst FP8 GEMM relative to cuBLASLt alone.
func (r *results) fp8GEMMs() Figure {
	const name, target = "FP8 GEMMs at Llama-7B's shapes, share of cuBLASLt alone", 0.95
	asked := fmt.Sprintf("%.0f %%", 100*target)
	list := r.benchmark("products", "BenchmarkGEMMs")
	if len(list) == 0 {
		return absent(name, asked, r.why("products"))
	}
	const share = "of-cublaslt"
	worst, sum := list[0], 0.0
	for _, p := range list {
		if !(p.value(share) >= worst.value(share)) {
			worst = p
		}
		sum += p.value(share)
	}
	return Figure{
		name, fmt.Sprintf("%s on average; minimum %s, %s: %.3g of %.3g TFLOP/s", percent(sum/float64(len(list))), percent(worst.value(share)), worst.name,
			worst.value("TFLOP/s"), worst.value("cublaslt-TFLOP/s")),
		asked, verdict(worst.value(share) >= target),
	}
}

// ofCopy is the target of memory-bound kernels: share of the copy bandwidth.
const ofCopy = 0.85

// casts is the worst cast relative to a copy.
func (r *results) casts() Figure {
	const name = "casts to FP8, share of copy bandwidth"
	asked := percent(ofCopy)
	worst, where, n := math.Inf(1), "", 0
	for _, x := range r.bench("bench-quantize") {
		if x.CopyShare > 0 {
			n++
			if x.CopyShare < worst {
				worst, where = x.CopyShare, x.Name+", "+x.Shape
			}
		}
	}
	if n == 0 {
		return absent(name, asked, r.why("bench-quantize"))
	}
	return Figure{name, fmt.Sprintf("minimum %s, %s; %d casts", percent(worst), where, n), asked, verdict(worst >= ofCopy)}
}

// beyondCaches is the call size above which bytes come from memory: an H200's L2 cache
// has 50 MB.
const beyondCaches = 100e6

// memoryOps are the memory-bound ops of a step: all but GEMMs and attention.
func (r *results) memoryOps() []Figure {
	const part, name = "profile-7b-layers", "in a step, share of copy bandwidth"
	asked := percent(ofCopy)
	copied := r.copyRate()
	if copied == 0 {
		return []Figure{absent("elementwise kernels "+name, asked, r.why("bench-quantize"))}
	}
	var list []Figure
	for _, k := range r.kinds(part) {
		if strings.HasPrefix(k.name, "MatMul") || strings.HasPrefix(k.name, "Attention") || k.minBytes < beyondCaches || k.seconds == 0 {
			continue
		}
		share := k.bytes / k.seconds / copied
		list = append(list, Figure{k.name + " " + name, fmt.Sprintf("%s, %.0f GB/s", percent(share), k.bytes/k.seconds/1e9), asked, verdict(share >= ofCopy)})
	}
	if list == nil {
		why := r.why(part)
		if r.kinds(part) != nil {
			why = fmt.Sprintf("no op of part %s moves %.0f MB in every call", part, beyondCaches/1e6)
		}
		list = append(list, absent("elementwise kernels "+name, asked, why))
	}
	return list
}

// attention is the rate of attention relative to that of BF16 GEMMs.
func (r *results) attention(op, direction string, target, ownTarget float64) Figure {
	name := "attention " + direction + ", 4,096 tokens, heads of 128, share of the BF16 GEMM rate"
	asked := fmt.Sprintf("%.0f %%; for our own kernel %.0f %%", 100*target, 100*ownTarget)
	peak := r.bf16Rate()
	if peak == 0 {
		return absent(name, asked, r.why("bench-gemm"))
	}
	for _, k := range r.kinds("profile-7b-layers") {
		if k.name == op && k.seconds > 0 {
			rate := k.flops / k.seconds
			f := Figure{name, fmt.Sprintf("%s, %.3g of %.3g TFLOP/s", percent(rate/peak), rate/1e12, peak/1e12), asked, verdict(rate/peak >= target)}
			if f.Verdict == missed && rate/peak >= ownTarget {
				f.Verdict = fmt.Sprintf("%s; met for our own kernel", missed)
			}
			return f
		}
	}
	return absent(name, asked, r.why("profile-7b-layers"))
}

// attentionByMMA compares the mma.sync kernels, which every GPU has, with the chosen
// ones: on Hopper the latter must be faster.
func (r *results) attentionByMMA() Figure {
	const part, name = "profile-7b-layers-mma", "attention by mma.sync, the same shape"
	seconds := map[string]float64{}
	for _, k := range r.kinds(part) {
		seconds[k.name] = k.seconds
	}
	if seconds["Attention"] == 0 {
		return absent(name, "", r.why(part))
	}
	var found []string
	for _, direction := range []struct{ op, name string }{{"Attention", "forward"}, {"AttentionGrad", "backward"}} {
		for _, k := range r.kinds("profile-7b-layers") {
			if k.name == direction.op && k.seconds > 0 {
				found = append(found, fmt.Sprintf("%s %.2f times", direction.name, seconds[k.name]/k.seconds))
			}
		}
	}
	return Figure{name, "takes longer than the chosen kernels: " + strings.Join(found, ", "), "", "for information"}
}

// peerAttention is PyTorch's attention on the same GPU.
func (r *results) peerAttention() Figure {
	const name = "attention of PyTorch, the same shape"
	var found []string
	p := r.peer("peer-7b")
	for _, backend := range []string{"flash", "cudnn"} {
		var x struct {
			Forward  float64 `json:"forward_tflops"`
			Backward float64 `json:"backward_tflops"`
		}
		if json.Unmarshal(p.Attention[backend], &x) == nil && x.Forward > 0 {
			found = append(found, fmt.Sprintf("%s %.3g forward, %.3g backward TFLOP/s", backend, x.Forward, x.Backward))
		}
	}
	if found == nil {
		return absent(name, "", r.why("peer-7b"))
	}
	return Figure{name, strings.Join(found, "; "), "", "for information"}
}

// The paper's gains over BF16 on Gaudi 2, and the target relative to PyTorch.
var gains = []struct {
	recipe string
	target float64
}{{"fp8-w3-bf16", 0.27}, {"fp8-smooth", 0.34}, {"fp8-delayed", 0.37}}

const overPyTorch = 1.3

// speedUps are the speedups of whole steps over BF16: Octet's and PyTorch's.
func (r *results) speedUps(model, parts, peerPart string) (list []Figure) {
	rate := func(recipe string) float64 { return r.tokens(parts + recipe)[recipe] }
	base := rate("bf16")
	for _, g := range gains {
		name := fmt.Sprintf("whole step, %s, %s over bf16", model, g.recipe)
		asked := fmt.Sprintf("+%.0f %%", 100*g.target)
		x := rate(g.recipe)
		switch {
		case base == 0:
			list = append(list, absent(name, asked, r.why(parts+"bf16")))
		case x == 0:
			list = append(list, absent(name, asked, r.why(parts+g.recipe)))
		default:
			list = append(list, Figure{
				name, fmt.Sprintf("%+.1f %%, %.0f against %.0f tokens/s", 100*(x/base-1), x, base), asked, verdict(x/base-1 >= g.target),
			})
		}
	}
	const recipe = "fp8-smooth"
	name, asked := fmt.Sprintf("whole step, %s, %s over PyTorch's BF16, compiled", model, recipe), fmt.Sprintf("%.1f times", overPyTorch)
	p := r.peer(peerPart)
	x, theirs := rate(recipe), p.bf16()
	switch {
	case x == 0:
		return append(list, absent(name, asked, r.why(parts+recipe)))
	case theirs == 0:
		return append(list, absent(name, asked, r.why(peerPart)))
	}
	return append(list, Figure{
		name, fmt.Sprintf("%.2f times, %.0f against %.0f tokens/s (torch %s)", x/theirs, x, theirs, p.Environment.Torch), asked, verdict(x/theirs >= overPyTorch),
	})
}

// outside is the share of a step outside kernels, by BenchmarkOutside.
func (r *results) outside() Figure {
	const part, name, maximum = "outside", "upper bound of time outside kernels, of a step of 8 layers of Llama-7B, fp8-smooth", 0.02
	asked := fmt.Sprintf("less than %.0f %%", 100*maximum)
	list := r.benchmark(part, "BenchmarkOutside")
	if len(list) == 0 {
		return absent(name, asked, r.why(part))
	}
	// A negative share is measurement noise, and must not reduce the other share.
	host, gaps := max(0, list[0].value("host-%")/100), max(0, list[0].value("gaps-%")/100)
	return Figure{
		name, fmt.Sprintf("%.2f %%: gaps between kernels %.2f %%, %.0f ns each with an empty kernel; waiting for the host and copies %.2f %%",
			100*(host+gaps), 100*gaps, list[0].value("ns/gap"), 100*host),
		asked, verdict(host+gaps < maximum),
	}
}

// allocated compares a run's memory with its plan.
func (r *results) allocated() Figure {
	const part, plan, name, asked = "memory-7b-layers", "plan-7b-layers", "memory, 2 layers of Llama-7B", "allocated as planned"
	allocated, outside := r.memory(part)
	planned := r.planned(plan)
	switch {
	case allocated == 0:
		return absent(name, asked, r.why(part))
	case planned == 0:
		return absent(name, asked, r.why(plan))
	}
	return Figure{
		name, fmt.Sprintf("allocated %d bytes, planned %d; driver, libraries and other processes %d", allocated, planned, outside), asked, verdict(allocated == planned),
	}
}

// smoothed returns the mean loss of the last tenth of a run.
func smoothed(losses []float64) float64 {
	n, sum := max(1, len(losses)/10), 0.0
	for _, l := range losses[len(losses)-n:] {
		sum += l
	}
	return sum / float64(n)
}

// curve compares the final losses of two runs of a seed.
func (r *results) curve(seed string) Figure {
	const maximum = 0.005
	name, asked := "1,000 steps of 124m, seed "+seed+", fp8-smooth compared with bf16", fmt.Sprintf("within %.1f %%", 100*maximum)
	var ends [2]float64
	var steps [2]int
	for i, recipe := range []string{"bf16", "fp8-smooth"} {
		part := "curve-" + recipe + "-" + seed
		losses := r.losses(part)
		if len(losses) == 0 {
			return absent(name, asked, r.why(part))
		}
		ends[i], steps[i] = smoothed(losses), len(losses)
	}
	apart := ends[1]/ends[0] - 1
	return Figure{
		name, fmt.Sprintf("%+.2f %%: %.4f against %.4f nats, mean of the last tenth of %d steps", 100*apart, ends[1], ends[0], steps[1]),
		asked, verdict(math.Abs(apart) <= maximum && min(steps[0], steps[1]) >= 1000),
	}
}
