package report

import (
	"fmt"
	"math"
	"slices"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/stats"
)

// lossCharts are the charts of the losses of all groups, and of their differences.
type lossCharts struct {
	training, validation chart.Chart
	differences          *chart.Chart // nil: no group has a baseline
	window               int          // steps that a point of the training loss averages
}

func newLossCharts(groups []*runs.Group) *lossCharts {
	longest := 0
	for _, r := range all(groups) {
		longest = max(longest, r.Step())
	}
	step, nats := chart.Axis{Label: "step", Max: float64(longest)}, chart.Axis{Label: "nats per token"}
	c := &lossCharts{
		training:   chart.Chart{Title: "Training loss", X: step, Y: nats, Marks: marks(all(groups))},
		validation: chart.Chart{Title: "Validation loss", X: step, Y: nats},
		window:     max(1, longest/200),
	}
	differences := chart.Chart{X: step, Y: chart.Axis{Label: "difference, %"}}
	for i, g := range groups {
		c.training.Lines = append(c.training.Lines, band(g.Name, i, smoothed(g.Distinct(), "loss", c.window)))
		c.validation.Lines = append(c.validation.Lines, band(g.Name, i, smoothed(g.Distinct(), "val_loss", 1)))
		if pairs := differing(g, c.window); len(pairs) > 0 {
			differences.Lines = append(differences.Lines, band(g.Name, i, pairs))
		}
	}
	limitLoss(&c.training)
	limitLoss(&c.validation)
	if len(differences.Lines) > 0 {
		differences.Title = "Training loss against " + baselineOf(groups)
		limit(&differences)
		c.differences = &differences
	}
	return c
}

// baselineOf names the baseline of some groups.
func baselineOf(groups []*runs.Group) string {
	name := ""
	for _, g := range groups {
		switch {
		case g.Baseline == nil || g.Baseline.Name == name:
		case name == "":
			name = g.Baseline.Name
		default:
			return "the baseline"
		}
	}
	return name
}

// Picture returns an SVG file with the training losses of groups and, below, their differences.
func Picture(groups []*runs.Group) []byte {
	c := newLossCharts(groups)
	if c.differences == nil {
		return chart.File(&c.training)
	}
	return chart.File(&c.training, c.differences)
}

// losses writes the section of the losses.
func (p *builder) losses(groups []*runs.Group) {
	p.Section("loss", "Loss")
	c := newLossCharts(groups)
	figures := []func(){p.lines(&c.training), p.lines(&c.validation)}
	if c.differences != nil {
		figures = append(figures, p.lines(c.differences))
	}
	p.Charts(figures...)
	text := "Lines are medians over seeds, bands the range over seeds."
	if c.window > 1 {
		text += fmt.Sprintf(" The training loss is the mean of %d steps.", c.window)
	}
	if c.differences != nil {
		text += " Differences are between runs with the same seed, which read the same batches unless their texts or batch sizes differ."
	}
	p.Paragraph("soft", text)
}

// lines returns the figure of a chart, or a sentence if there is nothing to draw.
func (p *builder) lines(c *chart.Chart) func() {
	if !slices.ContainsFunc(c.Lines, func(l chart.Line) bool { return len(finite(l.Y)) > 0 }) {
		return func() { p.Paragraph("soft", c.Title+": no value yet.") }
	}
	return func() { p.Figure(c.Title, c.SVG(), c.Table(tableRows), false) }
}

// maxMarks is the number of warnings from which marks would hide the lines.
const maxMarks = 40

// marks returns a mark for each warning of a step.
func marks(list []*runs.Run) (m []chart.Mark) {
	for _, r := range list {
		for _, a := range r.Alarms {
			if a.Step > 0 {
				m = append(m, chart.Mark{X: float64(a.Step), Text: fmt.Sprintf("%s, step %d: %s", r.Name, a.Step, a.Message)})
			}
		}
	}
	if len(m) > maxMarks {
		return nil
	}
	return m
}

// smoothed returns a field's series of some runs, as means of window steps.
func smoothed(list []*runs.Run, field string, window int) (all []runs.Series) {
	for _, r := range list {
		if s := r.Metrics[field]; s != nil {
			all = append(all, smooth(s, window))
		}
	}
	return all
}

