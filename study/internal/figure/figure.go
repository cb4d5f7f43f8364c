// Package figure draws the common parts of the studies' plots.
package figure

import (
	"errors"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette is Okabe and Ito's, which colour-blind readers can distinguish, and a grey.
var palette = []color.Color{
	color.RGBA{R: 0, G: 114, B: 178, A: 255},
	color.RGBA{R: 213, G: 94, B: 0, A: 255},
	color.RGBA{R: 0, G: 158, B: 115, A: 255},
	color.RGBA{R: 204, G: 121, B: 167, A: 255},
	color.RGBA{R: 230, G: 159, B: 0, A: 255},
	color.RGBA{R: 86, G: 180, B: 233, A: 255},
	color.RGBA{R: 0, G: 0, B: 0, A: 255},
	color.RGBA{R: 110, G: 110, B: 110, A: 255},
}

// Color returns the color of line i.
func Color(i int) color.Color { return palette[i%len(palette)] }

// Faint returns the color of the band around line i.
func Faint(i int) color.Color {
	r, g, b, _ := Color(i).RGBA()
	const alpha = 40 // of 255; colours are premultiplied by it
	return color.RGBA{R: uint8(r >> 8 * alpha / 255), G: uint8(g >> 8 * alpha / 255), B: uint8(b >> 8 * alpha / 255), A: alpha}
}

// New returns an empty plot with a grid.
func New(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(2)
	p.Legend.ThumbnailWidth = vg.Points(24) // fits a whole dash
	p.Add(plotter.NewGrid())
	return p
}

// Style returns the style of line i: a color, and dashes if lines before i use all
// colors.
func Style(i int) draw.LineStyle {
	s := draw.LineStyle{Color: Color(i), Width: vg.Points(1.5)}
	if round := i / len(palette); round > 0 {
		s.Dashes = plotutil.Dashes(round)
	}
	return s
}

// AddLine draws line i and names it in the legend. A dashed line is thinner.
func AddLine(p *plot.Plot, i int, name string, points plotter.XYs, dashed bool) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.LineStyle = Style(i)
	if dashed {
		line.Dashes, line.Width = plotutil.Dashes(1+i%5), vg.Points(1)
	}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// The size of a figure.
const width, height = 20 * vg.Centimeter, 13 * vg.Centimeter

// Save writes a .png, .svg or .pdf.
func Save(p *plot.Plot, out string) error { return p.Save(width, height, out) }

// SavePanels saves two plots with one x axis, the second below the first and half as
// high.
func SavePanels(upper, lower *plot.Plot, out string) error {
	const gap = vg.Length(8)
	all := height * 5 / 4
	c, err := draw.NewFormattedCanvas(width, all, strings.TrimPrefix(filepath.Ext(out), "."))
	if err != nil {
		return err
	}
	canvas := draw.New(c)
	split := all / 3
	panels := []draw.Canvas{
		draw.Crop(canvas, 0, 0, split+gap/2, 0),
		draw.Crop(canvas, 0, 0, 0, -(all - split + gap/2)),
	}
	// The labels of the two y axes may differ in width: the data areas begin together.
	left := vg.Length(0)
	for i, p := range []*plot.Plot{upper, lower} {
		left = max(left, p.DataCanvas(panels[i]).Min.X)
	}
	for i, p := range []*plot.Plot{upper, lower} {
		own := p.DataCanvas(panels[i]).Min.X
		p.Draw(draw.Crop(panels[i], left-own, 0, 0, 0))
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	_, err = c.WriteTo(f)
	return errors.Join(err, f.Close())
}
