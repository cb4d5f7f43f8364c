package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"octet/backend/cost"
	"octet/internal/writers"
)

// textColumns is the width of wrapped text in a pipe.
const textColumns = 80

// printForecasts prints predictions of the same cluster side by side.
func printForecasts(w io.Writer, list []*predicted, p *predictor) error {
	columns := columnsOf(w)
	if columns == 0 {
		columns = textColumns
	}
	var b strings.Builder
	first := list[0]
	heading := fmt.Sprintf("predicted, not measured: %s parameters on %s\n", writers.Count(first.Parameters), clusterText(first.machine))
	heading += fmt.Sprintf("programs of backend %s; %s tokens a step", backendName(first.Backend, first.Device), writers.Count(first.TokensPerStep))
	if p.run.tokens > 0 {
		heading += fmt.Sprintf("; %s tokens: %s", p.run.tokensText, plural(first.Prediction.Steps, "step"))
	}
	b.WriteString(writers.Reflow(heading+"\n", columns))
	for _, r := range list {
		for _, note := range slices.Concat(r.Notes, r.Prediction.Notes) {
			if text := "note: " + note + "\n"; !strings.Contains(b.String(), text) {
				b.WriteString(text)
			}
		}
	}
	columnTables(&b, columns, forecastRows(list, p.run), memoryRows(list), classRows(list))
	if slices.ContainsFunc(list, func(r *predicted) bool { return r.Prediction.WireSeconds > 0 }) {
		b.WriteString("\ncommunication is the time for which the device waits; all collectives include\nwhat the device's own work hides\n")
	}
	effects(&b, columns, list)
	numbersTable(&b, columns, list)
	doubts(&b, list)
	if _, err := io.WriteString(w, writers.Reflow(b.String(), columns)); err != nil {
		return err
	}
	for _, r := range list {
		if len(r.Prediction.Sweep) > 0 {
			if err := r.printSweep(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// clusterText describes a cluster: "256 H100 SXM (32 nodes of 8)".
func clusterText(m cost.Machine) string {
	title := cmp.Or(m.Title, m.Device)
	switch {
	case m.Calibration != nil && m.Device == m.Calibration.Backend: // the device of the calibration itself
		return fmt.Sprintf("backend %s, %s; ranks: %d", m.Device, title, m.Devices())
	case m.Devices() == 1:
		return "one " + title
	case m.Nodes == 1:
		return fmt.Sprintf("%s %s (one node)", writers.Count(int64(m.Devices())), title)
	}
	return fmt.Sprintf("%s %s (%s of %d)", writers.Count(int64(m.Devices())), title, plural(int64(m.Nodes), "node"), m.PerNode)
}

// tableRow is a line of a table that has a column for each recipe.
type tableRow struct {
	label string
	cells []string
}

// columnTables prints tables one below the other, with common columns. If they are wider than
// columns, it prints several groups.
func columnTables(b *strings.Builder, columns int, tables ...[]tableRow) {
	all := slices.Concat(tables...)
	label, cell := 20, 12
	for _, r := range all {
		label = max(label, utf8.RuneCountInString(r.label))
		for _, c := range r.cells {
			cell = max(cell, utf8.RuneCountInString(c))
		}
	}
	const between = 2
	n := len(all[0].cells)
	perGroup := max(1, (columns-label)/(cell+between))
	for from := 0; from < n; from += perGroup {
		for _, rows := range tables {
			b.WriteByte('\n')
			for _, r := range rows {
				line := fmt.Sprintf("%-*s", label, r.label)
				for _, c := range r.cells[min(from, len(r.cells)):min(from+perGroup, len(r.cells))] {
					line += fmt.Sprintf("%*s", cell+between, c)
				}
				b.WriteString(strings.TrimRight(line, " ") + "\n")
			}
		}
	}
}

// newRow returns a row with a cell for each prediction.
func newRow(label string, list []*predicted, cell func(*predicted) string) tableRow {
	r := tableRow{label: label}
	for _, x := range list {
		r.cells = append(r.cells, cell(x))
	}
	return r
}

func forecastRows(list []*predicted, run runFlags) (rows []tableRow) {
	add := func(label string, cell func(*predicted) string) { rows = append(rows, newRow(label, list, cell)) }
	add("recipe", func(r *predicted) string { return r.Recipe })
	rate := func(x float64) string { return writers.Count(int64(x)) }
	add("tokens/s", func(r *predicted) string { return rate(r.Prediction.TokensPerS) })
	add("  low", func(r *predicted) string { return rate(r.tokensPerS(1)) })
	add("  high", func(r *predicted) string { return rate(r.tokensPerS(0)) })
	if len(list) > 1 {
		add("  against the first", func(r *predicted) string {
			return fmt.Sprintf("%.2f", r.Prediction.TokensPerS/list[0].Prediction.TokensPerS)
		})
	}
	add("step", func(r *predicted) string { return duration(r.Prediction.StepSeconds) })
	add("share of BF16 peak", func(r *predicted) string { return percentage(r.Prediction.MFU) })
	if run.tokens > 0 {
		days := func(x float64) string { return duration(x * 86400) }
		add("whole run", func(r *predicted) string { return days(r.Prediction.Days) })
		add("  low", func(r *predicted) string { return days(r.Prediction.DaysBand[0]) })
		add("  high", func(r *predicted) string { return days(r.Prediction.DaysBand[1]) })
	}
	if run.price > 0 {
		add("cost", func(r *predicted) string { return writers.Count(int64(math.Round(r.Prediction.Cost))) })
	}
	if run.tokens > 0 {
		add("energy", func(r *predicted) string { return quantityOr(r.Prediction.KWh, 1e3, "Wh") })
	}
	if run.grid > 0 {
		add("CO2", func(r *predicted) string {
			if r.Prediction.CO2 < 1000 {
				return quantityOr(r.Prediction.CO2, 1e3, "g")
			}
			return writers.Quantity(r.Prediction.CO2/1000, "t")
		})
	}
	add("checkpoint", func(r *predicted) string { return writers.Bytes(r.Prediction.Save) })
	add("  copied by a rank", func(r *predicted) string { return writers.Bytes(r.Memory.Snapshot) })
	add("  written in", func(r *predicted) string { return duration(r.Prediction.Write) })
	add("  every", func(r *predicted) string { return duration(r.Prediction.Interval) })
	add("lost to failures", func(r *predicted) string { return percentage(r.Prediction.Lost) })
	return rows
}

// memoryRows lists the memory of one rank by use, in bytes and in bytes for each parameter of the
// model.
func memoryRows(list []*predicted) []tableRow {
	rows := []tableRow{newRow("memory of one rank", list, func(*predicted) string { return "per parameter" })}
	add := func(label string, bytes func(*predicted) int64) {
		rows = append(rows, newRow(label, list, func(r *predicted) string {
			n := bytes(r)
			return fmt.Sprintf("%s %6.2f", writers.Bytes(n), float64(n)/float64(max(1, r.Parameters)))
		}))
	}
	for i, l := range list[0].Memory.Lines {
		add("  "+l.Name, func(r *predicted) int64 { return r.Memory.Lines[i].Layers + r.Memory.Lines[i].Rest })
	}
	add("  activations", func(r *predicted) int64 { return r.Memory.Arena })
	add("  driver, buffers", func(r *predicted) int64 { return totalOf(r.Memory.Beside) + totalOf(r.Memory.Outside) })
	add("  sum", func(r *predicted) int64 { return r.Prediction.Need })
	return append(rows, newRow("  a device has", list, func(r *predicted) string {
		return writers.Bytes(r.Prediction.Capacity) + strings.Repeat(" ", 7)
	}))
}

// tokensPerS returns the speed at an end of the band: 0 for the short step, 1 for the long one.
func (r *predicted) tokensPerS(end int) float64 {
	return r.Prediction.TokensPerS * r.Prediction.StepSeconds / r.Prediction.Band[end]
}

// classOf returns the class of a name; its time is 0 if the prediction has none.
func (r *predicted) classOf(name string) cost.ClassTime {
	for _, c := range r.Prediction.Classes {
		if c.Name == name {
			return c
		}
	}
	return cost.ClassTime{}
}

// classNames returns the names of the classes of all predictions: the GEMMs first, then the other
// classes in their order.
func classNames(list []*predicted) (names []string) {
	gemms := 0
	for _, r := range list {
		at := gemms
		for _, c := range r.Prediction.Classes {
			switch i := slices.Index(names, c.Name); {
			case i >= 0:
				at = i + 1
			case strings.HasPrefix(c.Name, "GEMMs"):
				names = slices.Insert(names, gemms, c.Name)
				gemms++
				at = gemms
			default:
				names = slices.Insert(names, max(at, gemms), c.Name)
				at = max(at, gemms) + 1
			}
		}
	}
	return names
}

func classRows(list []*predicted) []tableRow {
	bound := 0 // the longest name of a bound
	for _, r := range list {
		for _, c := range r.Prediction.Classes {
			bound = max(bound, len(c.Bound))
		}
	}
	rows := []tableRow{newRow("share of the step", list, func(*predicted) string { return "bound by" })}
	for _, name := range classNames(list) {
		rows = append(rows, newRow("  "+name, list, func(r *predicted) string {
			c := r.classOf(name)
			if c.Seconds == 0 {
				return unknown
			}
			return fmt.Sprintf("%s %-*s", percentage(c.Share), bound, c.Bound)
		}))
	}
	wire := newRow("  all collectives", list, func(r *predicted) string {
		return fmt.Sprintf("%s %*s", percentage(r.Prediction.WireSeconds/r.Prediction.StepSeconds), bound, "")
	})
	if slices.ContainsFunc(list, func(r *predicted) bool { return r.Prediction.WireSeconds > 0 }) {
		rows = append(rows, wire)
	}
	return rows
}

// effectsShown is the number of assumptions whose effect is printed.
const effectsShown = 4

// effects prints what the ranges of the weakest assumptions do to the step.
func effects(b *strings.Builder, columns int, list []*predicted) {
	type ranked struct {
		name  string
		worst float64 // the largest ratio of both ends
		of    *predicted
		at    cost.Effect
	}
	var all []ranked
	for _, r := range list {
		for _, e := range r.Prediction.Effects {
			x := ranked{e.Name, e.High / e.Low, r, e}
			if i := slices.IndexFunc(all, func(y ranked) bool { return y.name == x.name }); i < 0 {
				all = append(all, x)
			} else if x.worst > all[i].worst {
				all[i] = x
			}
		}
	}
	if len(all) == 0 {
		b.WriteString("\nno number below has a range: the band is the error of the calibration's curves\n")
		return
	}
	slices.SortStableFunc(all, func(x, y ranked) int { return cmp.Compare(y.worst, x.worst) })
	all = all[:min(len(all), effectsShown)]
	weakest := all[0]
	n := weakest.of.machine.Numbers[weakest.name]
	of := ""
	if len(list) > 1 {
		of = " of " + weakest.of.Recipe
	}
	fmt.Fprintf(b, "\nweakest assumption: %s = %s (%s: %s); from %s to %s, the step%s takes %s\n",
		weakest.name, plain(n.Value), n.Kind(), n.Source(), plain(n.Low), plain(n.High), of, effectWords(weakest.at))
	rows := []tableRow{newRow("range", list, func(r *predicted) string { return r.Recipe })}
	for _, x := range all {
		n := list[0].machine.Numbers[x.name]
		label := fmt.Sprintf("  %s %s to %s", x.name, plain(n.Low), plain(n.High))
		rows = append(rows, newRow(label, list, func(r *predicted) string {
			for _, e := range r.Prediction.Effects {
				if e.Name == x.name {
					return fmt.Sprintf("%s to %s %%", change(e.Low), change(e.High))
				}
			}
			return unknown
		}))
	}
	columnTables(b, columns, rows)
}

// change writes a ratio as a change in percent, and none as 0 without a sign.
func change(ratio float64) string {
	x := math.Round(100 * (ratio - 1))
	if x == 0 {
		return "0"
	}
	return fmt.Sprintf("%+.0f", x)
}

// effectWords writes an effect: "2 % less to 21 % more time".
func effectWords(e cost.Effect) string {
	less, more := fmt.Sprintf("%.0f %% less", 100*(1-e.Low)), fmt.Sprintf("%.0f %% more", 100*(e.High-1))
	switch {
	case e.Low == 1:
		return "up to " + more + " time"
	case e.High == 1:
		return "up to " + less + " time"
	}
	return less + " to " + more + " time"
}

// numbersTable lists the numbers that the predictions depend on.
func numbersTable(b *strings.Builder, columns int, list []*predicted) {
	used := map[string]cost.Origin{}
	var names []string
	for _, r := range list {
		for _, o := range r.Prediction.Assumptions {
			if _, ok := used[o.Name]; !ok {
				names = append(names, o.Name)
			}
			used[o.Name] = o
		}
	}
	slices.Sort(names)
	name, value := len("number"), len("value")
	for _, n := range names {
		name, value = max(name, len(n)), max(value, len(plain(used[n].Value)))
	}
	line := func(n, v, origin, text string) {
		lead := fmt.Sprintf("  %-*s  %*s  %-9s  ", name, n, value, v, origin)
		wrapped := strings.TrimSuffix(writers.Reflow(text+"\n", max(20, columns-len(lead))), "\n")
		b.WriteString(lead + strings.ReplaceAll(wrapped, "\n", "\n"+strings.Repeat(" ", len(lead))) + "\n")
	}
	b.WriteByte('\n')
	line("number", "value", "origin", "meaning: source")
	meaning := cost.Names()
	for _, n := range names {
		o := used[n]
		line(n, plain(o.Value), o.Kind, meaning[n]+": "+o.Source)
	}
}

// doubts prints what no published row was compared with, and the ops that were not measured.
func doubts(b *strings.Builder, list []*predicted) {
	union := func(of func(*predicted) []string) (all []string) {
		for _, r := range list {
			all = append(all, of(r)...)
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	if doubt := union(func(r *predicted) []string { return r.Prediction.NotValidated }); len(doubt) > 0 {
		fmt.Fprintf(b, "\nnot validated: %s\n", strings.Join(doubt, ", "))
	}
	if missing := union(func(r *predicted) []string { return r.Prediction.Unmeasured }); len(missing) > 0 {
		const shown = 3
		more := ""
		if len(missing) > shown {
			more = fmt.Sprintf(" and %d more", len(missing)-shown)
		}
		fmt.Fprintf(b, "\nnot in the calibration, so predicted as the same ops with other formats, or by their roofline: %s of op: %s%s\n",
			plural(int64(len(missing)), "kind"), strings.Join(missing[:min(shown, len(missing))], "; "), more)
	}
}

// percentage writes a share with a decimal: "43.1 %"; unknown for 0.
func percentage(x float64) string {
	if x == 0 {
		return unknown
	}
	return fmt.Sprintf("%.1f %%", 100*x)
}

// quantityOr writes x times unit; unknown for 0.
func quantityOr(x, times float64, unit string) string {
	if x == 0 {
		return unknown
	}
	return writers.Quantity(x*times, unit)
}

// threeDigits writes a number with at least three digits and no exponent: "0.0123", "1.50",
// "50700".
func threeDigits(x float64) string {
	if x == 0 {
		return "0"
	}
	return strconv.FormatFloat(x, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(x))))), 64)
}

// plain writes a number of a table as it is, with at most six digits: "0.85", "50700".
func plain(x float64) string {
	if math.Abs(x) >= 1e6 || x != 0 && math.Abs(x) < 1e-3 {
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// duration writes seconds in the unit that suits them: "12.3 ms", "33 min".
func duration(seconds float64) string {
	for _, u := range []struct {
		size, upTo float64
		name       string
	}{{1e-3, 1, "ms"}, {1, 120, "s"}, {60, 7200, "min"}, {3600, 172800, "h"}} {
		if seconds < u.upTo {
			return threeDigits(seconds/u.size) + " " + u.name
		}
	}
	return threeDigits(seconds/86400) + " days"
}
