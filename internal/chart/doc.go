// Package chart draws line charts and heat maps as SVG, and small line charts as text for
// terminals.
//
// A drawing needs no script, font or other file. Its colours follow the reader's colour
// scheme, light or dark. Lines differ in dashes as well as in colour, the SVG has an
// accessible name, and [Chart.Table] returns the numbers behind a chart.
//
//	c := chart.Chart{Title: "Loss", X: chart.Axis{Label: "step"}, Lines: []chart.Line{{Name: "bf16", X: steps, Y: loss}}}
//	err := os.WriteFile("loss.svg", c.File(), 0o644)
//
// In a page, [Chart.SVG] returns the element and [Style] the rules for all charts.
package chart
