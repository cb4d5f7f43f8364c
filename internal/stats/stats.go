// Package stats compares runs with the same seeds.
package stats

import (
	"cmp"
	"math"
	"slices"
)

// Mean returns the mean; NaN of nothing.
func Mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// Median returns the median; NaN of nothing.
func Median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	n := len(x) / 2
	if len(x)%2 == 1 {
		return x[n]
	}
	return x[n-1] + (x[n]-x[n-1])/2
}

// RankCorrelation returns Spearman's rank correlation of x and y, which have the same length:
// 1 if y increases with x, -1 if it decreases. Equal values share the mean of their ranks. It is
// NaN if all x or all y are equal.
func RankCorrelation(x, y []float64) float64 {
	a, b := ranks(x), ranks(y)
	meanA, meanB := Mean(a), Mean(b)
	var ab, aa, bb float64
	for i := range a {
		da, db := a[i]-meanA, b[i]-meanB
		ab += da * db
		aa += da * da
		bb += db * db
	}
	return ab / math.Sqrt(aa*bb)
}

// ranks returns the rank of each value, from 0; NaN comes first.
func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(x[i], x[j]) })
	list := make([]float64, len(x))
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && cmp.Compare(x[order[to]], x[order[from]]) == 0 {
			to++
		}
		for _, i := range order[from:to] {
			list[i] = float64(from+to-1) / 2
		}
		from = to
	}
	return list
}

// Paired summarizes differences of pairs, each of two runs with the same seed.
type Paired struct {
	N        int
	Mean     float64
	Min, Max float64
	// StdErr is the standard error of the mean. P is the probability of a mean at least as
	// far from zero if the differences come from a normal distribution around zero: Student's
	// t test, two-sided. Both are NaN for fewer than two pairs.
	StdErr, P float64
}

// PairedOf summarizes differences.
func PairedOf(differences []float64) Paired {
	n := len(differences)
	p := Paired{N: n, Mean: Mean(differences), Min: math.NaN(), Max: math.NaN(), StdErr: math.NaN(), P: math.NaN()}
	if n > 0 {
		p.Min, p.Max = slices.Min(differences), slices.Max(differences)
	}
	if n < 2 {
		return p
	}
	squares := 0.0
	for _, d := range differences {
		squares += (d - p.Mean) * (d - p.Mean)
	}
	p.StdErr = math.Sqrt(squares / float64(n-1) / float64(n))
	if p.StdErr == 0 && p.Mean == 0 { // the runs are equal
		p.P = 1
		return p
	}
	p.P = tailsOfStudent(p.Mean/p.StdErr, float64(n-1))
	return p
}

// tailsOfStudent returns the probability of |T| >= |t| under Student's distribution with df
// degrees of freedom.
func tailsOfStudent(t, df float64) float64 {
	if math.IsInf(t, 0) {
		return 0
	}
	return incompleteBeta(df/(df+t*t), t*t/(df+t*t), df/2, 0.5)
}

// incompleteBeta returns the regularized incomplete beta function I_x(a, b), for x within
// [0, 1] and y = 1 - x, by the continued fraction 8.17.22 of the NIST Digital Library of Mathematical
// Functions.
func incompleteBeta(x, y, a, b float64) float64 {
	if x > (a+1)/(a+b+2) { // where the fraction converges slowly
		return 1 - incompleteBeta(y, x, b, a)
	}
	if x == 0 {
		return 0
	}
	logA, _ := math.Lgamma(a)
	logB, _ := math.Lgamma(b)
	logAB, _ := math.Lgamma(a + b)
	front := math.Exp(logAB-logA-logB+a*math.Log(x)+b*math.Log(y)) / a
	const terms = 300
	fraction := 1.0
	for m := terms; m > 0; m-- {
		k := float64(m / 2)
		var d float64
		if m%2 == 0 {
			d = k * (b - k) * x / ((a + 2*k - 1) * (a + 2*k))
		} else {
			d = -(a + k) * (a + b + k) * x / ((a + 2*k) * (a + 2*k + 1))
		}
		fraction = 1 + d/fraction
	}
	return front / fraction
}
