package report

import (
	"fmt"
	"slices"
	"strings"

	"octet/internal/chart"
	"octet/internal/page"
	"octet/internal/runs"
)

// Text is a text of fixed width about a run's configuration, such as its recipe's table.
type Text struct{ Title, Body string }

// Options are the content of a page beside the runs' files.
type Options struct {
	Title  string
	Script string // see page.Page.HTML
	Back   string // address of a list of runs; empty: none
	// Describe returns texts about a run's configuration. It may be nil.
	Describe func(*runs.Run) []Text
}

// builder writes the parts of a report.
type builder struct{ page.Page }

// tableRows is the number of rows of the table below a chart.
const tableRows = 20

// Page returns a page about groups of runs.
func Page(o Options, groups []*runs.Group) []byte {
	var p builder
	if o.Back != "" {
		p.Link(o.Back, "All runs")
	}
	p.summary(groups)
	p.losses(groups)
	p.casts(groups)
	p.channels(groups)
	p.speed(groups)
	p.configurations(o, groups)
	p.alarms(groups)
	return p.HTML(o.Title, o.Script)
}

// all returns the runs of all groups.
func all(groups []*runs.Group) (list []*runs.Run) {
	for _, g := range groups {
		list = append(list, g.Runs...)
	}
	return list
}

// shown are the groups of which the page shows details.
const shown = 8

// some returns the groups of which the page shows details, and writes their number if there are more.
func (p *builder) some(groups []*runs.Group) []*runs.Group {
	if len(groups) > shown {
		p.Paragraph("soft", fmt.Sprintf("The first %d of %d configurations.", shown, len(groups)))
		return groups[:shown]
	}
	return groups
}

// configurations writes the keys that differ between the groups, and texts about each group.
func (p *builder) configurations(o Options, groups []*runs.Group) {
	p.Section("configurations", "Configurations")
	var first []*runs.Run
	t := chart.Table{Head: []string{"key"}}
	for _, g := range groups {
		first = append(first, g.Runs[0])
		t.Head = append(t.Head, g.Name)
	}
	for _, key := range runs.Differing(first) {
		row := []string{key}
		for _, r := range first {
			row = append(row, r.Config[key])
		}
		t.Rows = append(t.Rows, row)
	}
	if len(t.Rows) > 0 {
		p.Paragraph("", "Keys that differ:")
		p.Table("Keys that differ", t)
	}
	for _, g := range p.some(groups) {
		p.Heading(g.Name)
		if o.Describe != nil {
			for _, text := range o.Describe(g.Runs[0]) {
				p.Folded(text.Title, text.Body)
			}
		}
		p.Folded("Configuration", configText(g.Runs[0]))
	}
}

func configText(r *runs.Run) string {
	var lines []string
	for key, value := range r.Config {
		lines = append(lines, key+" = "+value)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// alarms writes the warnings of all runs, and the problems of their files.
func (p *builder) alarms(groups []*runs.Group) {
	warnings := chart.Table{Head: []string{"run", "step", "time", "warning"}}
	problems := chart.Table{Head: []string{"run", "problem"}}
	for _, r := range all(groups) {
		for _, a := range r.Alarms {
			step := ""
			if a.Step > 0 {
				step = fmt.Sprint(a.Step)
			}
			warnings.Rows = append(warnings.Rows, []string{r.Name, step, a.Time, a.Message})
		}
		for _, text := range r.Problems {
			problems.Rows = append(problems.Rows, []string{r.Name, text})
		}
	}
	p.Section("warnings", "Warnings")
	if len(warnings.Rows) == 0 {
		p.Paragraph("", "No run warned.")
	} else {
		p.Table("Warnings", warnings)
	}
	if len(problems.Rows) > 0 {
		p.Section("problems", "Damaged files")
		p.Paragraph("bad", "These files could not be read completely, and the page leaves out what they hold there.")
		p.Table("Damaged files", problems)
	}
}
