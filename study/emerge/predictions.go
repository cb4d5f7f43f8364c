package main

import (
	"math"
	"slices"

	"octet/internal/stats"
	"octet/study/internal/finding"
)

// predictions compares the runs with what was written here before the first of them. The numbers
// come from earlier runs of one to three seeds with other programs; those without say so.
func (b settings) predictions() *finding.List {
	var l finding.List
	cos := func(name string) []float64 { return b[name].first(layer.cosineMean) }
	span := func(name string) string { return finding.Span("%.2f", cos(name)) }

	base := cos("decay 0.1")
	l.Check("Base: mean |cos| of the first layer is 0.30–0.38 for every seed (random rows: 0.10)", span("decay 0.1"), finding.All(base, 0.30, 0.38))
	one := cos("decay 1")
	l.Check("Decay 1: mean |cos| is 0.50–0.62 for every seed", span("decay 1"), finding.All(one, 0.50, 0.62))
	ordered := true
	for i := range base {
		ordered = ordered && cos("decay 0")[i] < base[i] && base[i] < cos("decay 0.3")[i] && cos("decay 0.3")[i] < one[i]
	}
	l.Check("Alignment rises with decay 0, 0.1, 0.3, 1, for every seed",
		span("decay 0")+", "+span("decay 0.1")+", "+span("decay 0.3")+", "+span("decay 1"), ordered)
	l.Check("Decay 5 aligns less than decay 1 (medians)", span("decay 5"), stats.Median(cos("decay 5")) < stats.Median(one))
	l.Check("Coupled L2 of 1e-3 aligns more than decay 0.1: at least 0.42 for every seed", span("l2 1e-3"), finding.All(cos("l2 1e-3"), 0.42, 1))
	l.Check("Coupled L2 of 1e-2 kills most channels: mean |cos| at most 0.25 for every seed", span("l2 1e-2"), finding.All(cos("l2 1e-2"), 0, 0.25))
	fast := slices.Concat(cos("lr 1e-2, decay 0"), cos("lr 1e-2, decay 0.1"), cos("lr 1e-2, decay 0.3"))
	l.Check("A learning rate of 1e-2 without clipping: 0.48–0.68 for every seed and decay", finding.Span("%.2f", fast), finding.All(fast, 0.48, 0.68))
	rho := b["decay 1"].first(layer.correlation)
	l.Check("Decay 1: alignment is largest where channels are, rank correlation at least 0.6 for every seed", finding.Span("%.2f", rho), finding.All(rho, 0.6, 1))

	amax := func(name string) []float64 { return b[name].first(layer.amax) }
	grows := true
	for i := range base {
		grows = grows && amax("lr 1e-2, decay 0.3")[i] < amax("lr 1e-2, decay 0.1")[i] && amax("lr 1e-2, decay 0.1")[i] < amax("lr 1e-2, decay 0")[i]
	}
	l.Check("Weaker decay, larger activations (lr 1e-2: 0.3, 0.1, 0), for every seed",
		finding.Span("%.0f", amax("lr 1e-2, decay 0.3"))+", "+finding.Span("%.0f", amax("lr 1e-2, decay 0.1"))+", "+finding.Span("%.0f", amax("lr 1e-2, decay 0")), grows)
	l.Check("lr 1e-2, decay 0: amax above 100 for every seed", finding.Span("%.0f", amax("lr 1e-2, decay 0")), finding.All(amax("lr 1e-2, decay 0"), 100, math.Inf(1)))
	ratio := b["decay 0.1"].first(layer.overMedian)
	l.Check("Base: no channel leaves the others, amax below 5 times the median for every seed", finding.Span("%.1f", ratio), finding.All(ratio, 1, 5))

	var strong, weak []float64
	for _, name := range []string{"decay 1", "lr 1e-2, decay 0", "lr 1e-2, decay 0.1"} {
		strong = append(strong, finding.Known(b[name].first(func(l layer) float64 { return l.byteShare(0.8, 2) }))...)
		weak = append(weak, finding.Known(b[name].first(func(l layer) float64 { return l.byteShare(0, 0.3) }))...)
	}
	l.Check("Aligned channels detect one token: with |cos| above 0.8, one byte has at least 0.65 of the energy (median), below 0.3 at most 0.60, in every run that has such channels",
		finding.Span("%.2f", strong)+"; "+finding.Span("%.2f", weak), finding.All(strong, 0.65, 1) && finding.All(weak, 0, 0.60))

	for _, x := range []struct{ name, text string }{
		{"repeated text", "64 kB of text, read 20 times"},
		{"rare byte", "a rare byte with a sure consequence"},
		{"ffn 16", "16 channels"},
		{"dim 32, ffn 512", "512 channels of width 32"},
	} {
		l.Check("No gain from "+x.text+": median of mean |cos| at most 0.36", span(x.name), stats.Median(cos(x.name)) <= 0.36)
	}

	// Without an earlier run.
	var all []float64
	for _, x := range shapes {
		all = append(all, stats.Median(b[x.name].first(func(l layer) float64 { return l.cosineMean() - random(x.dim) })))
	}
	l.Check("Depth against width at equal parameters, a guess: the first layer's excess over random rows differs by at most 0.1 between the shapes (medians)",
		finding.Span("%.2f", all), slices.Max(all)-slices.Min(all) <= 0.1)
	less := true
	for _, x := range shapes[1:] {
		less = less && stats.Median(b[x.name].last(layer.cosineMean)) < stats.Median(b[x.name].first(layer.cosineMean))
	}
	l.Check("The first layer aligns more than the last, at every depth (medians)", span("decay 0.1")+" and "+finding.Span("%.2f", b["decay 0.1"].last(layer.cosineMean))+" at two layers", less)
	return &l
}
