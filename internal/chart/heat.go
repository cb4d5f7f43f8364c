package chart

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"unicode/utf8"
)

// HeatMap shows values of rows over a common x axis as colours.
type HeatMap struct {
	Title  string
	X      Axis
	Values Axis     // of the colours
	Rows   []string // names, from the top
	At     []float64
	// Data has, for each row, a value for each element of At, which increases. A value that
	// is not finite has no colour.
	Data [][]float64
}

// Sizes of a heat map, in pixels.
const (
	heatWidth    = 480.0
	largestRow   = 15.0
	smallestRow  = 2.0
	wantedHeight = 900.0 // of all rows together
	keyHeight    = 44.0
	rowCharWidth = 6.0 // of the rows' names, on average
)

// heatColumns is the maximum number of columns of a heat map's image.
const heatColumns = 480

// SVG returns the heat map as an element of a page, which needs the rules of [Style].
func (m *HeatMap) SVG() []byte {
	d := m.draw()
	return d.Bytes()
}

func (m *HeatMap) draw() (d drawing) {
	row := min(largestRow, max(smallestRow, wantedHeight/float64(max(1, len(m.Rows)))))
	height, left := row*float64(len(m.Rows)), leftOf
	for _, name := range m.Rows {
		left = max(left, 12+rowCharWidth*float64(utf8.RuneCountInString(name)))
	}
	x := newScale(m.axis(), left, left+heatWidth)
	values := newScale(m.Values, left, left+heatWidth, m.Data...)
	d.open(left+heatWidth+rightOf, above+height+below+keyHeight, m.Title, m.note())
	every := int(math.Ceil(largestRow / row)) // rows that have one label
	for i := 0; i < len(m.Rows); i += every {
		d.text(left-6, above+row*(float64(i)+0.5)+4, "end", "row", m.Rows[i])
	}
	if len(m.Rows) > 0 && len(m.At) > 0 {
		d.image(left, above, heatWidth, height, m.picture(values))
	}
	for _, t := range x.ticks(6) {
		d.text(x.at(t.value), above+height+17, "middle", "", t.label)
	}
	d.text(left+heatWidth/2, above+height+36, "middle", "", m.X.Label)
	d.key(values, m.Values.Label, above+height+below)
	d.WriteString("</svg>")
	return d
}

func (m *HeatMap) note() string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, row := range m.Data {
		for _, v := range row {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if low > high {
		return fmt.Sprintf("A heat map of %d rows without a finite value.", len(m.Rows))
	}
	return fmt.Sprintf("A heat map of %s in %d rows over %s, from %s to %s.", m.Values.Label, len(m.Rows), m.X.Label, Number(low), Number(high))
}

// interval returns the median distance between elements of At.
func (m *HeatMap) interval() float64 {
	if len(m.At) < 2 {
		return 1
	}
	var distances []float64
	for i, at := range m.At[1:] {
		distances = append(distances, at-m.At[i])
	}
	slices.Sort(distances)
	return distances[len(distances)/2]
}

// axis returns the x axis, which begins and ends half an interval beyond the elements of At.
func (m *HeatMap) axis() Axis {
	a := m.X
	if n := len(m.At); n > 0 {
		a.Min, a.Max = m.At[0]-m.interval()/2, m.At[n-1]+m.interval()/2
	}
	return a
}

// picture colours the values: a row of pixels for each row, and a column for each interval
// of the x axis, where each element of At fills its own. Neighbours share a column if there
// are more than heatColumns; the column then shows the largest value.
func (m *HeatMap) picture(values scale) *image.Paletted {
	interval, axis := m.interval(), m.axis()
	columns := int(min(math.Round((axis.Max-axis.Min)/interval), heatColumns))
	p := image.NewPaletted(image.Rect(0, 0, columns, len(m.Rows)), heatPalette())
	values.from, values.to = 0, 254
	x := newScale(axis, 0, float64(columns))
	for i, row := range m.Data {
		for j, v := range row {
			v = values.at(v)
			if math.IsNaN(v) {
				continue
			}
			color := uint8(1 + math.Round(min(254, max(0, v))))
			from := min(columns-1, int(math.Round(x.at(m.At[j]-interval/2))))
			to := min(columns, int(math.Round(x.at(m.At[j]+interval/2))))
			for c := from; c < max(from+1, to); c++ {
				p.SetColorIndex(c, i, max(color, p.ColorIndexAt(c, i)))
			}
		}
	}
	return p
}

// image embeds a picture as a data URI and stretches it.
func (d *drawing) image(x, y, width, height float64, p *image.Paletted) {
	var buffer bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&buffer, p); err != nil {
		panic(err) // a bytes.Buffer does not fail, and p has pixels
	}
	fmt.Fprintf(d, `<image x="%s" y="%s" width="%s" height="%s" preserveAspectRatio="none" href="data:image/png;base64,%s"/>`,
		number(x), number(y), number(width), number(height), base64.StdEncoding.EncodeToString(buffer.Bytes()))
}

// key draws the colours with their values.
func (d *drawing) key(values scale, label string, top float64) {
	p := image.NewPaletted(image.Rect(0, 0, 255, 1), heatPalette())
	for i := range p.Pix {
		p.Pix[i] = uint8(1 + i)
	}
	d.image(values.from, top, heatWidth, 10, p)
	for _, t := range values.ticks(6) {
		d.text(values.at(t.value), top+25, "middle", "", t.label)
	}
	fmt.Fprintf(d, `<text x="%s" y="%s" text-anchor="end">%s</text>`, number(values.from-6), number(top+10), Escape(label))
}

// anchors are equidistant colours of viridis (van der Walt and Smith, 2015), whose lightness
// increases evenly.
var anchors = [...][3]float64{
	{68, 1, 84},
	{72, 40, 120},
	{62, 74, 137},
	{49, 104, 142},
	{38, 130, 142},
	{31, 158, 137},
	{53, 183, 121},
	{110, 206, 88},
	{181, 222, 43},
	{253, 231, 37},
}

// heatPalette returns no colour, then 255 colours from the lowest to the highest value.
func heatPalette() color.Palette {
	p := color.Palette{color.RGBA{}}
	for i := range 255 {
		at := float64(i) / 254 * float64(len(anchors)-1)
		k := min(int(at), len(anchors)-2)
		mix := func(channel int) uint8 {
			a, b := anchors[k][channel], anchors[k+1][channel]
			return uint8(math.Round(a + (at-float64(k))*(b-a)))
		}
		p = append(p, color.RGBA{mix(0), mix(1), mix(2), 255})
	}
	return p
}
