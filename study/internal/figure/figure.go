// Package figure draws what the plots of the studies have in common.
package figure

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// palette is Okabe and Ito's, told apart by colour-blind readers, and two greys.
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

// Color is that of line i.
func Color(i int) color.Color { return palette[i%len(palette)] }

// Faint is the color of what surrounds line i.
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
	p.Add(plotter.NewGrid())
	return p
}

// AddLine draws line i and names it in the legend. A dashed line is thinner.
func AddLine(p *plot.Plot, i int, name string, points plotter.XYs, dashed bool) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = Color(i), vg.Points(1.5)
	if dashed {
		line.Dashes, line.Width = plotutil.Dashes(1+i%5), vg.Points(1)
	}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// Save writes a .png, .svg or .pdf.
func Save(p *plot.Plot, out string) error { return p.Save(20*vg.Centimeter, 13*vg.Centimeter, out) }
