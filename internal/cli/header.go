package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"octet/data"
	"octet/internal/writers"
	"octet/run"
	"octet/train"
)

// labelColumns is the width of the labels, with the space after them.
const labelColumns = len("parameters  ")

// printHeader prints what the run computes, in lines of at most the given number of
// columns; 0 columns set no limit. Paths are never broken, so that they can be copied.
func printHeader(to io.Writer, r *run.Run, columns int) error {
	var w bytes.Buffer
	if err := describeRun(&w, r, cmp.Or(columns, 80)); err != nil {
		return err
	}
	var paths bytes.Buffer
	tw := tabwriter.NewWriter(&paths, labelColumns, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "run\t%s\n", r.Dir)
	if r.MetricsURL() != "" {
		fmt.Fprintf(tw, "metrics\t%s\n", r.MetricsURL())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var resumed bytes.Buffer
	printResumed(&resumed, r)
	_, err := io.WriteString(to, writers.Reflow(w.String(), columns)+paths.String()+writers.Reflow(resumed.String(), columns)+"\n")
	return err
}

// describeRun writes the header without its paths.
func describeRun(w io.Writer, r *run.Run, columns int) error {
	fmt.Fprintln(w)
	if err := describeRecipes(w, r.Trainer.Job); err != nil {
		return err
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		for _, part := range wrap(fmt.Sprintf(format, args...), min(columns, 80)-labelColumns) {
			fmt.Fprintf(tw, "%s\t%s\n", name, strings.TrimSpace(part))
			name = ""
		}
	}
	groups := r.Trainer.ParamGroups()
	line("parameters", "%s: %s", writers.Count(totalOf(groups)), list(groups, writers.Count))
	if padded := r.Config.ModelConfig().PaddedVocab(); padded != r.Config.Model.Vocab {
		line("vocabulary", "%d, padded to %d for the matrix units", r.Config.Model.Vocab, padded)
	}
	hostText := ""
	if n := r.Corpus.InMemory(); n > 0 {
		hostText = fmt.Sprintf(", and %s of text on the host", writers.Bytes(n))
	}
	perRank := ""
	if r.Config.Train.Ranks > 1 {
		perRank = " on each rank"
	}
	line("memory", "%s%s: %s%s", writers.Bytes(r.Memory.Total()), perRank, list(memoryGroups(r.Memory), writers.Bytes), hostText)
	if usage, ok := r.Usage(); ok {
		line("outside", "%s of the device's %s: its driver, libraries and other processes", writers.Bytes(usage.Outside()), writers.Bytes(usage.Total))
	}
	line("compute", "%s per token, %s steps of %s tokens", writers.Quantity(r.Trainer.FLOPsPerToken(), "FLOP"),
		writers.Count(int64(r.Config.Train.Steps)), writers.Count(r.Trainer.TokensPerStep()))
	line("device", "%s", devices(r))
	if hint := r.Device.Spec().Hint; hint != "" {
		line("hint", "%s", hint)
	}
	info := r.Corpus.Info
	if r.Note != "" {
		line("corpus", "%s", r.Note)
	}
	line("data", "%s tokens to train on (%s), %s to validate", writers.Count(info.TrainTokens), passesText(r.Passes()), writers.Count(info.ValTokens))
	switch info.LeftOut {
	case 0:
	case 1:
		line("left out", "1 file that is not text")
	default:
		line("left out", "%s files that are not text", writers.Count(int64(info.LeftOut)))
	}
	if l := r.Lengths; l.Cut > 0 || l.Silent > 0 {
		line("documents", "%s: %s are cut at data.seq, %s have no answer in it", writers.Count(l.Documents), writers.Count(l.Cut), writers.Count(l.Silent))
	}
	if p := r.Pairs; p.Pairs > 0 {
		line("pairs", "%s: %s are cut at data.seq, %s have an answer without a token in it", writers.Count(p.Pairs), writers.Count(p.Cut), writers.Count(p.Empty))
	}
	if one, two, ok := r.Corpus.Baselines(); ok {
		line("to beat", "%.4f nats per token (byte unigrams), %.4f (byte bigrams)", one, two)
	}
	return tw.Flush()
}

// describeRecipes prints the table of a job's recipe, and the names of the recipes that
// follow it.
func describeRecipes(w io.Writer, j *train.Job) error {
	if err := describeRecipe(w, j.Recipe, j.Notes, j.Model.Linears()); err != nil {
		return err
	}
	for _, p := range j.Phases[j.Phase+1:] {
		late := ""
		if p.From >= j.Config.Train.Steps {
			late = fmt.Sprintf(", which a run of %d steps does not reach", j.Config.Train.Steps)
		}
		fmt.Fprintf(w, "then %s from step %d on%s\n", p.Config.Recipe, p.From+1, late)
	}
	return nil
}

// wrap breaks a text into lines after its commas.
func wrap(text string, columns int) []string {
	lines := []string{""}
	for part := range strings.SplitAfterSeq(text, ", ") {
		last := &lines[len(lines)-1]
		if *last != "" && len(*last)+len(strings.TrimSpace(part)) > columns {
			lines = append(lines, part)
		} else {
			*last += part
		}
	}
	return lines
}

// printResumed says where a resumed run continues, and what differs from before.
func printResumed(w io.Writer, r *run.Run) {
	for _, e := range r.Skipped {
		fmt.Fprintf(w, "skipped a damaged checkpoint: %s: %v\n", e.Path, e.Damage)
	}
	for _, lost := range r.Lost {
		fmt.Fprintln(w, lost)
	}
	if r.Moved != "" {
		fmt.Fprintf(w, "the checkpoint was written by backend %s: the next steps\nare not bit for bit those of that backend\n", r.Moved)
	}
	if r.Trainer.Converted {
		fmt.Fprintln(w, "the checkpoint's moments are rounded to this device's e4m3")
	}
	switch {
	case r.Resumed > 0:
		fmt.Fprintf(w, "resuming after step %d\n", r.Resumed)
		if len(r.Changed) > 0 {
			for _, part := range wrap("changed in config.toml since the checkpoint: "+strings.Join(r.Changed, ", "), 80) {
				fmt.Fprintln(w, strings.TrimSpace(part))
			}
		}
		switch c := r.RateChange; {
		case c == nil:
		case c.Shorter:
			fmt.Fprintf(w, "the run is shorter now: the learning rate changes from %.3g to %.3g\n", c.From, c.To)
		default:
			fmt.Fprintf(w, "the run is longer now: the learning rate rises again, from %.3g to %.3g\n", c.From, c.To)
		}
	case r.WasResumed:
		fmt.Fprintln(w, "the run has no checkpoint yet: starting at step 0")
	}
}

// devices names the device of a run, or of each of its ranks.
func devices(r *run.Run) string {
	spec := r.Device.Spec()
	if n := r.Config.Train.Ranks; n > 1 {
		if tensor := r.Config.Train.Tensor; tensor > 1 {
			return fmt.Sprintf("%d ranks in groups of %d that share each layer, each %s", n, tensor, spec.Device)
		}
		return fmt.Sprintf("%d ranks, each %s", n, spec.Device)
	}
	return spec.Device
}

// memoryGroups returns the memory of a device by class: persistent, temporaries, and the rest.
func memoryGroups(m train.Memory) []train.Group {
	groups := append([]train.Group{}, m.Persistent...)
	groups = append(groups, train.Group{Name: "temps", N: m.Arena})
	return append(groups, m.Beside...)
}

// list writes groups as "embedding 32,768, norms 896".
func list(groups []train.Group, format func(int64) string) string {
	var parts []string
	for _, g := range mergeSmall(groups) {
		parts = append(parts, g.Name+" "+format(g.N))
	}
	return strings.Join(parts, ", ")
}

// mergeSmall merges the groups below a thousandth of the total into "other", the last one.
func mergeSmall(groups []train.Group) []train.Group {
	total := totalOf(groups)
	rest := train.Group{Name: "other"}
	var kept []train.Group
	for _, g := range groups {
		if g.N < total/1000 {
			rest.N += g.N
		} else {
			kept = append(kept, g)
		}
	}
	if rest.N > 0 {
		kept = append(kept, rest)
	}
	return kept
}

// totalOf returns the sum of groups.
func totalOf(groups []train.Group) (total int64) {
	for _, g := range groups {
		total += g.N
	}
	return total
}

// passesText says which share of its text a run reads, or how often.
func passesText(passes float64) string {
	switch {
	case passes < 0.995: // %.2g writes a larger share as 1e+02
		return fmt.Sprintf("%.2g%% read", 100*passes)
	case passes < 10:
		return fmt.Sprintf("read %.1f times", passes)
	}
	return fmt.Sprintf("read %.0f times", passes)
}

// lossUnit names the unit of a run's losses.
func lossUnit(r *run.Run) string {
	if r.Config.Train.Objective == train.ObjectiveDPO {
		return "nats per pair"
	}
	return "nats per token"
}

// lossText writes a validation loss in nats per token and, with a tokenizer, in bits per byte; or
// that of pairs, with their accuracy and margin.
func lossText(p run.Progress, r *run.Run) string {
	s := fmt.Sprintf("%.4f %s", p.ValLoss, lossUnit(r))
	if n := p.ValPairs; n.Pairs > 0 {
		return s + fmt.Sprintf(", accuracy %.1f%%, margin %.3f", 100*n.Accuracy, n.Margin)
	}
	if bits, ok := validationBits(p.ValLoss, r); ok {
		s += fmt.Sprintf(", %.4f bits per byte", bits)
	}
	return s
}

// validationBits returns a validation loss in bits per byte; ok is false without a tokenizer, and for
// a loss of pairs.
func validationBits(nats float64, r *run.Run) (bits float64, ok bool) {
	if r.Corpus.Tokenizer == nil || r.Config.Train.Objective == train.ObjectiveDPO {
		return 0, false
	}
	bits, err := data.BitsPerByte(nats, r.Corpus.Val, r.Corpus.Tokenizer)
	return bits, err == nil
}
