package main

import (
	"fmt"
	"io"
	"math"

	"octet/internal/stats"
	"octet/internal/sweep"
	"octet/study/internal/finding"
)

// comparisons are sweeps of two recipes, the second against the first, each with a prediction of
// before its runs: the mean difference of the validation losses is within so many percent of zero,
// and within two of its standard errors.
var comparisons = []struct {
	folder  string
	allowed float64
}{{"paper-seeds", 0.5}, {"smooth-all", 0.3}}

// pairs prints the comparisons, whose sweeps are in dir.
func pairs(w io.Writer, dir string) error {
	var l finding.List
	var rows [][]string
	for _, c := range comparisons {
		groups, err := sweep.Complete(dir + "/" + c.folder)
		if err != nil {
			return err
		}
		if len(groups) != 2 {
			return fmt.Errorf("%s/%s has %d variants: it is not a sweep of study/sweeps/%[2]s.toml", dir, c.folder, len(groups))
		}
		base, other := groups[0], groups[1]
		d := stats.PairedOf(finding.Above(finding.ValLosses(other.Runs), finding.ValLosses(base.Runs)))
		measured := fmt.Sprintf("%+.3f ± %.3f %%", d.Mean, d.StdErr)
		rows = append(rows, []string{"`" + other.Name + "` against `" + base.Name + "`", fmt.Sprint(d.N), measured, fmt.Sprintf("%+.2f … %+.2f %%", d.Min, d.Max), fmt.Sprintf("%.2g", d.P)})
		l.Check(fmt.Sprintf("`%s` is within %g %% of `%s`, and within two standard errors", other.Name, c.allowed, base.Name), measured,
			math.Abs(d.Mean) <= c.allowed && math.Abs(d.Mean) <= 2*d.StdErr)
	}
	if err := finding.Table(w, "Two recipes, more seeds", []string{"validation loss", "seeds", "difference", "range", "p"}, rows); err != nil {
		return err
	}
	return l.Write(w)
}
