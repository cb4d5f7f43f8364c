package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"octet/internal/stats"
	"octet/internal/sweep"
	"octet/internal/writers"
)

// printSweep prints a line for each variant, and one for each failed run.
func printSweep(to io.Writer, s *sweep.Sweep) error {
	variants := table{columns: []column{
		{head: "variant"},
		{head: "runs"},
		{head: "validation loss", short: "val loss"},
		{head: "range", optional: true},
		{head: "difference in %", short: "diff. in %"},
		{head: "p"},
	}}
	for _, v := range s.Summaries() {
		count := fmt.Sprint(v.Done)
		if all := len(v.Variant.Seeds); v.Done < all {
			count = fmt.Sprintf("%d of %d", v.Done, all)
		}
		mean, extent := "–", "–"
		if v.Done > 0 {
			mean, extent = lossNumber(v.Mean), lossNumber(v.Min)+"–"+lossNumber(v.Max)
		}
		difference, p := differenceTexts(v)
		variants.add(v.Variant.Name, count, mean, extent, difference, p)
	}
	if err := variants.print(to); err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprint(&text, "\nlosses in nats per token; differences between runs with equal seeds: mean ± standard error, p of Student's paired t test, two-sided\n\n")
	if _, err := prose(&printable{to: to}).Write(text.Bytes()); err != nil {
		return err
	}
	if err := printRecords(to, s); err != nil {
		return err
	}
	text.Reset()
	for _, r := range s.Rows() {
		if r.State == sweep.Failed {
			fmt.Fprintf(&text, "failed      %s, seed %d: %s\n", r.Variant.Name, r.Seed, shortened(r.Error))
		}
	}
	fmt.Fprintf(&text, "runs        %s\n", filepath.Join(s.Dir, "results.csv"))
	_, err := prose(&printable{to: to}).Write(text.Bytes())
	return err
}

// printRecords prints a line for each variant with finished runs: what their records say beside the
// losses.
func printRecords(to io.Writer, s *sweep.Sweep) error {
	records := table{columns: []column{
		{head: "variant"},
		{head: "worst step"},
		{head: "largest update", short: "update"},
		{head: "spikes"},
		{head: "bytes per parameter", short: "B/param", optional: true},
		{head: "per activation", short: "B/act", optional: true},
		{head: "sent per parameter", short: "sent/param", optional: true},
		{head: "step"},
	}}
	for _, r := range s.Records() {
		if math.IsNaN(r.StepSeconds) {
			continue
		}
		records.add(append([]string{r.Variant.Name}, recordCells(r, s.Bytes(r.Variant))...)...)
	}
	if len(records.rows) == 0 {
		return nil
	}
	if err := records.print(to); err != nil {
		return err
	}
	_, err := io.WriteString(prose(&printable{to: to}), "\n"+recordWords+"\n\n")
	return err
}

// recordCells returns the cells of a variant's records: worst step, largest update, spikes, bytes
// per parameter, per activation and sent, time of a step.
func recordCells(r sweep.Records, b sweep.Bytes) []string {
	cells := []string{"–", "–", fmt.Sprint(r.Spikes), "–", "–", "–", "–"}
	if n := len(r.WorstStep); n > 0 {
		cells[0] = fmt.Sprintf("%.3f–%.3f", slices.Min(r.WorstStep), slices.Max(r.WorstStep))
	}
	if r.Variant.Baseline == nil {
		cells[0] = "baseline"
	}
	if !math.IsNaN(r.LargestUpdate) {
		cells[1] = fmt.Sprintf("%.3g", r.LargestUpdate)
	}
	if !math.IsNaN(r.StepSeconds) {
		cells[6] = fmt.Sprintf("%.3g ms", 1e3*r.StepSeconds)
	}
	for i, bytes := range []float64{b.Parameter, b.Activation, b.Sent} {
		if !math.IsNaN(bytes) {
			cells[3+i] = fmt.Sprintf("%.2f", bytes)
		}
	}
	return cells
}

const recordWords = "worst step: how far the training loss of a run is above the baseline's at its worst step, in nats per token, smallest–largest of the seeds; largest update of an element, in units of the learning rate (– without optimizer.stats=true); spikes of all runs; bytes as octet plan counts them: per parameter, its master weight, gradient and moments; per activation, an element that the forward pass leaves for the backward pass; sent per parameter, in a step, by one of 8 ranks with train.zero_stage=1 (– if that is refused); step: median time"

// errorLength is the number of characters of an error in a table of runs; results.csv and the
// logs have all of them.
const errorLength = 160

func shortened(text string) string {
	if list := []rune(text); len(list) > errorLength {
		return string(list[:errorLength]) + "…"
	}
	return text
}