// smooth returns the means of windows of steps: 1 to window, and so on, each at its last step.
// The windows of two runs have equal steps, even if a run lacks some of them. Values that are
// not finite are left out; a window of only such values is a gap.
func smooth(s *runs.Series, window int) (means runs.Series) {
	if len(s.Steps) == 0 {
		return means
	}
	last := s.Steps[len(s.Steps)-1]
	endOf := func(step float64) float64 { return min(last, math.Ceil(step/float64(window))*float64(window)) }
	for from := 0; from < len(s.Steps); {
		end, to := endOf(s.Steps[from]), from+1
		for to < len(s.Steps) && endOf(s.Steps[to]) == end {
			to++
		}
		means.Steps = append(means.Steps, end)
		means.Values = append(means.Values, stats.Mean(finite(s.Values[from:to])))
		from = to
	}
	return means
}

// differing returns the relative differences of a group's training losses to those of the
// baseline's runs with the same seed, in percent.
func differing(g *runs.Group, window int) (all []runs.Series) {
	for _, p := range g.Pairs() {
		own, baseline := p.Run.Metrics["loss"], p.Baseline.Metrics["loss"]
		if own == nil || baseline == nil {
			continue
		}
		steps, values := align([]runs.Series{smooth(own, window), smooth(baseline, window)})
		all = append(all, runs.Series{Steps: steps, Values: relative(values[0], values[1])})
	}
	return all
}

// limitLoss keeps runs that diverge from flattening the other lines: the y axis ends at one and
// a half times the largest first loss of a line, which is that of a guess without training.
func limitLoss(c *chart.Chart) {
	lowest, first, largest := math.Inf(1), 0.0, 0.0
	for _, l := range c.Lines {
		if y := finite(l.Y); len(y) > 0 {
			lowest, first, largest = min(lowest, slices.Min(y)), max(first, y[0]), max(largest, slices.Max(y))
		}
	}
	if end := 1.5 * first; largest > 2*end && lowest < end {
		c.Y.Min, c.Y.Max = lowest, end
	}
}

// limit keeps runs that diverge from flattening the other lines: the y axis then ends at
// five times the median's distance from zero, and lines leave it.
func limit(c *chart.Chart) {
	var sizes []float64
	largest := 0.0
	for _, l := range c.Lines {
		for _, v := range finite(l.Y) {
			sizes = append(sizes, math.Abs(v))
			largest = max(largest, math.Abs(v))
		}
	}
	if end := 5 * stats.Median(sizes); end > 0 && largest > 2*end {
		c.Y.Min, c.Y.Max = -end, end
	}
}

// band returns a line of the medians of some series, with the range of their values if there
// are several.
func band(name string, look int, list []runs.Series) chart.Line {
	steps, values := align(list)
	l := chart.Line{Name: name, Look: look, X: steps, Y: make([]float64, len(steps))}
	if len(list) > 1 {
		l.Low, l.High = make([]float64, len(steps)), make([]float64, len(steps))
	}
	for i := range steps {
		var at []float64
		for _, v := range values {
			at = append(at, v[i])
		}
		at = finite(at)
		l.Y[i] = stats.Median(at)
		if l.Low != nil {
			l.Low[i], l.High[i] = math.NaN(), math.NaN()
			if len(at) > 0 {
				l.Low[i], l.High[i] = slices.Min(at), slices.Max(at)
			}
		}
	}
	return l
}

// align returns all steps of some series, and for each series a value at each step; NaN
// where it has none.
func align(list []runs.Series) (steps []float64, values [][]float64) {
	for _, s := range list {
		steps = append(steps, s.Steps...)
	}
	slices.Sort(steps)
	steps = slices.Compact(steps)
	for _, s := range list {
		row := make([]float64, len(steps))
		at := 0
		for i, step := range steps {
			row[i] = math.NaN()
			if at < len(s.Steps) && s.Steps[at] == step {
				row[i] = s.Values[at]
				at++
			}
		}
		values = append(values, row)
	}
	return steps, values
}
