package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"octet/internal/chart"
	"octet/study/internal/finding"
)

// sweep is a unit and a teacher, with the strengths of L2 that train it.
type sweep struct {
	name  string
	angle float64
	mu    []float64
	run   func(mu float64) run
}

// angles measures the cosine between w1 and w2 against μ, the strength of coupled L2, for
// teachers of size 20.
func angles(l *finding.List) error {
	var bilinearError, alignedCos, below, weak []float64
	var charts []chart.Picture
	for _, unit := range []struct {
		name string
		list []sweep
	}{
		{"bilinear", []sweep{
			{"bilinear", 60, []float64{0, 2, 4, 6, 8, 9, 11}, func(mu float64) run { return bilinear(60, mu) }},
			{"bilinear", 30, []float64{0, 0.6, 1.2, 1.8, 2.2, 2.5, 3}, func(mu float64) run { return bilinear(30, mu) }},
		}},
		{"SwiGLU", []sweep{
			{"SwiGLU", 60, []float64{0, 1, 2, 3, 4, 5, 6, 8}, func(mu float64) run { return swiglu(teacherSize, 60, mu) }},
			{"SwiGLU", 30, []float64{0, 0.3, 0.6, 0.9, 1.2, 1.34, 2, 3}, func(mu float64) run { return swiglu(teacherSize, 30, mu) }},
		}},
	} {
		picture := &chart.Chart{
			Title: "Cosine between w1 and w2 under L2: " + unit.name,
			X:     chart.Axis{Label: "μ, in units of the threshold"}, Y: chart.Axis{Label: "cos(w1, w2)"},
		}
		idle := &chart.Line{Name: "explains < 10 % of y²", Look: 7, Dots: true}
		for look, s := range unit.list {
			gated := unit.name == "SwiGLU"
			cosines, err := s.measure(gated, picture, look, idle)
			if err != nil {
				return err
			}
			for i, mu := range s.mu {
				want := closedForm(s.angle, mu, gated)
				for _, c := range cosines[i] {
					switch {
					case !gated:
						bilinearError = append(bilinearError, math.Abs(c-want))
					case mu >= threshold(s.angle, true):
						alignedCos = append(alignedCos, math.Abs(c))
					default:
						below = append(below, c-want)
					}
				}
				if gated && s.angle == 60 && mu == 1 {
					weak = cosines[i]
				}
			}
		}
		if len(idle.X) > 0 {
			picture.Lines = append(picture.Lines, *idle)
		}
		charts = append(charts, picture)
	}
	l.Check("bilinear: every seed's cosine is within 0.09 of the closed form", "largest distance "+fmt.Sprintf("%.3f", slices.Max(bilinearError)), finding.All(bilinearError, 0, 0.09))
	l.Check("SwiGLU, at and above the threshold: every seed's |cos| is above 0.99", finding.Span("%.4f", alignedCos), finding.All(alignedCos, 0.99, 1.0001))
	l.Check("SwiGLU, below the threshold: no seed's cosine is more than 0.09 below the closed form (it may jump to 1 before the threshold)",
		"distance "+finding.Span("%+.3f", below), finding.All(below, -0.09, 2))
	l.Check("SwiGLU, θ = 60°, μ = 1: every seed's cosine is between 0.5 and 0.95", finding.Span("%.3f", weak), finding.All(weak, 0.5, 0.95))
	return finding.Draw(*out, "neuron-angle", charts...)
}

// measure prints the table of a sweep and adds its lines to the chart. It returns the cosines
// of the seeds for each μ. Runs that did not learn are dots of idle.
func (s sweep) measure(gated bool, picture *chart.Chart, look int, idle *chart.Line) (cosines [][]float64, err error) {
	var runs []run
	head := []string{"μ"}
	rows := [][]string{{"closed form"}, {"lowest"}, {"highest"}, {"runs that explain < 10 % of y²"}, {"lowest of the others"}}
	dots := chart.Line{Name: fmt.Sprintf("θ = %g°, each seed", s.angle), Look: look, Dots: true}
	for _, mu := range s.mu {
		runs = append(runs, s.run(mu))
	}
	top := threshold(s.angle, gated)
	for i, list := range measure(runs) {
		mu, c := s.mu[i], each(list, cosine)
		cosines = append(cosines, c)
		head = append(head, fmt.Sprintf("%g", mu))
		rest := slices.DeleteFunc(slices.Clone(list), func(o *outcome) bool { return !o.learned() })
		lowest := "–"
		if len(rest) > 0 {
			lowest = fmt.Sprintf("%.3f", slices.Min(each(rest, cosine)))
		}
		for k, text := range []string{
			fmt.Sprintf("%.3f", closedForm(s.angle, mu, gated)), fmt.Sprintf("%.3f", slices.Min(c)), fmt.Sprintf("%.3f", slices.Max(c)),
			fmt.Sprint(failed(list)), lowest,
		} {
			rows[k] = append(rows[k], text)
		}
		scatter([]*chart.Line{&dots, idle}, list, func(*outcome) float64 { return mu / top }, cosine)
	}
	form := chart.Line{Name: fmt.Sprintf("θ = %g°, closed form, threshold μ = %.3g", s.angle, top), Look: look}
	const points = 200
	end := s.mu[len(s.mu)-1] / top
	for i := range points + 1 {
		x := end * float64(i) / points
		form.X, form.Y = append(form.X, x), append(form.Y, closedForm(s.angle, x*top, gated))
	}
	picture.Lines = append(picture.Lines, form, dots)
	return cosines, finding.Table(os.Stdout, fmt.Sprintf("%s, θ = %g°, s = 20: cosine between w1 and w2, threshold μ = %.3g", s.name, s.angle, top), head, rows)
}

