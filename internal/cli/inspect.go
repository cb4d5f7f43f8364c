package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"octet/internal/inspect"
	"octet/internal/writers"
	"octet/run"
)

type inspectCmd struct {
	Path string `arg:"" name:"run, checkpoint or model" help:"A run folder (its newest intact checkpoint), a checkpoint, or a Hugging Face folder, such as an export."`
	All  bool   `help:"Print a row for each tensor; otherwise the tensors of all layers share a row."`
	JSON bool   `help:"Print one JSON object, with every tensor."`
}

// Help returns the text that inspect --help adds.
func (inspectCmd) Help() string {
	return `A row stands for n tensors; "amax" is their largest magnitude. "filled" is the newest amax times the scale, as a share of the format's largest value: above 100% the cast saturates. "history" spans the smallest and the largest amax, zeros excluded. "updates" counts the amaxes that are not zero in the window.

Examples:
  octet inspect runs/mine
  octet inspect runs/mine/checkpoints/step-00000200 --all`
}

func (c inspectCmd) Run(t *terminal) (err error) {
	report, err := c.report(t)
	if err != nil && !c.JSON && run.Exists(c.Path) { // a run that failed early has a loss, too
		err = errors.Join(err, printPicture(&printable{to: t.out}, c.Path))
	}
	if err != nil {
		return badInput(err)
	}
	if c.JSON {
		return json.NewEncoder(t.out).Encode(report)
	}
	out := &printable{to: t.out} // a foreign file may hold names with control characters
	if s := report.State; s.Version == 0 {
		fmt.Fprintf(prose(out), "weights     %s\n", report.Path)
	} else {
		fmt.Fprintf(prose(out), "checkpoint  %s\nwritten by  octet %s on %s\nrecipe      %s, seed %d\nstep        %d, epoch %d, row %d\n",
			report.Path, s.Octet, s.Backend, s.Recipe, s.Seed, s.Step, s.Position.Epoch, s.Position.Index)
	}
	if run.Exists(c.Path) {
		fmt.Fprintln(out)
		if err := printPicture(out, c.Path); err != nil {
			return err
		}
	}
	kind := func(name string) string { return name }
	if !c.All {
		kind = func(name string) string { return layerNumber.ReplaceAllString(name, "layers.*.") }
	}
	if err := printTensors(out, report.Tensors, kind); err != nil {
		return err
	}
	if err := printCasts(out, report.Casts, kind); err != nil {
		return err
	}
	if len(report.Health) == 0 {
		_, err = io.WriteString(out, "\nnothing looks wrong\n")
		return err
	}
	_, err = io.WriteString(prose(out), "\nlook at: "+strings.Join(report.Health, "\nlook at: ")+"\n")
	return err
}

func (c inspectCmd) report(t *terminal) (r *inspect.Report, err error) {
	var p *progress
	read := func(done, all int64) {
		if p == nil {
			p = t.startProgress(all, "B")
		}
		p.set(done, nil)
	}
	defer func() {
		if p != nil {
			p.close()
		}
	}()
	if info, statErr := os.Stat(c.Path); statErr == nil && info.IsDir() && !run.HoldsCheckpoint(c.Path) {
		return inspect.Model(c.Path, read)
	}
	open, skipped, err := run.OpenCheckpoint(c.Path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, open.Close()) }()
	t.reportSkipped(skipped)
	return inspect.Checkpoint(open, read)
}

var layerNumber = regexp.MustCompile(`\blayers\.\d+\.`)

// printTensors prints a row for the tensors of one kind, format and shape, with the largest
// amax and the largest share of zeros. An amax includes the tensor's scale; scales have no
// rows of their own.
func printTensors(out io.Writer, list []inspect.Tensor, kind func(string) string) error {
	rows := table{columns: []column{
		{head: "tensor"}, {head: "n"}, {head: "format"}, {head: "amax"}, {head: "zeros", optional: true}, {head: "not finite", optional: true},
	}}
	values := slices.DeleteFunc(slices.Clone(list), inspect.Tensor.IsScale)
	for _, group := range groupBy(values, func(x inspect.Tensor) string { return fmt.Sprint(kind(x.Name), x.Format, x.Shape) }) {
		var amax, zeros *writers.Float
		var notFinite int64
		for _, x := range group {
			amax, zeros = larger(amax, x.Amax), larger(zeros, x.Zeros)
			notFinite += x.NotFinite
		}
		first := group[0]
		rows.add(kind(first.Name), fmt.Sprint(len(group)), fmt.Sprintf("%s %v", first.Format, first.Shape),
			short(amax), share(zeros), writers.Count(notFinite))
	}
	fmt.Fprintln(out)
	return rows.print(out)
}

// printCasts prints a row for the casts of one kind, with the range of their scales and
// histories.
func printCasts(out io.Writer, list []inspect.Cast, kind func(string) string) error {
	if len(list) == 0 {
		return nil
	}
	rows := table{columns: []column{
		{head: "cast"},
		{head: "n"},
		{head: "scale"},
		{head: "filled"},
		{head: "newest amax", short: "amax"},
		{head: "history", optional: true},
		{head: "updates", optional: true},
	}}
	for _, group := range groupBy(list, func(x inspect.Cast) string { return kind(x.Name) }) {
		var minScale, maxScale, fill, newest, lowest, highest *writers.Float
		updates := 0
		for _, x := range group {
			minScale, maxScale = smaller(minScale, &x.Scale), larger(maxScale, &x.Scale)
			fill, newest = larger(fill, &x.Fill), larger(newest, &x.Newest)
			lowest, highest = smaller(lowest, &x.Lowest), larger(highest, &x.Highest)
			updates = max(updates, x.Updates)
		}
		scale := power(*minScale)
		if *minScale != *maxScale {
			scale += " to " + power(*maxScale)
		}
		rows.add(kind(group[0].Name), fmt.Sprint(len(group)), scale, share(fill), short(newest),
			short(lowest)+" to "+short(highest), fmt.Sprintf("%d of %d", updates, group[0].Window))
	}
	fmt.Fprintln(out)
	return rows.print(out)
}

// groupBy groups a list by key, in the order in which the keys first appear.
func groupBy[T any](list []T, key func(T) string) (groups [][]T) {
	index := map[string]int{}
	for _, x := range list {
		i, ok := index[key(x)]
		if !ok {
			i = len(groups)
			index[key(x)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], x)
	}
	return groups
}

// larger returns the larger of two values; nil counts as absent, and NaN as the largest.
func larger(a, b *writers.Float) *writers.Float {
	if a == nil || b != nil && *a == *a && !(*b <= *a) {
		return b
	}
	return a
}

// smaller returns the smaller of two values; nil counts as absent, and NaN as the smallest.
func smaller(a, b *writers.Float) *writers.Float {
	if a == nil || b != nil && *a == *a && !(*b >= *a) {
		return b
	}
	return a
}

func short(x *writers.Float) string { return orDash(x, "%.4g", 1) }

func share(x *writers.Float) string { return orDash(x, "%.1f%%", 100) }

// power writes a power of two as "2^n", which most scales are, and other values as short.
func power(x writers.Float) string {
	if half, exponent := math.Frexp(float64(x)); half == 0.5 {
		return fmt.Sprintf("2^%d", exponent-1)
	}
	return short(&x)
}

func orDash(x *writers.Float, format string, unit float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, unit*float64(*x))
}
