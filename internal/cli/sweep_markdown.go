package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"octet/internal/sweep"
)

// printSweepMarkdown prints the tables of a sweep as Markdown, for documents: one for each
// baseline, with the losses and the records of the variants that are compared with it.
func printSweepMarkdown(to io.Writer, s *sweep.Sweep) error {
	summaries, records := s.Summaries(), s.Records()
	var text strings.Builder
	for _, base := range s.Variants {
		if base.Baseline != nil {
			continue
		}
		if text.Len() > 0 {
			text.WriteByte('\n')
		}
		markdownRow(&text, "variant", "runs", "mean loss", fmt.Sprintf("against `%s`", base.Name), "p", "range", "worst step", "largest update", "spikes", "bytes per parameter", "per activation", "sent", "step")
		markdownRow(&text, slices.Repeat([]string{"---"}, 13)...)
		for i, v := range summaries {
			if v.Variant != base && v.Variant.Baseline != base {
				continue
			}
			mean, extent := "–", "–"
			if v.Done > 0 {
				mean = lossNumber(v.Mean)
			}
			if d := v.Difference; d.N > 1 {
				extent = fmt.Sprintf("%+.2f … %+.2f %%", d.Min, d.Max)
			}
			difference, p := differenceTexts(v)
			if v.Difference.N > 0 {
				difference += " %"
			}
			cells := recordCells(records[i], s.Bytes(v.Variant))
			for _, cell := range []*string{&difference, &extent, &cells[0]} {
				*cell = strings.ReplaceAll(*cell, "-", "−")
			}
			markdownRow(&text, append([]string{"`" + v.Variant.Name + "`", fmt.Sprint(v.Done), mean, difference, p, extent}, cells...)...)
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}

func markdownRow(to *strings.Builder, cells ...string) {
	to.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