// differenceTexts returns the cells of a variant's difference and of its p value.
func differenceTexts(v sweep.Summary) (difference, p string) {
	d := v.Difference
	switch {
	case v.Variant.Baseline == nil:
		return "baseline", "–"
	case d.N == 0:
		return "–", "–"
	case math.IsNaN(d.Mean):
		return "not finite", "–"
	case d.N == 1:
		return fmt.Sprintf("%+.3f", d.Mean), "–"
	}
	return fmt.Sprintf("%+.3f ± %.3f", d.Mean, d.StdErr), fmt.Sprintf("%.2g", d.P)
}

// lossNumber returns a loss with four decimals.
func lossNumber(x float64) string {
	if math.IsNaN(x) {
		return "not finite"
	}
	return fmt.Sprintf("%.4f", x)
}

// sweepResult is the output of sweep --json.
type sweepResult struct {
	Sweep    string           `json:"sweep"` // folder
	Variants []variantResult  `json:"variants"`
	Runs     []sweepRunResult `json:"runs"`
}

type variantResult struct {
	Name     string         `json:"name"`
	Baseline string         `json:"baseline,omitempty"` // absent: this variant is one
	Done     int            `json:"done"`
	Failed   int            `json:"failed"`
	ValLoss  *spread        `json:"val_loss,omitempty"` // nats per token
	Percent  *pairedPercent `json:"difference_percent,omitempty"`
	Records  *recordsResult `json:"records,omitempty"` // of the runs that are done
}

// recordsResult holds [sweep.Records].
type recordsResult struct {
	WorstStep     []writers.Float `json:"worst_step,omitempty"` // nats per token, by pair; null: infinite
	LargestUpdate *writers.Float  `json:"largest_update,omitempty"`
	Spikes        int             `json:"spikes"`
	StepSeconds   writers.Float   `json:"step_s"`
	// Bytes, null where the variant cannot be planned.
	Parameter  writers.Float `json:"bytes_per_parameter"`
	Activation writers.Float `json:"bytes_per_activation"`
	Sent       writers.Float `json:"sent_per_parameter"`
}

func recordsOf(r sweep.Records, b sweep.Bytes) *recordsResult {
	out := &recordsResult{
		Spikes: r.Spikes, StepSeconds: writers.Float(r.StepSeconds),
		Parameter: writers.Float(b.Parameter), Activation: writers.Float(b.Activation), Sent: writers.Float(b.Sent),
	}
	for _, x := range r.WorstStep {
		out.WorstStep = append(out.WorstStep, writers.Float(x))
	}
	if !math.IsNaN(r.LargestUpdate) {
		largest := writers.Float(r.LargestUpdate)
		out.LargestUpdate = &largest
	}
	return out
}

type spread struct {
	Mean writers.Float `json:"mean"`
	Min  writers.Float `json:"min"`
	Max  writers.Float `json:"max"`
}

// pairedPercent holds differences of runs with equal seeds, see [stats.Paired].
type pairedPercent struct {
	Pairs int `json:"pairs"`
	spread
	StdErr writers.Float `json:"standard_error"` // null for one pair; so is P
	P      writers.Float `json:"p"`
}

type sweepRunResult struct {
	Variant string        `json:"variant"`
	Seed    int64         `json:"seed"`
	State   sweep.State   `json:"state"` // done, failed or pending
	Run     string        `json:"run"`   // folder
	Step    int           `json:"step"`
	Loss    writers.Float `json:"loss"`     // of the last step, nats per token
	ValLoss writers.Float `json:"val_loss"` // nats per token
	Error   string        `json:"error,omitempty"`
}

func spreadOf(p stats.Paired) spread {
	return spread{writers.Float(p.Mean), writers.Float(p.Min), writers.Float(p.Max)}
}

// printSweepJSON prints the result as JSON.
func printSweepJSON(to io.Writer, s *sweep.Sweep) error {
	out := sweepResult{Sweep: s.Dir}
	records := s.Records()
	for i, v := range s.Summaries() {
		r := variantResult{Name: v.Variant.Name, Done: v.Done, Failed: v.Failed}
		if v.Variant.Baseline != nil {
			r.Baseline = v.Variant.Baseline.Name
		}
		if v.Done > 0 {
			r.Records = recordsOf(records[i], s.Bytes(v.Variant))
			r.ValLoss = &spread{writers.Float(v.Mean), writers.Float(v.Min), writers.Float(v.Max)}
		}
		if d := v.Difference; d.N > 0 {
			r.Percent = &pairedPercent{d.N, spreadOf(d), writers.Float(d.StdErr), writers.Float(d.P)}
		}
		out.Variants = append(out.Variants, r)
	}
	for _, r := range s.Rows() {
		out.Runs = append(out.Runs, sweepRunResult{
			Variant: r.Variant.Name, Seed: r.Seed, State: r.State, Run: filepath.Join(s.Dir, r.Folder), Step: r.Step,
			Loss: writers.Float(r.Loss), ValLoss: writers.Float(r.ValLoss), Error: r.Error,
		})
	}
	return json.NewEncoder(to).Encode(out)
}
