package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"octet/internal/chart"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

// lossTable prints the loss of each recipe against κ.
func (r results) lossTable() error {
	head := append([]string{"κ"}, sizeRecipes...)
	var rows [][]string
	for _, exponent := range exponents {
		row := []string{fmt.Sprintf("2^%d", exponent)}
		for _, recipe := range sizeRecipes {
			row = append(row, finding.Span("%.2f", r.above(recipe, exponent)))
		}
		rows = append(rows, row)
	}
	return finding.Table(os.Stdout, "Validation loss, in % above that of bf16 at κ = 1", head, rows)
}

// trainTable prints the training loss of the steps after the first, whose current scales are those of
// the batch, where validation takes them from the history.
func (r results) trainTable() error {
	loss := func(c cell) (list []float64) {
		for _, x := range r[c] {
			list = append(list, stats.Mean(x.Metrics["loss"].Values[1:]))
		}
		return list
	}
	base := loss(cell{"bf16", 0})
	var rows [][]string
	for _, exponent := range exponents {
		row := []string{fmt.Sprintf("2^%d", exponent)}
		for _, recipe := range sizeRecipes {
			row = append(row, finding.Span("%.2f", finding.Above(loss(cell{recipe, exponent}), base)))
		}
		rows = append(rows, row)
	}
	return finding.Table(os.Stdout, "Training loss of steps 2 to 4, in % above that of bf16 at κ = 1", append([]string{"κ"}, sizeRecipes...), rows)
}

// onsetTable prints the κ at which the median loss of each recipe is some percent above its own at
// κ = 1: linear interpolation of the loss between the exponents.
func (r results) onsetTable() error {
	limits := []float64{0.3, 3}
	var rows [][]string
	for _, recipe := range sizeRecipes {
		row := []string{recipe}
		for _, limit := range limits {
			row = append(row, r.onset(recipe, limit))
		}
		rows = append(rows, row)
	}
	return finding.Table(os.Stdout, "κ at which the median loss exceeds that at κ = 1 by 0.3 % and by 3 %", []string{"recipe", "0.3 %", "3 %"}, rows)
}

func (r results) onset(recipe string, limit float64) string {
	loss := func(i int) float64 {
		return stats.Median(r.percent(cell{recipe, exponents[i]}, cell{recipe, exponents[0]}, -1))
	}
	for i := 1; i < len(exponents); i++ {
		if low, high := loss(i-1), loss(i); high > limit {
			share := (limit - low) / (high - low)
			return fmt.Sprintf("2^%.1f", float64(exponents[i-1])+share*float64(exponents[i]-exponents[i-1]))
		}
	}
	return fmt.Sprintf("above 2^%d", exponents[len(exponents)-1])
}

// signalTable prints what telemetry said of the first layer, under fp8-current.
func (r results) signalTable() error {
	var rows [][]string
	for _, exponent := range exponents {
		c := cell{"fp8-current", exponent}
		rows = append(rows, []string{
			fmt.Sprintf("2^%d", exponent), finding.Span("%.2f", r.above("fp8-current", exponent)),
			finding.Span("%.3g", r.amaxOver(c, "median")), finding.Span("%.3g", r.amaxOver(c, "others_rms")), finding.Span("%.2f", finding.Abs(r.channel(c, "cosine"))),
			finding.Span("%.3g", r.cast(c, "amax_rms")), finding.Span("%.0f", r.cast(c, "kurtosis")), finding.Span("%.1f", r.cast(c, "sqnr_db")),
			finding.Span("%.2f", r.cast(c, "flushed")),
		})
	}
	return finding.Table(os.Stdout, "Telemetry of the first layer under fp8-current", []string{
		"κ", "loss, %", "amax / median", "amax / rms of the others", "|cos|", "amax / rms of a", "kurtosis of a", "SQNR of a, dB", "flushed",
	}, rows)
}

