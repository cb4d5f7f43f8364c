package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"octet/internal/inspect"
)

type diffCmd struct {
	A    string `arg:"" name:"run a" help:"The first run folder."`
	B    string `arg:"" name:"run b" help:"The second run folder."`
	JSON bool   `help:"Print one JSON object."`
}

// Help returns the text that diff --help adds.
func (diffCmd) Help() string {
	return `Compares metrics.jsonl step by step, and the newest checkpoint of a step that both runs have. The exit status is 0 if the runs are equal and 1 if they differ.

Examples:
  octet diff runs/one runs/two
  octet diff runs/one runs/two --json`
}

func (c diffCmd) Run(t *terminal) error {
	d, err := inspect.Diff(c.A, c.B)
	if err != nil {
		return badInput(err)
	}
	if c.JSON {
		err = json.NewEncoder(t.out).Encode(d)
	} else {
		var text bytes.Buffer
		printDifference(&text, d)
		_, err = prose(&printable{to: t.out}).Write(text.Bytes())
	}
	if err == nil && !d.Equal() {
		return stopped{exitFailed}
	}
	return err
}

func printDifference(w io.Writer, d *inspect.Difference) {
	fmt.Fprintf(w, "A           %s\nB           %s\n", d.A, d.B)
	m := d.Metrics
	switch {
	case m.First != nil && m.Same == 0:
		fmt.Fprintf(w, "metrics     the first step differs: %s\n", fieldText(m.First))
	case m.First != nil:
		fmt.Fprintf(w, "metrics     the first %d steps are the same; at step %d %s\n", m.Same, m.First.Step, fieldText(m.First))
	case m.StepsA != m.StepsB:
		fmt.Fprintf(w, "metrics     the first %d steps are the same\n", m.Same)
	default:
		fmt.Fprintf(w, "metrics     all %d steps are the same\n", m.Same)
	}
	if m.StepsA != m.StepsB {
		fmt.Fprintf(w, "length      A has %d steps, B has %d\n", m.StepsA, m.StepsB)
	}
	c := d.Checkpoints
	if c == nil {
		fmt.Fprintln(w, "checkpoint  no step has an intact one in both runs")
		return
	}
	if c.Equal() {
		fmt.Fprintf(w, "checkpoint  of step %d: all %d tensors are the same\n", c.Step, c.Tensors)
		return
	}
	fmt.Fprintf(w, "checkpoint  of step %d: %d of %d tensors differ", c.Step, c.Differ, c.Tensors)
	if c.First != "" {
		fmt.Fprintf(w, ", the first is %s", c.First)
	}
	fmt.Fprintln(w)
	printOnly(w, "A", c.OnlyA)
	printOnly(w, "B", c.OnlyB)
	if c.State != nil {
		fmt.Fprintf(w, "state.json  %s\n", fieldText(c.State))
	}
	if l := c.Largest; l != nil && l.Differ == 0 {
		fmt.Fprintf(w, "the most    %s: it is %s in A, %s in B\n", l.Name, l.A, l.B)
	} else if l != nil {
		fmt.Fprintf(w, "the most    %s, %s: %d elements differ, by %.3g at most, |A-B|/|A| = %.3g\n", l.Name, l.A, l.Differ, float64(l.Apart), float64(l.Relative))
	}
}

func printOnly(w io.Writer, side string, names []string) {
	const shown = 3
	if len(names) == 0 {
		return
	}
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	fmt.Fprintf(w, "only in %s   %s\n", side, text)
}

func fieldText(f *inspect.Field) string {
	side := func(value, name string) string {
		if value == "" {
			return "absent in " + name
		}
		const maxShown = 60
		if len(value) > maxShown {
			value = value[:maxShown] + "…"
		}
		return value + " in " + name
	}
	return fmt.Sprintf("%s is %s, %s", f.Name, side(f.A, "A"), side(f.B, "B"))
}
