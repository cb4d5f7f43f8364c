package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"octet/internal/stats"
	"octet/study/internal/finding"
)

// equations has the figures of [stationary] for every seed.
type equations struct{ w1, w2, plus, minus, lowest, rayleigh, sigmoidPrime []float64 }

func equationsOf(list []*outcome) (e equations) {
	for _, o := range list {
		s := o.stationary()
		e.w1, e.w2 = append(e.w1, s.w1), append(e.w2, s.w2)
		e.plus, e.minus, e.lowest = append(e.plus, s.plus), append(e.minus, s.minus), append(e.lowest, s.lowest)
		e.rayleigh = append(e.rayleigh, s.rayleigh)
		e.sigmoidPrime = append(e.sigmoidPrime, s.sigmoidPrime)
	}
	return e
}

// scales measures the theorem's condition, that the derivative of the sigmoid is 0, against the
// size s of the teacher, with μ = 0.1·s, which is above the threshold.
func scales(l *finding.List) error {
	sizes := []float64{5, 20, 80, 320}
	var runs []run
	for _, s := range sizes {
		runs = append(runs, swiglu(s, 30, s/10))
	}
	var rows [][]string
	var prime, medians, quotients []float64
	for i, list := range measure(runs) {
		e := equationsOf(list)
		rows = append(rows, []string{
			fmt.Sprintf("%g", sizes[i]), finding.Span("%.4f", finding.Abs(each(list, cosine))),
			middle("%.3f", e.sigmoidPrime), finding.Span("%.1g", e.w1), middle("%.4f", e.w2), finding.Span("%.4f", e.rayleigh),
		})
		prime, medians = append(prime, stats.Median(e.sigmoidPrime)), append(medians, stats.Median(e.w2))
		if sizes[i] >= 80 {
			quotients = append(quotients, e.rayleigh...)
		}
	}
	if err := finding.Table(os.Stdout, "The condition σ′ → 0, θ = 30°, μ = 0.1·s", []string{
		"s", "|cos|", "mean σ′, median (range)", "|w1 − A·w2| / |w1|", "|w2 − A·w1| / |w2|, median (range)", "|A·w1|² / |w1|²",
	}, rows); err != nil {
		return err
	}
	falling := slices.IsSortedFunc(medians, func(a, b float64) int { return cmp.Compare(b, a) })
	l.Check("median |w2 − A·w1|/|w2| falls with each s, by ten times or more from 5 to 320",
		fmt.Sprintf("%.4f", medians), falling && medians[0] >= 10*medians[len(medians)-1])
	l.Check("median of the mean σ′: above 0.1 at s = 5, below 0.03 at s = 320",
		fmt.Sprintf("%.3f, %.3f", prime[0], prime[len(prime)-1]), prime[0] > 0.1 && prime[len(prime)-1] < 0.03)
	l.Check("s = 80 and 320: the Rayleigh quotient of A² at w1 is within 0.002 of 1 for every seed",
		finding.Span("%.4f", quotients), finding.All(quotients, 0.998, 1.002))
	return nil
}