// predictions compares the runs with what was written here before the first of them, from earlier
// runs of three models. The rows of fp8-paper and fp8-w3-bf16 had no earlier run.
func (r results) predictions() *finding.List {
	var l finding.List
	check := func(text, recipe string, from, to int, low, high float64) {
		var all []float64
		for _, x := range exponents {
			if x >= from && x <= to {
				all = append(all, r.above(recipe, x)...)
			}
		}
		l.Check(fmt.Sprintf("%s: `%s` is %g to %g %% above bf16, for every model", text, recipe, low, high), finding.Span("%+.2f", all), finding.All(all, low, high))
	}
	check("Any κ up to 2^30: the model stays", "bf16", 0, 30, -0.1, 0.1)
	for _, recipe := range []string{"fp8-delayed", "fp8-current"} {
		check("κ up to 2^8", recipe, 0, 8, -0.1, 0.5)
		check("κ = 2^14", recipe, 14, 14, 1.5, 12)
		check("κ = 2^16", recipe, 16, 16, 15, 50)
		check("κ = 2^18", recipe, 18, 18, 55, 110)
		check("κ of 2^22 and more", recipe, 22, 30, 80, 120)
	}
	var apart []float64
	for _, x := range exponents {
		for i, v := range r.above("fp8-delayed", x) {
			apart = append(apart, math.Abs(v-r.above("fp8-current", x)[i]))
		}
	}
	l.Check("An outlier in every batch does not tell delayed from current scaling: within 4 percentage points at every κ", "at most "+fmt.Sprintf("%.1f", slices.Max(apart)), slices.Max(apart) <= 4)
	check("κ up to 2^26", "fp8-smooth", 0, 26, -0.1, 0.25)
	check("κ = 2^30", "fp8-smooth", 30, 30, -0.1, 1.5)
	check("κ up to 2^26", "fp8-w3-bf16", 0, 26, -0.1, 0.25)
	check("κ up to 2^26", "fp8-paper", 0, 26, -0.1, 0.5)

	kurtosis := func(exponent int) float64 { return stats.Median(r.cast(cell{"fp8-current", exponent}, "kurtosis")) }
	l.Check("Kurtosis saturates: its median differs by less than 2 % between κ = 2^12 and 2^16, where the loss goes from below 1 % to above 15 %",
		fmt.Sprintf("%.0f and %.0f", kurtosis(12), kurtosis(16)), math.Abs(kurtosis(16)/kurtosis(12)-1) < 0.02)
	sqnr := func(exponent int) float64 { return stats.Median(r.cast(cell{"fp8-current", exponent}, "sqnr_db")) }
	l.Check("SQNR misleads: at κ = 2^16 it is less than 2 dB below that at κ = 1 (medians)", fmt.Sprintf("%.1f dB and %.1f dB", sqnr(16), sqnr(0)), sqnr(16) > sqnr(0)-2)
	return &l
}

// drawSignals draws what telemetry said of the first layer under fp8-current, against κ.
func (r results) drawSignals(dir string) error {
	c := chart.Chart{Title: "Telemetry of the first layer, fp8-current, 5 models", X: chart.Axis{Label: "log2 κ"}, Y: chart.Axis{Label: "median and range", Log: true}}
	for i, signal := range []struct {
		name string
		of   func(cell) []float64
	}{
		{"amax / rms of the others", func(c cell) []float64 { return r.amaxOver(c, "others_rms") }},
		{"kurtosis of a", func(c cell) []float64 { return r.cast(c, "kurtosis") }},
		{"amax / rms of a", func(c cell) []float64 { return r.cast(c, "amax_rms") }},
		{"SQNR of a, dB", func(c cell) []float64 { return r.cast(c, "sqnr_db") }},
	} {
		line := chart.Line{Name: signal.name, Look: i}
		for _, exponent := range exponents {
			list := signal.of(cell{"fp8-current", exponent})
			line.X, line.Low, line.High = append(line.X, float64(exponent)), append(line.Low, slices.Min(list)), append(line.High, slices.Max(list))
			line.Y = append(line.Y, stats.Median(list))
		}
		c.Lines = append(c.Lines, line)
	}
	return finding.Draw(dir, "amplify-signals", &c)
}

// draw draws the loss of each recipe against κ.
func (r results) draw(dir string) error {
	c := chart.Chart{
		Title: "One amplified channel a layer, 5 models", X: chart.Axis{Label: "log2 κ"},
		Y: chart.Axis{Label: "validation loss above bf16, %", Log: true},
	}
	for i, recipe := range sizeRecipes {
		line := chart.Line{Name: recipe, Look: i}
		if recipe == "fp8-current" {
			line.Look += chart.Colors // dashes, on the line of fp8-delayed
		}
		for _, exponent := range exponents {
			list := r.above(recipe, exponent)
			line.X, line.Low, line.High = append(line.X, float64(exponent)), append(line.Low, max(0.01, slices.Min(list))), append(line.High, max(0.01, slices.Max(list)))
			line.Y = append(line.Y, max(0.01, stats.Median(list)))
		}
		c.Lines = append(c.Lines, line)
	}
	return finding.Draw(dir, "amplify", &c)
}
