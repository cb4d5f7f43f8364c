package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/stats"
	"octet/internal/writers"
)

// valLosses returns the validation losses of pairs: the last ones of runs that have ended, else
// those of the last step that both runs of the pair have validated.
func valLosses(pairs []runs.Pair) (own, baseline []float64) {
	for _, p := range pairs {
		a, b := p.Run.Metrics["val_loss"], p.Baseline.Metrics["val_loss"]
		if a == nil || b == nil {
			continue
		}
		i, j := len(a.Steps)-1, len(b.Steps)-1
		for !(p.Run.Done() && p.Baseline.Done()) && i >= 0 && j >= 0 && a.Steps[i] != b.Steps[j] {
			if a.Steps[i] > b.Steps[j] {
				i--
			} else {
				j--
			}
		}
		if i >= 0 && j >= 0 {
			own, baseline = append(own, a.Values[i]), append(baseline, b.Values[j])
		}
	}
	return own, baseline
}

// summary writes a table of the groups and one of the runs.
func (p *builder) summary(groups []*runs.Group) {
	p.Section("summary", "Summary")
	t := chart.Table{Head: []string{"configuration", "runs", "validation loss", "from", "to", "against", "difference", "standard error", "p"}}
	compared := false
	for _, g := range groups {
		var values []float64
		for _, r := range g.Distinct() {
			if v, ok := r.Metrics["val_loss"].Last(); ok {
				values = append(values, v)
			}
		}
		count := fmt.Sprint(len(g.Runs))
		if n := len(g.Runs) - len(values); n > 0 {
			count = fmt.Sprintf("%d of %d", len(values), len(g.Runs))
		}
		row := []string{g.Name, count, "", "", "", "", "", "", ""}
		if len(values) > 0 {
			row[2], row[3], row[4] = nats(stats.Mean(values)), nats(slices.Min(values)), nats(slices.Max(values))
		}
		if own, baseline := valLosses(g.Pairs()); len(own) > 0 {
			compared = true
			d := stats.PairedOf(relative(own, baseline))
			row[5], row[6] = g.Baseline.Name, "not finite"
			if len(finite([]float64{d.Mean})) > 0 {
				row[6] = fmt.Sprintf("%+.3f %%", d.Mean)
				if d.N > 1 {
					row[7], row[8] = fmt.Sprintf("%.3f %%", d.StdErr), fmt.Sprintf("%.2g", d.P)
				}
			}
		}
		t.Rows = append(t.Rows, row)
	}
	p.Table("Configurations", t)
	text := "Validation loss is the last one of each run, in nats per token: mean and range over seeds. Of several runs with one seed, the first counts."
	if compared {
		text += " Differences are means over pairs of runs with the same seed, of runs in progress at the last step that both have validated; p is that of Student's paired t test, two-sided."
	}
	p.Paragraph("soft", text)
	p.runs(groups)
}

// nats writes a loss with the decimals that octet train prints.
func nats(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "not finite"
	}
	if math.Abs(v) >= 1000 {
		return chart.Number(v)
	}
	return fmt.Sprintf("%.4f", v)
}

// relative returns the differences in percent.
func relative(own, baseline []float64) (d []float64) {
	for i := range own {
		d = append(d, 100*(own[i]/baseline[i]-1))
	}
	return d
}

// runs writes a table of all runs.
func (p *builder) runs(groups []*runs.Group) {
	t := chart.Table{Head: []string{"run", "configuration", "seed", "device", "state", "step", "of", "training loss", "validation loss", "tokens/s", "time", "warnings", "octet"}}
	for _, g := range groups {
		for _, r := range g.Runs {
			row := []string{r.Name, g.Name, r.Seed(), r.Device(), r.State(), fmt.Sprint(r.Step()), fmt.Sprint(r.Steps), "", "", "", "", fmt.Sprint(len(r.Alarms)), version(r)}
			if v, ok := r.Metrics["loss"].Last(); ok {
				row[7] = nats(v)
			}
			if v, ok := r.Metrics["val_loss"].Last(); ok {
				row[8] = nats(v)
			}
			if s := r.Timing["tokens_per_s"]; s != nil {
				row[9] = chart.Number(stats.Median(finite(s.Values)))
			}
			if s := r.Timing["step_s"]; s != nil {
				sum := 0.0
				for _, v := range finite(s.Values) {
					sum += v
				}
				row[10] = writers.Clock(time.Duration(sum * float64(time.Second)))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	p.Heading("Runs")
	p.Table("Runs", t)
}

// version returns the version of Octet without what follows it in parentheses.
func version(r *runs.Run) string {
	text, _, _ := strings.Cut(r.Version, " (")
	return text
}

// finite returns the finite values.
func finite(x []float64) (list []float64) {
	for _, v := range x {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			list = append(list, v)
		}
	}
	return list
}
