package chart

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Chart is a chart of lines over a common x axis.
type Chart struct {
	Title string
	X, Y  Axis
	Lines []Line
	Marks []Mark
}

// Line is a line of a chart. X and Y have the same length; X does not decrease, unless the
// line is of dots alone. A Y that is not finite is a gap. Lines with the same Look have the same colour and dashes; two
// Looks that differ by [Colors] share the colour alone.
type Line struct {
	Name      string // in the legend; empty: the line is not in it
	X, Y      []float64
	Low, High []float64 // limits of the band around the line; nil: no band
	Look      int
	Dots      bool // dots alone, as in a scatter plot
}

// Mark is a vertical line at a position of the x axis.
type Mark struct {
	X    float64
	Text string // shown when the reader points at the line
}

// Sizes of the axes' frame and of the parts around it, in pixels.
const (
	width, height   = 480.0, 260.0
	leftOf, rightOf = 64.0, 16.0
	above, below    = 32.0, 46.0
	lineHeight      = 20.0
	charWidth       = 7.2 // of the legend's text, on average
)

// drawing is an SVG element that is being written.
type drawing struct {
	bytes.Buffer
	width, height float64
}

// open begins the element. Its name is title; note says more to readers who do not see it.
func (d *drawing) open(width, height float64, title, note string) {
	d.width, d.height = width, height
	fmt.Fprintf(d, `<svg class="chart" viewBox="0 0 %s %s" width="%[1]s" height="%[2]s" role="img" aria-label="%s">`,
		number(width), number(height), Escape(title+". "+note))
	fmt.Fprintf(d, `<rect class="frame" width="%s" height="%s"/>`, number(width), number(height))
	d.text(leftOf, 20, "start", "title", title)
}

func (d *drawing) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(d, `<text x="%s" y="%s" text-anchor="%s"`, number(x), number(y), anchor)
	if class != "" {
		fmt.Fprintf(d, ` class="%s"`, class)
	}
	fmt.Fprintf(d, ">%s</text>", Escape(text))
}

// Escape writes text for the inside of an element or an attribute, in SVG and HTML. Control
// characters, which SVG files cannot hold, become U+FFFD.
func Escape(text string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}, text))
}

// number writes a position with a tenth of a pixel.
func number(v float64) string {
	return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64)
}

// Picture is a [Chart], a [HeatMap] or [Bars].
type Picture interface{ draw() drawing }

// File returns an SVG file with pictures, each below the one before. It needs no other file and
// follows the reader's colour scheme.
func File(pictures ...Picture) []byte {
	var body bytes.Buffer
	width, height, narrow := 0.0, 0.0, false
	for _, p := range pictures {
		d := p.draw()
		narrow = narrow || width > 0 && d.width != width
		fmt.Fprintf(&body, `<g transform="translate(0 %s)">%s</g>`, number(height), d.Bytes())
		width, height = max(width, d.width), height+d.height
	}
	back := "" // beside pictures that are narrower than others
	if narrow {
		back = fmt.Sprintf(`<g class="chart"><rect class="frame" width="%s" height="%s"/></g>`, number(width), number(height))
	}
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%[1]s" height="%[2]s"><style>%s</style>%s%s</svg>`+"\n",
		number(width), number(height), Style(), back, body.Bytes())
}

// SVG returns the chart as an element of a page, which needs the rules of [Style].
func (c *Chart) SVG() []byte {
	d := c.draw()
	return d.Bytes()
}

func (c *Chart) draw() (d drawing) {
	var xs, ys [][]float64
	for _, l := range c.Lines {
		xs, ys = append(xs, l.X), append(ys, l.Y, l.Low, l.High)
	}
	x := newScale(c.X, leftOf, leftOf+width, xs...)
	y := newScale(c.Y, above+height, above, ys...)
	if c.Y.Min == c.Y.Max {
		y.pad(0.04)
	}
	legend := c.legend()
	d.open(leftOf+width+rightOf, above+height+below+lineHeight*float64(len(legend)), c.Title, c.note())
	d.axes(x, y, c.X.Label, c.Y.Label)
	// Lines beyond the axes' ends are clipped by a nested element, which needs no id. It has room
	// for the dots at the ends.
	fmt.Fprintf(&d, `<svg x="%s" y="%s" width="%s" height="%s" viewBox="%[1]s %[2]s %[3]s %[4]s">`,
		number(leftOf-dotRadius), number(above-dotRadius), number(width+2*dotRadius), number(height+2*dotRadius))
	for _, l := range c.Lines {
		if l.Low != nil {
			d.band(x, y, l)
		}
	}
	for _, l := range c.Lines {
		d.line(x, y, l)
	}
	for _, m := range c.Marks {
		if at := x.at(m.X); !math.IsNaN(at) {
			fmt.Fprintf(&d, `<path class="mark" d="M%s %sV%s"><title>%s</title></path>`, number(at), number(above), number(above+height), Escape(m.Text))
		}
	}
	d.WriteString("</svg>")
	d.legend(c.Lines, legend, above+height+below)
	d.WriteString("</svg>")
	return d
}

// note describes the chart to readers who do not see it.
func (c *Chart) note() string {
	note := fmt.Sprintf("A chart of %s over %s.", c.Y.Label, c.X.Label)
	for i, l := range c.Lines {
		if i == 8 {
			return note + fmt.Sprintf(" %d more lines.", len(c.Lines)-i)
		}
		if last := lastFinite(l.Y); l.Name != "" && last >= 0 {
			note += fmt.Sprintf(" %s ends at %s.", l.Name, Number(l.Y[last]))
		}
	}
	return note
}

