package main

import (
	"fmt"
	"slices"

	"octet/study/internal/finding"
)

// predictCasts checks predictions that follow from the 18 binades of E4M3, 2^-9 to 448. An
// outlier of c² = 2^2i is a power of two, so a current scale maps it to 2^8. Values up to
// 2^(2i−18) become 0; the others of a are about 0.6, up to about 10. Smooth-SwiGLU leaves 2^i of
// the outlier in h and in W3′, so it has twice as many binades before others become 0.
func predictCasts(l *finding.List, m *measurement) {
	const small, lost = 1.0 / 16, 0.9
	part := func(variant int, of func(castErrors) float64, from, to int) (list []float64) {
		for i := from; i <= to; i++ {
			list = append(list, of(m.errors[i][variant]))
		}
		return list
	}
	outlier := func(e castErrors) float64 { return e.outlier }
	others := func(e castErrors) float64 { return e.others }
	worst := castErrors.worst
	// check predicts that a part's errors are within [low, high] for c = 2^from to 2^to.
	check := func(prediction string, list []float64, low, high float64) {
		l.Check(prediction, finding.Span("%.3f", list), finding.All(list, low, high))
	}
	check("delayed: the outlier's error is above 0.9 from c = 2^5 on", part(0, outlier, 5, binades), lost, 1)
	check("delayed: the other channels' error is below 2^-4 for every c", part(0, others, 0, binades), 0, small)
	check("current: every error is below 2^-4 up to c = 2^6", part(1, worst, 0, 6), 0, small)
	check("current: the other channels' error is above 0.9 from c = 2^10 on", part(1, others, 10, binades), lost, 1)
	check("current: the outlier's error is below 2^-4 for every c", part(1, outlier, 0, binades), 0, small)
	check("Smooth-SwiGLU: every error is below 2^-4 up to c = 2^12, an outlier of 2^24", part(2, worst, 0, 12), 0, small)
	check("Smooth-SwiGLU: the outlier's error is below 2^-4 for every c", part(2, outlier, 0, binades), 0, small)
	all := part(2, others, 0, binades)
	first := slices.IndexFunc(all, func(e float64) bool { return e > lost })
	measured := "never"
	if first >= 0 {
		measured = fmt.Sprintf("2^%d", first)
	}
	l.Check("Smooth-SwiGLU: the other channels' error exceeds 0.9 first at c = 2^18 to 2^20", measured, first >= 18)
	l.Check("Smooth-SwiGLU in FP32: bits of a and y equal those of SwiGLU for every c", fmt.Sprintf("%d of %d", count(m.same[:]), len(m.same)), count(m.same[:]) == len(m.same))
}

func count(list []bool) (n int) {
	for _, v := range list {
		if v {
			n++
		}
	}
	return n
}