// points measures the theorem's equations at the end of training, below and above the
// threshold, for teachers of size 20 whose rows have an angle of 60°.
func points(l *finding.List) error {
	units := []struct {
		name string
		run
	}{
		{"bilinear, below", bilinear(60, 6)},
		{"bilinear, above", bilinear(60, 16)},
		{"SwiGLU, below", swiglu(teacherSize, 60, 1)},
		{"SwiGLU, above", swiglu(teacherSize, 60, 8)},
	}
	var runs []run
	for _, u := range units {
		runs = append(runs, u.run)
	}
	var rows [][]string
	results := measure(runs)
	figures := make([]equations, len(units))
	for i, u := range units {
		f := equationsOf(results[i])
		figures[i] = f
		rows = append(rows, []string{
			u.name, fmt.Sprintf("%g", u.l2), finding.Span("%.3f", each(results[i], cosine)),
			finding.Span("%.1g", f.w1), finding.Span("%.1g", f.w2), finding.Span("%.3f", f.plus), finding.Span("%.3f", f.minus), finding.Span("%.3f", f.lowest), fmt.Sprint(failed(results[i])),
		})
	}
	if err := finding.Table(os.Stdout, "Stationary points, θ = 60°, s = 20: the equations of the theorem and the eigenvalues of A", []string{
		"unit", "μ", "cos(w1, w2)", "|w1 − A·w2| / |w1|", "|w2 − A·w1| / |w2|", "eigenvalue nearest +1", "nearest −1", "lowest", "explain < 10 % of y²",
	}, rows); err != nil {
		return err
	}
	both := slices.Concat(figures[0].w1, figures[0].w2, figures[1].w1, figures[1].w2)
	l.Check("bilinear: both equations hold within 1e-3 for every seed", "largest error "+fmt.Sprintf("%.1g", slices.Max(both)), finding.All(both, 0, 1e-3))
	l.Check("bilinear, below the threshold: A has eigenvalues within 0.01 of +1 and of −1, since A(w1 ± w2) = ±(w1 ± w2)",
		finding.Span("%.4f", figures[0].plus)+", "+finding.Span("%.4f", figures[0].minus),
		finding.All(figures[0].plus, 0.99, 1.01) && finding.All(figures[0].minus, -1.01, -0.99))
	l.Check("bilinear, μ = 16: the eigenvalue nearest −1 is within 0.15 of ⅓ − 4s(1 − cos θ)/(3μ) = −0.5",
		finding.Span("%.3f", figures[1].minus), finding.All(figures[1].minus, -0.65, -0.35))
	first := slices.Concat(figures[2].w1, figures[3].w1)
	l.Check("SwiGLU: w1 = A·w2 within 1e-5 for every seed", "largest error "+fmt.Sprintf("%.1g", slices.Max(first)), finding.All(first, 0, 1e-5))
	l.Check("SwiGLU, below the threshold: A has an eigenvalue within 0.1 of +1 and one within 0.2 of −1, for every seed",
		finding.Span("%.3f", figures[2].plus)+", "+finding.Span("%.3f", figures[2].minus),
		finding.All(figures[2].plus, 0.9, 1.1) && finding.All(figures[2].minus, -1.2, -0.8))
	l.Check("SwiGLU, above the threshold: no eigenvalue of A is below −0.5, for every seed",
		finding.Span("%.3f", figures[3].lowest), finding.All(figures[3].lowest, -0.5, 10))
	return nil
}
