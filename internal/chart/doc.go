// Package chart draws line charts, heat maps and stacked bars as SVG, and small line charts as
// text for terminals.
//
// A drawing is an element of a page, which needs the rules of [Style] and no script, font or
// other file. Its colours follow the reader's colour scheme, light or dark. Lines differ in
// dashes as well as in colour, the SVG has an accessible name, and [Chart.Table] returns the
// numbers of a chart.
//
//	c := chart.Chart{Title: "Loss", X: chart.Axis{Label: "step"}, Lines: []chart.Line{{Name: "bf16", X: steps, Y: loss}}}
//	page.Write(c.SVG())
package chart