// lastFinite returns the index of the last finite value; -1 if there is none.
func lastFinite(y []float64) int {
	for i := len(y) - 1; i >= 0; i-- {
		if !math.IsNaN(y[i]) && !math.IsInf(y[i], 0) {
			return i
		}
	}
	return -1
}

// axes draws the grid, the numbers and the labels.
func (d *drawing) axes(x, y scale, xLabel, yLabel string) {
	left, right, bottom, top := x.from, x.to, y.from, y.to
	for _, t := range y.ticks(max(2, int((bottom-top)/44))) {
		at := y.at(t.value)
		fmt.Fprintf(d, `<path class="grid" d="M%s %sH%s"/>`, number(left), number(at), number(right))
		d.text(left-6, at+4, "end", "", t.label)
	}
	for _, t := range x.ticks(max(2, int((right-left)/80))) {
		at := x.at(t.value)
		fmt.Fprintf(d, `<path class="grid" d="M%s %sV%s"/>`, number(at), number(top), number(bottom))
		d.text(at, bottom+17, "middle", "", t.label)
	}
	d.text((left+right)/2, bottom+36, "middle", "", xLabel)
	if yLabel != "" {
		fmt.Fprintf(d, `<text transform="translate(14 %s)rotate(-90)" text-anchor="middle">%s</text>`, number((top+bottom)/2), Escape(yLabel))
	}
}

// dotted is the number of points up to which a line has a dot at each.
const (
	dotted    = 24
	dotRadius = 2.5 // pixels
)

// line draws a line without its gaps, with dots at points that a line would not show.
func (d *drawing) line(x, y scale, l Line) {
	color, dash := look(l.Look)
	if l.Dots {
		for i := range l.X {
			d.dot(color, point{x.at(l.X[i]), y.at(l.Y[i])})
		}
		return
	}
	fmt.Fprintf(d, `<path class="line c%d"`, color)
	if dash != "" {
		fmt.Fprintf(d, ` stroke-dasharray="%s"`, dash)
	}
	d.WriteString(` d="`)
	points := thin(x, y, l.X, l.Y)
	var dots []point
	for i, p := range points {
		gapBefore := i == 0 || math.IsNaN(points[i-1].y)
		gapAfter := i+1 == len(points) || math.IsNaN(points[i+1].y)
		if math.IsNaN(p.y) {
			continue
		}
		d.point(p, gapBefore)
		if len(points) <= dotted || gapBefore && gapAfter {
			dots = append(dots, p)
		}
	}
	d.WriteString(`"/>`)
	for _, p := range dots {
		d.dot(color, p)
	}
}

// dot draws a dot, or nothing for a gap.
func (d *drawing) dot(color int, p point) {
	if !math.IsNaN(p.x) && !math.IsNaN(p.y) {
		fmt.Fprintf(d, `<circle class="dot b%d" cx="%s" cy="%s" r="%s"/>`, color, number(p.x), number(p.y), number(dotRadius))
	}
}

// point continues a path.
func (d *drawing) point(p point, move bool) {
	command := byte('L')
	if move {
		command = 'M'
	}
	d.WriteByte(command)
	d.WriteString(number(p.x))
	d.WriteByte(' ')
	d.WriteString(number(p.y))
}

// band fills the area between Low and High, once for each run of points without a gap.
func (d *drawing) band(x, y scale, l Line) {
	color, _ := look(l.Look)
	low, high := thin(x, y, l.X, l.Low), thin(x, y, l.X, l.High)
	fmt.Fprintf(d, `<path class="band b%d" d="`, color)
	for len(low) > 0 && len(high) > 0 {
		m, n := unbroken(low), unbroken(high)
		for i, p := range low[:m] {
			d.point(p, i == 0)
		}
		for i := n - 1; i >= 0 && m > 0; i-- {
			d.point(high[i], false)
		}
		if m > 0 {
			d.WriteByte('Z')
		}
		low, high = low[min(len(low), m+1):], high[min(len(high), n+1):]
	}
	d.WriteString(`"/>`)
}

// unbroken returns the number of points before the first gap.
func unbroken(list []point) int {
	for i, p := range list {
		if math.IsNaN(p.y) {
			return i
		}
	}
	return len(list)
}

// entry is a name in the legend.
type entry struct {
	at    float64 // from the left
	index int     // of the name
}

// legend arranges the names of the lines in rows; lines of one look and name share an entry.
func (c *Chart) legend() [][]entry {
	type key struct {
		name string
		look int
	}
	seen := map[key]bool{}
	names := make([]string, len(c.Lines))
	for i, l := range c.Lines {
		if k := (key{l.Name, l.Look}); !seen[k] {
			seen[k], names[i] = true, l.Name
		}
	}
	return arrange(names, leftOf, leftOf+width)
}

// arrange places the names that are not empty in rows.
func arrange(names []string, left, right float64) (rows [][]entry) {
	end := math.Inf(1)
	for i, name := range names {
		if name == "" {
			continue
		}
		wide := 44 + charWidth*float64(len([]rune(name)))
		if end+wide > right {
			rows, end = append(rows, nil), left
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], entry{end, i})
		end += wide
	}
	return rows
}

func (d *drawing) legend(lines []Line, rows [][]entry, top float64) {
	for i, row := range rows {
		at := top + lineHeight*float64(i) + 8
		for _, e := range row {
			line := lines[e.index]
			color, dash := look(line.Look)
			if line.Dots {
				d.dot(color, point{e.at + 12, at - 4})
				d.text(e.at+30, at, "start", "", line.Name)
				continue
			}
			fmt.Fprintf(d, `<path class="line c%d" stroke-dasharray="%s" d="M%s %sh24"/>`, color, dash, number(e.at), number(at-4))
			d.text(e.at+30, at, "start", "", line.Name)
		}
	}
}
