package chart

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// Bars are horizontal bars, each of parts side by side.
type Bars struct {
	Title string
	X     Axis     // of the sums of the parts; linear, and begins at 0
	Rows  []string // names, from the top
	Parts []string // names, in the legend
	// Data has, for each row, the size of each part. A value that is not positive or not finite
	// is left out.
	Data [][]float64
}

// Sizes of bars, in pixels.
const (
	barHeight   = 22.0
	barDistance = 34.0
)

// SVG returns the bars as an element of a page, which needs the rules of [Style].
func (m *Bars) SVG() []byte {
	d := m.draw()
	return d.Bytes()
}

func (m *Bars) draw() (d drawing) {
	left := leftOf
	for _, name := range m.Rows {
		left = max(left, 12+charWidth*float64(utf8.RuneCountInString(name)))
	}
	height := barDistance * float64(len(m.Rows))
	axis := m.X
	axis.Log, axis.Min, axis.Max = false, 0, m.longest()
	x := newScale(axis, left, left+width)
	legend := arrange(m.Parts, left, left+width)
	d.open(left+width+rightOf, above+height+below+lineHeight*float64(len(legend)), m.Title, m.note())
	for _, t := range x.ticks(6) {
		at := x.at(t.value)
		fmt.Fprintf(&d, `<path class="grid" d="M%s %sV%s"/>`, number(at), number(above), number(above+height))
		d.text(at, above+height+17, "middle", "", t.label)
	}
	d.text(left+width/2, above+height+36, "middle", "", m.X.Label)
	for i, row := range m.Data {
		top := above + barDistance*(float64(i)+0.5) - barHeight/2
		d.text(left-6, top+barHeight/2+4, "end", "", m.Rows[i])
		sum := 0.0
		for j, v := range row {
			if v = part(v); v == 0 {
				continue
			}
			d.bar(j, x.at(sum), top, x.at(sum+v)-x.at(sum), barHeight, fmt.Sprintf("%s: %s %s", m.Parts[j], Number(v), m.X.Label))
			sum += v
		}
	}
	for i, row := range legend {
		at := above + height + below + lineHeight*float64(i) + 8
		for _, e := range row {
			d.bar(e.index, e.at, at-11, 24, 13, m.Parts[e.index])
			d.text(e.at+30, at, "start", "", m.Parts[e.index])
		}
	}
	d.WriteString("</svg>")
	return d
}

// part returns the size of a part that is drawn; 0 for none. Sums of a few are finite.
func part(v float64) float64 {
	if v > 0 && v < math.MaxFloat64/1e6 {
		return v
	}
	return 0
}

// longest returns the largest sum of a row.
func (m *Bars) longest() (longest float64) {
	for _, row := range m.Data {
		sum := 0.0
		for _, v := range row {
			sum += part(v)
		}
		longest = max(longest, sum)
	}
	return longest
}

// bar draws a part. Parts that share a colour differ in opacity.
func (d *drawing) bar(part int, x, y, width, height float64, text string) {
	color, _ := look(part)
	fmt.Fprintf(d, `<rect class="bar b%d" x="%s" y="%s" width="%s" height="%s"`, color, number(x), number(y), number(width), number(height))
	if part >= Colors {
		d.WriteString(` opacity=".5"`)
	}
	fmt.Fprintf(d, `><title>%s</title></rect>`, Escape(text))
}

// note describes the bars to readers who do not see them.
func (m *Bars) note() string {
	note := "Bars of " + m.X.Label + "."
	for i, row := range m.Data {
		sum := 0.0
		for _, v := range row {
			sum += part(v)
		}
		note += fmt.Sprintf(" %s: %s.", m.Rows[i], Number(sum))
	}
	return note
}
