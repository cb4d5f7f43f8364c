package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"octet/backend"
	"octet/internal/writers"
	"octet/run"
)

// profileText writes the time of the profiled steps by op and by module, beside the
// device's peaks.
func profileText(p *run.Profile, r *run.Run) string {
	var b strings.Builder
	rank := ""
	if r.Config.Train.Ranks > 1 {
		rank = " on the first rank"
	}
	fmt.Fprintf(&b, "\nprofile of %d steps%s, %.4g ms each\n", p.Spans(), rank, perStep(p, p.Elapsed()))
	if p.Peaks != (backend.Peaks{}) {
		fmt.Fprintf(&b, "peaks measured just before: %s, copy %s\n",
			writers.Quantity(p.Peaks.FLOPs, "FLOP/s"), writers.Quantity(p.Peaks.Bytes, "B/s"))
	}
	printRows(&b, "op", p, backend.OpKind)
	printRows(&b, "module", p, backend.Module)
	fmt.Fprintf(&b, "\nroof: the time at these peaks over the time measured; above 100%% if operands are\ncached or updated in place. Trace of every op, for ui.perfetto.dev or\nchrome://tracing: %s\n\n", p.Trace)
	return b.String()
}

// printRows prints one table. The time between the ops is that of the host.
func printRows(w io.Writer, title string, p *run.Profile, name func(*backend.Node) string) {
	fmt.Fprintf(w, "\n%-33s %8s %6s %5s %8s %7s %6s\n", title, "ms/step", "share", "calls", "GFLOP/s", "GB/s", "roof")
	all, small := backend.Row{Name: "all ops"}, backend.Row{Name: "others"}
	for _, row := range p.Rows(p.Peaks, name) {
		all = sumOf(all, row)
		if float64(row.Time) < minShownShare*float64(p.Elapsed()) {
			small = sumOf(small, row)
		} else {
			printRow(w, p, row)
		}
	}
	if small.Calls > 0 {
		printRow(w, p, small)
	}
	printRow(w, p, all)
	printRow(w, p, backend.Row{Name: "between the ops", Time: p.Elapsed() - all.Time})
}

// minShownShare is the share of the time below which rows are merged into "others".
const minShownShare = 0.0005

func sumOf(a, b backend.Row) backend.Row {
	a.Calls += b.Calls
	a.Time += b.Time
	a.Cost.FLOPs += b.Cost.FLOPs
	a.Cost.Bytes += b.Cost.Bytes
	a.Floor += b.Floor
	return a
}

func printRow(w io.Writer, p *run.Profile, row backend.Row) {
	rate := func(n int64) string {
		if n == 0 || row.Time == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f", float64(n)/float64(row.Time)) // one per nanosecond is a billion per second
	}
	calls, roof := "", ""
	if row.Calls > 0 {
		calls = fmt.Sprint((row.Calls + p.Spans()/2) / p.Spans())
	}
	if row.Floor > 0 && row.Time > 0 {
		roof = percent(float64(row.Floor) / float64(row.Time))
	}
	line := fmt.Sprintf("%-33s %8.2f %6s %5s %8s %7s %6s", row.Name, perStep(p, row.Time),
		fmt.Sprintf("%.1f%%", 100*float64(row.Time)/float64(p.Elapsed())), calls, rate(row.Cost.FLOPs), rate(row.Cost.Bytes), roof)
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// perStep returns the milliseconds of a step.
func perStep(p *run.Profile, d time.Duration) float64 {
	return float64(d) / float64(p.Spans()) / float64(time.Millisecond)
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }
