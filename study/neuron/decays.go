package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"octet/internal/chart"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

// kind is a decay, coupled or decoupled, with batches of this size or of all samples.
type kind struct {
	name      string
	decoupled bool
	batch     int
	strengths []float64
}

// effective returns the strength of L2 to which the decay amounts: where AdamW stands still, the
// gradient is −decay·√v·w. It takes the mean of √v.
func (k kind) effective(o *outcome) float64 {
	if k.decoupled {
		return o.decay * o.rootV
	}
	return o.l2
}

// decays compares AdamW with L2 for a SwiGLU neuron and a teacher whose rows have an angle of 60°.
func decays(l *finding.List) error {
	mu, decay := []float64{0.1, 0.3, 1, 2, 3, 4, 5, 8}, []float64{0.03, 0.1, 0.3, 1, 3}
	kinds := []kind{
		{"L2, all samples", false, 0, mu},
		{"L2, batches of 32", false, 32, mu},
		{"AdamW, all samples", true, 0, decay},
		{"AdamW, batches of 32", true, 32, decay},
	}
	picture := &chart.Chart{
		Title: "SwiGLU, θ = 60°: coupled and decoupled decay",
		X:     chart.Axis{Label: "effective μ: μ of L2, decay · mean √v of AdamW", Log: true},
		Y:     chart.Axis{Label: "cos(w1, w2)"},
		Lines: []chart.Line{{Name: "closed form"}},
	}
	for i := range 201 {
		x := 0.01 * math.Pow(1000, float64(i)/200)
		form := &picture.Lines[0]
		form.X, form.Y = append(form.X, x), append(form.Y, closedForm(60, x, true))
	}
	idle := chart.Line{Name: "explains < 10 % of y²", Look: 7, Dots: true}
	effective, cosines := make([][][]float64, len(kinds)), make([][][]float64, len(kinds)) // by kind, strength and seed
	var rows [][]string
	for i, k := range kinds {
		var runs []run
		for _, strength := range k.strengths {
			r := swiglu(teacherSize, 60, strength)
			if k.decoupled {
				r.l2, r.decay = 0, strength
			}
			r.batch = k.batch
			runs = append(runs, r)
		}
		dots := chart.Line{Name: k.name, Look: []int{1, 2, 3, 6}[i], Dots: true}
		for j, list := range measure(runs) {
			e, c := each(list, k.effective), each(list, cosine)
			effective[i], cosines[i] = append(effective[i], e), append(cosines[i], c)
			scatter([]*chart.Line{&dots, &idle}, list, k.effective, cosine)
			rows = append(rows, []string{
				k.name, fmt.Sprintf("%g", k.strengths[j]), middle("%.2f", e), middle("%.3f", c),
				fmt.Sprintf("%.3f", closedForm(60, stats.Median(e), true)), fmt.Sprint(failed(list)),
			})
		}
		picture.Lines = append(picture.Lines, dots)
	}
	picture.Lines = append(picture.Lines, idle)
	if err := finding.Table(os.Stdout, "AdamW and L2, SwiGLU, θ = 60°, s = 20", []string{"decay", "strength", "effective μ, median (range)", "cos, median (range)", "closed form at the median", "explain < 10 % of y²"}, rows); err != nil {
		return err
	}
	full, batches := kinds[2], kinds[3]
	a, b := slices.Index(full.strengths, 0.3), slices.Index(batches.strengths, 0.3)
	l.Check("AdamW 0.3, all samples: effective μ below 0.5 and |cos| below 0.95 for every seed",
		finding.Span("%.2f", effective[2][a])+", "+finding.Span("%.3f", finding.Abs(cosines[2][a])),
		finding.All(effective[2][a], 0, 0.5) && finding.All(finding.Abs(cosines[2][a]), 0, 0.95))
	l.Check("AdamW 0.3, batches of 32: effective μ between 0.5 and 2 for every seed", finding.Span("%.2f", effective[3][b]), finding.All(effective[3][b], 0.5, 2))
	var ratios []float64
	for seed, e := range effective[3][b] {
		ratios = append(ratios, e/effective[2][a][seed])
	}
	l.Check("AdamW 0.3: effective μ is 3 times as large or more with batches of 32, for every seed", finding.Span("%.1f", ratios), finding.All(ratios, 3, math.Inf(1)))
	var distances []float64
	for _, strength := range []float64{0.1, 0.3} {
		j := slices.Index(batches.strengths, strength)
		want := interpolate(mu, medians(cosines[1]), stats.Median(effective[3][j]))
		distances = append(distances, stats.Median(cosines[3][j])-want)
	}
	l.Check("AdamW 0.1 and 0.3, batches of 32: the median cosine is within 0.15 of that of L2 at the same effective μ (interpolated)",
		fmt.Sprintf("%+.3f", distances), finding.All(distances, -0.15, 0.15))
	return finding.Draw(*out, "neuron-decay", picture)
}

func medians(lists [][]float64) (values []float64) {
	for _, list := range lists {
		values = append(values, stats.Median(list))
	}
	return values
}

// interpolate returns the value at x of the line through points with ascending xs. Outside it
// returns that of the first or the last point.
func interpolate(xs, ys []float64, x float64) float64 {
	i, _ := slices.BinarySearch(xs, x)
	switch i {
	case 0:
		return ys[0]
	case len(xs):
		return ys[len(ys)-1]
	}
	return ys[i-1] + (ys[i]-ys[i-1])*(x-xs[i-1])/(xs[i]-xs[i-1])
}
