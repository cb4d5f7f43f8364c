package chart

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// WriteText draws lines of a chart in a terminal, in rows rows of at most columns
// characters, with the ends of both axes. It uses Braille patterns, of which each has two by
// four dots; with ascii, it uses an asterisk for each character that has a dot.
func (c *Chart) WriteText(w io.Writer, columns, rows int, ascii bool) error {
	const margin = 10 // for the numbers of the y axis
	columns = max(8, columns-margin-1)
	down, across := 4, 2
	if ascii {
		down, across = 1, 1
	}
	dots := newDots(columns*across, rows*down)
	var xs, ys [][]float64
	for _, l := range c.Lines {
		xs, ys = append(xs, l.X), append(ys, l.Y)
	}
	x := newScale(c.X, 0, float64(dots.width-1), xs...)
	y := newScale(c.Y, float64(dots.height-1), 0, ys...)
	for _, l := range c.Lines {
		dots.line(thin(x, y, l.X, l.Y))
	}
	top, bottom := y.max, y.min
	if c.Y.Log {
		top, bottom = math.Pow(10, top), math.Pow(10, bottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", c.Title)
	for r := range rows {
		label := ""
		switch r {
		case 0:
			label = Number(top)
		case rows - 1:
			label = Number(bottom)
		}
		fmt.Fprintf(&b, "%*s %s\n", margin-1, label, strings.TrimRight(dots.row(r, columns, across, down), " "))
	}
	left, right := Number(x.min), Number(x.max)
	room := columns - len(left) - 2 - utf8.RuneCountInString(c.X.Label)
	fmt.Fprintf(&b, "%*s %s%*s  %s\n", margin-1, "", left, max(1+len(right), room), right, c.X.Label)
	_, err := io.WriteString(w, b.String())
	return err
}

// dots are the dots of a drawing of text.
type dots struct {
	width, height int
	set           []bool
}

func newDots(width, height int) *dots { return &dots{width, height, make([]bool, width*height)} }

// line sets the dots of a line, without its gaps.
func (d *dots) line(points []point) {
	for i, p := range points {
		if math.IsNaN(p.y) {
			continue
		}
		from := p
		if i > 0 && !math.IsNaN(points[i-1].y) {
			from = points[i-1]
		}
		steps := max(1, int(math.Ceil(max(math.Abs(p.x-from.x), math.Abs(p.y-from.y)))))
		for s := range steps + 1 {
			at := float64(s) / float64(steps)
			x, y := int(math.Round(from.x+at*(p.x-from.x))), int(math.Round(from.y+at*(p.y-from.y)))
			if x >= 0 && x < d.width && y >= 0 && y < d.height {
				d.set[y*d.width+x] = true
			}
		}
	}
}

// brailleBits are the bits of a Braille pattern's dots, by row and column.
var brailleBits = [4][2]rune{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

// row returns a row of characters.
func (d *dots) row(r, columns, across, down int) string {
	text := make([]rune, columns)
	for c := range text {
		bits := rune(0)
		for i := range down {
			for j := range across {
				if d.set[(r*down+i)*d.width+c*across+j] {
					bits |= brailleBits[i][j]
				}
			}
		}
		switch {
		case bits == 0:
			text[c] = ' '
		case down == 1:
			text[c] = '*'
		default:
			text[c] = 0x2800 + bits
		}
	}
	return string(text)
}

// bars are the heights of a sparkline's characters.
var bars = []rune("▁▂▃▄▅▆▇█")

// Sparkline writes values as bars of at most columns characters, from 0 to the largest
// value. Neighbours share a character, which shows the largest; a value that is not finite
// is a space. With ascii, the bars are digits from 0 to 9.
func Sparkline(values []float64, columns int, ascii bool) string {
	glyphs := bars
	if ascii {
		glyphs = []rune("0123456789")
	}
	columns = max(0, min(columns, len(values)))
	highest := make([]float64, columns)
	for c := range highest {
		highest[c] = math.NaN()
		for _, v := range values[c*len(values)/columns : (c+1)*len(values)/columns] {
			if !math.IsNaN(v) && !math.IsInf(v, 0) && !(v <= highest[c]) {
				highest[c] = v
			}
		}
	}
	top := 0.0
	for _, v := range highest {
		if v > top {
			top = v
		}
	}
	text := slices.Repeat([]rune{' '}, columns)
	for c, v := range highest {
		if !math.IsNaN(v) {
			level := 0
			if top > 0 {
				level = int(math.Round(max(0, v) / top * float64(len(glyphs)-1)))
			}
			text[c] = glyphs[level]
		}
	}
	return string(text)
}
