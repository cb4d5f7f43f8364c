package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"octet/internal/chart"
	"octet/internal/runs"
)

// castFields are the measurements of casts that the page shows.
var castFields = []struct {
	title, label string
	log          bool
	values       func(m *runs.Measurements, name string) []float64
}{
	{"Saturated", "share", true, field("saturated")},
	{"Flushed to zero", "share", true, field("flushed")},
	{"Signal to quantization noise", "dB", false, field("sqnr_db")},
	{"Amax", "largest magnitude", true, field("amax")},
	{"Kurtosis", "3 is normal", true, field("kurtosis")},
	{"Scale", "log2", false, scaleLog2},
}

func field(name string) func(m *runs.Measurements, cast string) []float64 {
	return func(m *runs.Measurements, cast string) []float64 { return m.Field(cast, name) }
}

// scaleLog2 returns the logarithm of a cast's scale, or the mean of those of its blocks.
func scaleLog2(m *runs.Measurements, cast string) []float64 {
	scale, blocks := m.Field(cast, "scale"), m.Field(cast, "scale_log2_mean")
	for i := range scale {
		if scale[i] = math.Log2(scale[i]); math.IsNaN(scale[i]) {
			scale[i] = blocks[i]
		}
	}
	return scale
}

// casts writes heat maps of the casts of each group's first run.
func (p *builder) casts(groups []*runs.Group) {
	p.Section("casts", "Casts")
	found := false
	for _, g := range p.some(groups) {
		r := g.Runs[0]
		names := r.Casts.Names()
		if len(names) == 0 {
			continue
		}
		found = true
		title := g.Name
		if r.Name != title {
			title += ", " + r.Name
		}
		p.Heading(title)
		for _, f := range castFields {
			m := chart.HeatMap{
				Title: f.title, X: chart.Axis{Label: "step"}, Values: chart.Axis{Label: f.label, Log: f.log}, At: r.Casts.Steps,
			}
			for _, name := range names {
				values := f.values(&r.Casts, name)
				if len(finite(values)) > 0 {
					m.Rows, m.Data = append(m.Rows, name), append(m.Data, values)
				}
			}
			p.heatMap(&m)
		}
	}
	if !found {
		p.Paragraph("", "No run measured casts: set train.health_every, and a recipe that casts.")
		return
	}
	p.Paragraph("soft", "On a logarithmic scale, a value of zero has no colour.")
}

// heatMap writes a heat map. On a logarithmic scale it leaves out the rows that have no
// positive value.
func (p *builder) heatMap(m *chart.HeatMap) {
	all := len(m.Rows)
	if m.Values.Log {
		var rows []string
		var data [][]float64
		for i, row := range m.Data {
			if slices.ContainsFunc(row, func(v float64) bool { return v > 0 }) {
				rows, data = append(rows, m.Rows[i]), append(data, row)
			}
		}
		m.Rows, m.Data = rows, data
	}
	if len(m.Rows) > 0 {
		p.Figure(m.Title, m.SVG(), m.Table(tableRows), true)
	}
	switch zero := all - len(m.Rows); {
	case zero > 0 && len(m.Rows) == 0:
		p.Paragraph("", m.Title+": zero in every measured step.")
	case zero > 0:
		p.Paragraph("soft", fmt.Sprintf("%s: zero in every measured step of the other %d casts.", m.Title, zero))
	}
}

// channels writes the alignment of the largest channel of each layer's MLP.
func (p *builder) channels(groups []*runs.Group) {
	var figures []func()
	for _, g := range groups[:min(shown, len(groups))] {
		r := g.Runs[0]
		cosine := chart.Chart{Title: g.Name + ": alignment", X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: "|cosine| of w1 and w2"}}
		outlier := chart.Chart{Title: g.Name + ": outlier", X: cosine.X, Y: chart.Axis{Label: "amax / rms of the others' amaxes", Log: true}}
		for i, layer := range r.Channels.Names() {
			values := r.Channels.Field(layer, "cosine")
			ratio, others := r.Channels.Field(layer, "amax"), r.Channels.Field(layer, "others_rms")
			for j := range values {
				values[j] = math.Abs(values[j])
				ratio[j] /= others[j]
			}
			name := "layer " + strings.TrimPrefix(layer, "layers.")
			cosine.Lines = append(cosine.Lines, chart.Line{Name: name, Look: i, X: r.Channels.Steps, Y: values})
			outlier.Lines = append(outlier.Lines, chart.Line{Name: name, Look: i, X: r.Channels.Steps, Y: ratio})
		}
		if len(cosine.Lines) > 0 {
			figures = append(figures, p.lines(&cosine), p.lines(&outlier))
		}
	}
	if len(figures) == 0 {
		return
	}
	p.Section("channels", "Channels of the MLPs")
	p.Charts(figures...)
	p.Paragraph("soft", "For each layer, the channel whose activation is largest: how far its rows of w1 and w2 point the same way, and its amax over the root mean square of those of the other channels.")
}

// speed writes throughput and memory.
func (p *builder) speed(groups []*runs.Group) {
	p.Section("speed", "Throughput and memory")
	var figures []func()
	for _, f := range []struct{ title, field, label string }{
		{"Throughput", "tokens_per_s", "tokens per second"}, {"Share of peak", "mfu", "MFU"}, {"Memory", "memory", "bytes"},
	} {
		c := chart.Chart{Title: f.title, X: chart.Axis{Label: "step"}, Y: chart.Axis{Label: f.label}}
		for i, g := range groups {
			for _, r := range g.Runs {
				if s := r.Timing[f.field]; s != nil && len(finite(s.Values)) > 0 {
					means := smooth(s, max(1, int(s.Steps[len(s.Steps)-1])/200))
					c.Lines = append(c.Lines, chart.Line{Name: g.Name, Look: i, X: means.Steps, Y: means.Values})
				}
			}
		}
		if len(c.Lines) > 0 {
			figures = append(figures, p.lines(&c))
		}
	}
	if len(figures) == 0 {
		p.Paragraph("", "No run has written timing.jsonl.")
		return
	}
	p.Charts(figures...)
}
