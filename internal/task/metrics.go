package task

import (
	"math"
	"unicode/utf8"

	"octet/infer"
)

// Metric is a value over the documents of a task.
type Metric struct {
	Name  string
	Value float64
	// StdErr is the standard error of Value. That of a mean is the sample's standard deviation by
	// √n, as in the harness. That of a perplexity is of its first-order expansion in the documents
	// (the delta method), where the harness draws random samples. NaN for one document.
	StdErr float64
	parts  []float64 // of the expansion: what each document adds, times n
}

// Difference returns how much m exceeds base, and the standard error of that over documents, paired:
// both are of the same documents.
func (m Metric) Difference(base Metric) (difference, stdErr float64) {
	parts := make([]float64, len(m.parts))
	for i := range parts {
		parts[i] = m.parts[i] - base.parts[i]
	}
	return m.Value - base.Value, standardError(parts)
}

// Result is the outcome of a document.
type Result struct {
	LogLikelihoods []float64 `json:"log_likelihoods"` // of each choice or context; in nats
	Greedy         []bool    `json:"greedy,omitempty"`
	Gold           *int      `json:"gold,omitempty"`
	Acc            *float64  `json:"acc,omitempty"`       // 1 where it is right
	AccNorm        *float64  `json:"acc_norm,omitempty"`  // per character of the choice
	AccBytes       *float64  `json:"acc_bytes,omitempty"` // per byte of the choice
	Words          int       `json:"words,omitempty"`
	Bytes          int       `json:"bytes,omitempty"`
}

// NewResult returns the outcome of a document, from the scores of its rows.
func NewResult(h Header, d *Document, scores []infer.Score) Result {
	r := Result{Gold: d.Gold, Words: d.Words, Bytes: d.Bytes}
	for _, s := range scores {
		r.LogLikelihoods, r.Greedy = append(r.LogLikelihoods, s.LogLikelihood), append(r.Greedy, s.Greedy)
	}
	right := func(per func(choice string) int) *float64 {
		best, top := 0, math.Inf(-1)
		for i, ll := range r.LogLikelihoods {
			if per != nil {
				ll /= float64(per(d.Choices[i]))
			}
			if ll > top { // the first of equals
				best, top = i, ll
			}
		}
		return value(best == *d.Gold)
	}
	switch h.Kind {
	case Choice:
		r.Acc, r.AccNorm = right(nil), right(utf8.RuneCountInString)
		r.AccBytes = right(func(choice string) int { return len(choice) })
	case Partial:
		r.Acc = right(nil)
	case Cloze:
		r.Acc = value(r.Greedy[0])
	case Rolling: // windows
		sum := 0.0
		for _, ll := range r.LogLikelihoods {
			sum += ll
		}
		r.LogLikelihoods, r.Greedy = []float64{sum}, nil
	}
	return r
}

func value(right bool) *float64 {
	v := 0.0
	if right {
		v = 1
	}
	return &v
}

// Metrics returns the metrics of a task's kind.
func Metrics(k Kind, results []Result) []Metric {
	of := func(f func(Result) float64) []float64 {
		list := make([]float64, len(results))
		for i, r := range results {
			list[i] = f(r)
		}
		return list
	}
	acc := func() Metric { return mean("acc", of(func(r Result) float64 { return *r.Acc })) }
	switch k {
	case Choice:
		return []Metric{
			acc(),
			mean("acc_norm", of(func(r Result) float64 { return *r.AccNorm })),
			mean("acc_bytes", of(func(r Result) float64 { return *r.AccBytes })),
		}
	case Partial:
		return []Metric{acc()}
	case Cloze:
		return []Metric{acc(), perplexity("perplexity", mean("", of(logLikelihood)))}
	}
	words := ratio(of(logLikelihood), of(func(r Result) float64 { return float64(r.Words) }))
	bytes := ratio(of(logLikelihood), of(func(r Result) float64 { return float64(r.Bytes) }))
	return []Metric{
		perplexity("word_perplexity", words), perplexity("byte_perplexity", bytes),
		bytes.mapped("bits_per_byte", -bytes.Value/math.Ln2, -1/math.Ln2),
	}
}

func logLikelihood(r Result) float64 { return r.LogLikelihoods[0] }

func mean(name string, x []float64) Metric {
	ones := make([]float64, len(x))
	for i := range ones {
		ones[i] = 1
	}
	m := ratio(x, ones)
	m.Name = name
	return m
}

// ratio is Σx/Σw.
func ratio(x, w []float64) Metric {
	sum, weights := 0.0, 0.0
	for i := range x {
		sum, weights = sum+x[i], weights+w[i]
	}
	m := Metric{Value: sum / weights, parts: make([]float64, len(x))}
	for i := range x {
		m.parts[i] = (x[i] - m.Value*w[i]) * float64(len(x)) / weights
	}
	m.StdErr = standardError(m.parts)
	return m
}

// perplexity is exp(−m).
func perplexity(name string, m Metric) Metric {
	p := math.Exp(-m.Value)
	return m.mapped(name, p, -p)
}

// mapped is a function of m, with this value and derivative.
func (m Metric) mapped(name string, value, slope float64) Metric {
	parts := make([]float64, len(m.parts))
	for i, p := range m.parts {
		parts[i] = slope * p
	}
	return Metric{Name: name, Value: value, StdErr: math.Abs(slope) * m.StdErr, parts: parts}
}

// standardError returns the standard error of the mean of parts whose mean is 0.
func standardError(parts []float64) float64 {
	squares, n := 0.0, float64(len(parts))
	for _, p := range parts {
		squares += p * p
	}
	return math.Sqrt(squares / (n * (n - 1)))
}
