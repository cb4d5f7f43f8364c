// Command curves draws the loss curves of runs: one smoothed line for each run folder,
// validation losses as points, and baselines as dashed lines. For several runs, a second
// panel shows the difference of each to the first at the same step, which is too small
// to see in the first panel.
//
//	go run ./study/curves -o docs/loss.png runs/A runs/B
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"image/color"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"octet/internal/writers"
	"octet/study/internal/figure"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", "loss.png", "file to write: .png, .svg or .pdf")
	title := flag.String("title", "", "title of the plot")
	smooth := flag.Float64("smooth", 0.9, "weight of the past in the running mean")
	baselines := flag.String("baselines", "", "dashed lines: name=loss,name=loss")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("name at least one run folder")
	}
	if err := drawRuns(*out, *title, *smooth, *baselines, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// curve holds a run's losses by step: training losses, smoothed, and validation losses.
type curve struct {
	name       string
	train, val plotter.XYs
}

func drawRuns(out, title string, smooth float64, baselines string, runs []string) error {
	p := figure.New(title, "step", "loss, nats per byte")
	p.Legend.Top, p.Legend.YOffs = true, -vg.Points(4)
	last := 0.0
	var curves []curve
	for i, run := range runs {
		train, val, err := readRun(run, smooth)
		if err != nil {
			return err
		}
		c := curve{filepath.Base(run), train, val}
		curves = append(curves, c)
		if err := c.add(p, i); err != nil {
			return fmt.Errorf("%s: %w", run, err)
		}
		last = max(last, train[len(train)-1].X)
	}
	for entry := range strings.SplitSeq(baselines, ",") {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		loss, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("baseline %s: %w", entry, err)
		}
		line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: loss}, {X: last, Y: loss}})
		if err != nil {
			return err
		}
		line.Color, line.Dashes = color.Gray{Y: 110}, []vg.Length{vg.Points(4), vg.Points(3)}
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: last / 50, Y: loss}}, Labels: []string{name}})
		if err != nil {
			return err
		}
		label.Offset.Y = -vg.Points(10)
		p.Add(line, label)
	}
	if len(curves) == 1 {
		return figure.Save(p, out)
	}
	lower, err := drawDifferences(curves)
	if err != nil {
		return err
	}
	p.X.Label.Text = ""
	p.X.Min, p.X.Max, lower.X.Min, lower.X.Max = 0, last, 0, last
	return figure.SavePanels(p, lower, out)
}

// add draws a curve as line i.
func (c curve) add(p *plot.Plot, i int) error {
	if err := figure.AddLine(p, i, c.name+", training", c.train, false); err != nil || len(c.val) == 0 {
		return err
	}
	points, err := plotter.NewScatter(c.val)
	if err != nil {
		return err
	}
	points.Color, points.Radius, points.Shape = figure.Color(i), vg.Points(3.5), draw.CircleGlyph{}
	p.Add(points)
	p.Legend.Add(c.name+", validation", points)
	return nil
}

// drawDifferences draws the differences between the losses of all other curves and those
// of the first.
func drawDifferences(curves []curve) (*plot.Plot, error) {
	first := curves[0]
	p := figure.New("", "step", "difference to "+first.name)
	p.Legend.Top = true
	zero, err := plotter.NewLine(plotter.XYs{{X: 0, Y: 0}, {X: first.train[len(first.train)-1].X, Y: 0}})
	if err != nil {
		return nil, err
	}
	zero.Color = figure.Color(0)
	p.Add(zero)
	for i, c := range curves[1:] {
		d := curve{c.name, less(c.train, first.train), less(c.val, first.val)}
		if len(d.train) == 0 {
			return nil, fmt.Errorf("%s has no step in common with %s", c.name, first.name)
		}
		if err := d.add(p, i+1); err != nil {
			return nil, err
		}
	}
	p.Y.Max += 0.4 * (p.Y.Max - p.Y.Min) // room for the legend
	return p, nil
}

// less returns a - b at the steps that both have.
func less(a, b plotter.XYs) (d plotter.XYs) {
	at := make(map[float64]float64, len(b))
	for _, p := range b {
		at[p.X] = p.Y
	}
	for _, p := range a {
		if y, ok := at[p.X]; ok {
			d = append(d, plotter.XY{X: p.X, Y: p.Y - y})
		}
	}
	return d
}

// readRun reads the losses of metrics.jsonl. The running mean starts at the
// first loss.
func readRun(dir string, smooth float64) (train, val plotter.XYs, err error) {
	text, err := os.ReadFile(filepath.Join(dir, writers.MetricsFile))
	if err != nil {
		return nil, nil, err
	}
	mean := 0.0
	for line := range bytes.Lines(text) {
		var m struct {
			Step    float64  `json:"step"`
			Loss    *float64 `json:"loss"`
			ValLoss *float64 `json:"val_loss"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", dir, err)
		}
		if m.Loss != nil {
			if len(train) == 0 {
				mean = *m.Loss
			}
			mean = smooth*mean + (1-smooth)**m.Loss
			train = append(train, plotter.XY{X: m.Step, Y: mean})
		}
		if m.ValLoss != nil {
			val = append(val, plotter.XY{X: m.Step, Y: *m.ValLoss})
		}
	}
	if len(train) == 0 {
		return nil, nil, fmt.Errorf("%s: no step in metrics.jsonl", dir)
	}
	return train, val, nil
}
