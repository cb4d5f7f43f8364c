package main

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

// layerZero is the name of the first layer in telemetry.
const layerZero = "layers.0"

// band returns the median of a field of the first layer over the runs, with their range.
func (s *setting) band(field string) chart.Line {
	line := chart.Line{Name: s.name, X: s.runs[0].Channels.Steps}
	var all [][]float64
	for _, r := range s.runs {
		all = append(all, r.Channels.Field(layerZero, field))
	}
	for i := range line.X {
		var list []float64
		for _, values := range all {
			list = append(list, values[i])
		}
		line.Low, line.High = append(line.Low, slices.Min(list)), append(line.High, slices.Max(list))
		line.Y = append(line.Y, stats.Median(list))
	}
	return line
}

// drawSettings draws alignment over time.
func drawSettings(b settings, dir string) error {
	c := chart.Chart{
		Title: "Mean |cos| of w1 and w2 in the first layer", X: chart.Axis{Label: "step of 512 tokens"},
		Y: chart.Axis{Label: "mean |cos|, median and range of 5 seeds"},
	}
	for i, name := range []string{"decay 0.1", "decay 1", "decay 0", "l2 1e-3", "lr 1e-2, decay 0", "repeated text", "ffn 16"} {
		line := b[name].band("cosine_mean")
		line.Look = i
		c.Lines = append(c.Lines, line)
	}
	return finding.Draw(dir, "emerge-settings", &c)
}

// drawScatter draws all channels of the first layer, of all seeds.
func drawScatter(b settings, dir string) error {
	c := chart.Chart{
		Title: "Channels of the first layer, 5 seeds", X: chart.Axis{Label: "|cos| of w1 and w2", Min: 0, Max: 1},
		Y: chart.Axis{Label: "amax", Log: true},
	}
	for i, name := range []string{"decay 0.1", "decay 1", "lr 1e-2, decay 0"} {
		line := chart.Line{Name: name, Look: i, Dots: true}
		for _, m := range b[name].models {
			for _, x := range m.layers[0].channels {
				line.X, line.Y = append(line.X, math.Abs(x.cosine)), append(line.Y, x.amax)
			}
		}
		c.Lines = append(c.Lines, line)
	}
	return finding.Draw(dir, "emerge-scatter", &c)
}

// drawChannels draws every channel of the first layer over time.
func drawChannels(b settings, dir string) error {
	const name = "decay 1"
	m, err := channelMap(name, b[name].runs[0])
	if err != nil {
		return err
	}
	return finding.Draw(dir, "emerge-channels", m)
}

// channelMap returns |cos| of each channel of the first layer at every checkpoint of a run, the
// channel that ends with the largest one first.
func channelMap(name string, r *runs.Run) (*chart.HeatMap, error) {
	entries, err := checkpoints(r.Dir)
	if err != nil {
		return nil, err
	}
	m := &chart.HeatMap{
		Title: fmt.Sprintf("%s, seed %s: every channel", name, r.Config["seed"]),
		X:     chart.Axis{Label: "step"}, Values: chart.Axis{Label: "|cos|", Min: 0, Max: 1},
	}
	for _, e := range entries {
		list, err := cosinesOf(e.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(e.Path), err)
		}
		m.At = append(m.At, float64(e.Step))
		if m.Data == nil {
			m.Data = make([][]float64, len(list[0]))
		}
		for i, c := range list[0] {
			m.Data[i] = append(m.Data[i], math.Abs(c))
		}
	}
	last := len(m.At) - 1
	slices.SortFunc(m.Data, func(a, b []float64) int { return cmp.Compare(b[last], a[last]) })
	for i := range m.Data {
		m.Rows = append(m.Rows, fmt.Sprint(i+1))
	}
	return m, nil
}
