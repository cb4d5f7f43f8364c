package main

import (
	"fmt"
	"math"
	"os"

	"octet/internal/stats"
	"octet/study/internal/finding"
)

// columns are decays of the tables of targets.
var columns = []struct {
	name      string
	l2, decay float64
}{{"none", 0, 0}, {"L2 0.1", 0.1, 0}, {"L2 0.5", 0.5, 0}, {"AdamW 0.1", 0, 0.1}, {"AdamW 1", 0, 1}}

// targets measures which targets align a SwiGLU neuron, and what decays do to the norms.
func targets(l *finding.List) error {
	list := []struct {
		target
		neurons int
	}{{power, 1}, {power, 4}, {noise, 1}, {noise, 4}, {wave, 1}, {wave, 4}}
	var runs []run
	for _, t := range list {
		for _, c := range columns {
			runs = append(runs, run{
				shape{neurons: t.neurons, dim: 16, gated: true, trainW3: t.neurons > 1},
				t.target,
				training{lr: 1e-2, steps: 3000, l2: c.l2, decay: c.decay},
				512,
			})
		}
	}
	head := []string{"y", "neurons"}
	for _, c := range columns {
		head = append(head, c.name)
	}
	results := measure(runs)
	var rows [][]string
	cosines := map[string][]float64{} // |cos| of the seeds, by target, neurons and decay
	for i, t := range list {
		row := []string{t.name, fmt.Sprint(t.neurons)}
		for j, c := range columns {
			v := each(results[i*len(columns)+j], alignment)
			cosines[fmt.Sprint(t.name, t.neurons, c.name)] = v
			row = append(row, middle("%.3f", v))
		}
		rows = append(rows, row)
	}
	if err := finding.Table(os.Stdout, "Other targets: |cos| of w1 and w2, median (range)", head, rows); err != nil {
		return err
	}
	four := results[len(columns) : 2*len(columns)]
	predictTargets(l, cosines, four)
	return norms(l, four)
}

// predictTargets checks the predictions about targets. four are the runs of the target power
// with four neurons, by column.
func predictTargets(l *finding.List, cosines map[string][]float64, four [][]*outcome) {
	of := func(t target, neurons int, decay string) []float64 {
		return cosines[fmt.Sprint(t.name, neurons, decay)]
	}
	span := func(values []float64) string { return finding.Span("%.3f", values) }
	alone, count := of(power, 1, "none"), 0
	for _, v := range alone {
		if v > 0.99 {
			count++
		}
	}
	l.Check(power.name+", one neuron, no decay: |cos| is above 0.99 for at least 3 of 5 seeds", fmt.Sprintf("%d of %d", count, len(alone)), 5*count >= 3*len(alone))
	none, weak, strong := of(power, 4, "none"), of(power, 4, "L2 0.1"), of(power, 4, "L2 0.5")
	l.Check(power.name+", four neurons, no decay: the top neuron's |cos| is below 0.98 for every seed", span(none), finding.All(none, 0, 0.98))
	l.Check("the same under L2 0.1 and 0.5: above 0.99 for every seed", span(weak)+", "+span(strong), finding.All(weak, 0.99, 1.0001) && finding.All(strong, 0.99, 1.0001))
	slow, fast := of(power, 4, "AdamW 0.1"), of(power, 4, "AdamW 1")
	l.Check("the same under AdamW 0.1: above 0.9; under AdamW 1: above 0.99", span(slow)+", "+span(fast), finding.All(slow, 0.9, 1.0001) && finding.All(fast, 0.99, 1.0001))
	positive, all := 0, 0
	for _, list := range four[1:3] { // L2
		for _, o := range list {
			all++
			if o.cos(o.top()) > 0 {
				positive++
			}
		}
	}
	l.Check("the same under L2: the cosine is positive for some seeds and negative for others", fmt.Sprintf("%d of %d runs positive", positive, all), positive > 0 && positive < all)
	held := true
	var medians []float64
	for _, t := range []target{noise, wave} {
		for _, decay := range []string{"L2 0.1", "L2 0.5"} {
			m := stats.Median(of(t, 1, decay))
			medians = append(medians, m)
			held = held && m < 0.6
		}
	}
	l.Check("20·noise and 20·sin 2p, one neuron, L2 0.1 and 0.5: each median |cos| is below 0.6", fmt.Sprintf("%.3f", medians), held)
}

// norms prints the norms and the largest activation of one neuron, trained by a teacher, and of
// the top one of four.
func norms(l *finding.List, four [][]*outcome) error {
	one := []struct {
		name      string
		l2, decay float64
	}{{"none", 0, 0}, {"L2 0.5", 0.5, 0}, {"L2 2", 2, 0}, {"L2 8", 8, 0}, {"AdamW 0.3", 0, 0.3}, {"AdamW 1", 0, 1}}
	var runs []run
	for _, d := range one {
		r := swiglu(teacherSize, 60, d.l2)
		r.decay = d.decay
		runs = append(runs, r)
	}
	var rows [][]string
	add := func(unit, decay string, list []*outcome) (ratio, amax []float64) {
		w1 := each(list, func(o *outcome) float64 { return norm(o.w1(o.p, o.top())) })
		w2 := each(list, func(o *outcome) float64 { return norm(o.w2(o.p, o.top())) })
		amax = each(list, func(o *outcome) float64 { return o.amax(o.top()) })
		for i := range w1 {
			ratio = append(ratio, w1[i]/w2[i])
		}
		rows = append(rows, []string{
			unit, decay, finding.Span("%.2f", w1), finding.Span("%.2f", w2), finding.Span("%.3f", ratio),
			middle("%.0f", amax), finding.Span("%.3f", each(list, alignment)), fmt.Sprint(failed(list)),
		})
		return ratio, amax
	}
	var coupled, decoupled []float64 // |w1|/|w2|
	top := map[string]float64{}      // median of the largest activations, by unit and decay
	for i, list := range measure(runs) {
		ratio, amax := add("one, gated teacher", one[i].name, list)
		top["one "+one[i].name] = stats.Median(amax)
		switch {
		case one[i].l2 > 0:
			coupled = append(coupled, ratio...)
		case one[i].decay > 0:
			decoupled = append(decoupled, ratio...)
		}
	}
	for i, list := range four {
		_, amax := add("top of four, "+power.name, columns[i].name, list)
		top["four "+columns[i].name] = stats.Median(amax)
	}
	if err := finding.Table(os.Stdout, "Norms and the largest activation", []string{
		"neuron", "decay", "|w1|", "|w2|", "|w1| / |w2|", "largest |a|, median (range)", "|cos|", "explain < 10 % of y²",
	}, rows); err != nil {
		return err
	}
	l.Check("one neuron under L2 0.5, 2 and 8: |w1|/|w2| is within 5 % of 1 for every seed", finding.Span("%.3f", coupled), finding.All(coupled, 0.95, 1.05))
	far := 0
	for _, v := range decoupled {
		if math.Abs(v-1) > 0.05 {
			far++
		}
	}
	l.Check("one neuron under AdamW 0.3 and 1, all samples: |w1|/|w2| is further than 5 % from 1 in at least half of the runs", fmt.Sprintf("%d of %d", far, len(decoupled)), 2*far >= len(decoupled))
	a, b := top["one L2 8"]/top["one none"], top["four L2 0.5"]/top["four none"]
	l.Check("L2 shrinks the median of the largest activations to 0.75 or less (one neuron, μ = 8; top of four, μ = 0.5)", fmt.Sprintf("%.2f, %.2f", a, b), a <= 0.75 && b <= 0.75)
	return nil
}
