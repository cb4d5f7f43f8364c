package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"octet/internal/stats"
	"octet/study/internal/finding"
)

// The statistics of a layer. A layer without channels has none.

func (l layer) cosineMean() float64 {
	return stats.Mean(l.each(func(c channel) float64 { return math.Abs(c.cosine) }))
}

// aligned returns the share of the channels whose cosine is above 0.5 in magnitude.
func (l layer) aligned() float64 {
	return stats.Mean(l.each(func(c channel) float64 {
		if math.Abs(c.cosine) > 0.5 {
			return 1
		}
		return 0
	}))
}

// correlation returns the rank correlation of |cos| and amax.
func (l layer) correlation() float64 {
	return stats.RankCorrelation(
		l.each(func(c channel) float64 { return math.Abs(c.cosine) }),
		l.each(func(c channel) float64 { return c.amax }))
}

func (l layer) amax() float64 { return slices.Max(l.each(func(c channel) float64 { return c.amax })) }

// overMedian returns the largest amax of a channel over the median.
func (l layer) overMedian() float64 {
	return l.amax() / stats.Median(l.each(func(c channel) float64 { return c.amax }))
}

// overRMS returns the largest amax of a channel over the root mean square of the others'.
func (l layer) overRMS() float64 {
	all := l.each(func(c channel) float64 { return c.amax })
	slices.Sort(all)
	squares := 0.0
	for _, a := range all[:len(all)-1] {
		squares += a * a
	}
	return all[len(all)-1] / math.Sqrt(squares/float64(len(all)-1))
}

// byteShare returns the median over the channels with |cos| in [low, high) of the largest share of
// a channel's energy that one byte causes; NaN without such channels.
func (l layer) byteShare(low, high float64) float64 {
	var list []float64
	for _, c := range l.channels {
		if x := math.Abs(c.cosine); x >= low && x < high && c.amax > 0 {
			list = append(list, c.byte)
		}
	}
	return stats.Median(list)
}

func (l layer) each(of func(channel) float64) (list []float64) {
	for _, c := range l.channels {
		list = append(list, of(c))
	}
	return list
}

// first returns a value of the first layer of each run.
func (s *setting) first(of func(layer) float64) []float64 {
	return s.values(func(m model) float64 { return of(m.layers[0]) })
}

func (s *setting) last(of func(layer) float64) []float64 {
	return s.values(func(m model) float64 { return of(m.layers[len(m.layers)-1]) })
}

// random is the mean |cos| of independent normal rows of this many elements.
func random(dim int) float64 { return math.Sqrt(2 / (math.Pi * float64(dim))) }

// alignmentTable prints how far the channels of the first layer align.
func alignmentTable(list []*setting) error {
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{
			s.name, finding.Span("%.2f", s.first(layer.cosineMean)), finding.Span("%.2f", s.first(layer.aligned)),
			finding.Span("%.2f", s.first(layer.correlation)), finding.Span("%.2f", s.last(layer.cosineMean)),
			finding.Span("%.3f", finding.ValLosses(s.runs)),
		})
	}
	return finding.Table(os.Stdout, "Alignment of the first layer after 2,500 steps", []string{"setting", "mean |cos|", "share above 0.5", "rank correlation with amax", "mean |cos|, last layer", "validation loss"}, rows)
}

// outlierTable prints how large the channels of the first layer are.
func outlierTable(list []*setting) error {
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{
			s.name, finding.Span("%.3g", s.first(layer.amax)), finding.Span("%.3g", s.first(layer.overMedian)),
			finding.Span("%.3g", s.first(layer.overRMS)), finding.Span("%.0f", s.first(func(l layer) float64 { return l.kurtosis })),
			finding.Span("%.0f", s.values(func(m model) float64 { return m.residual })),
			fmt.Sprintf("%s, %s", finding.Span("%.2f", finding.Known(s.first(func(l layer) float64 { return l.byteShare(0.8, 2) }))),
				finding.Span("%.2f", finding.Known(s.first(func(l layer) float64 { return l.byteShare(0, 0.3) })))),
			finding.Span("%.3g", s.ever()),
		})
	}
	return finding.Table(os.Stdout, "Size of the channels of the first layer", []string{
		"setting", "amax", "amax / median", "amax / rms of the others", "kurtosis of a", "of the residual stream",
		"energy of one byte, |cos| above 0.8, below 0.3", "amax / rms of the others, any layer and step",
	}, rows)
}

// ever returns the largest amax over the rms of the others in any layer at any measurement.
func (s *setting) ever() (list []float64) {
	for _, r := range s.runs {
		list = append(list, finding.LargestOverRMS(r))
	}
	return list
}

// shapes are settings with about equal numbers of parameters, in the order of their depth.
var shapes = []struct {
	name       string
	depth, dim int
}{{"1 x 80", 1, 80}, {"decay 0.1", 2, 64}, {"4 x 48", 4, 48}, {"10 x 32", 10, 32}}

// shapeTable prints alignment against depth: mean |cos| less that of random rows.
func shapeTable(byName settings) error {
	var rows [][]string
	for _, x := range shapes {
		s := byName[x.name]
		excess := func(l layer) float64 { return l.cosineMean() - random(x.dim) }
		largest := func(m model) float64 {
			most := math.Inf(-1)
			for _, l := range m.layers {
				most = max(most, excess(l))
			}
			return most
		}
		rows = append(rows, []string{
			fmt.Sprintf("%d × %d", x.depth, x.dim), fmt.Sprintf("%.3f", random(x.dim)), finding.Span("%.2f", s.first(excess)),
			finding.Span("%.2f", s.last(excess)), finding.Span("%.2f", s.values(largest)),
			finding.Span("%.3g", s.first(layer.amax)), finding.Span("%.3f", finding.ValLosses(s.runs)),
		})
	}
	return finding.Table(os.Stdout, "Depth against width at equal parameters: mean |cos| less that of random rows", []string{"layers × width", "random rows", "first layer", "last layer", "most of any layer", "amax, first layer", "validation loss"}, rows)
}
