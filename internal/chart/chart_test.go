package chart

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

func ramp(n int) (x []float64) {
	for i := range n {
		x = append(x, float64(i))
	}
	return x
}

// requireSVG fails unless text is well-formed and every number in it is finite.
func requireSVG(t *testing.T, text []byte) {
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "%s", text)
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if a.Name.Local != "aria-label" && a.Name.Local != "href" {
					require.NotRegexp(t, `NaN|Inf`, a.Value)
				}
			}
		}
	}
}

// TestHostileValues draws values and names that a damaged run can hold.
func TestHostileValues(t *testing.T) {
	values := [][]float64{
		nil, {nan}, {inf, -inf}, {nan, 1, nan, inf, 2, 3}, {0, 0}, {-1, -2}, {1e308, -1e308}, {5e-324, 1e-320}, {math.MaxFloat64},
	}
	for _, y := range values {
		for _, log := range []bool{false, true} {
			name := `<script>alert("1")</script>` + "\x00&\xff"
			x := ramp(len(y))
			c := Chart{
				Title: name, X: Axis{Label: name}, Y: Axis{Label: name, Log: log},
				Lines: []Line{{Name: name, X: x, Y: y, Low: y, High: y}},
				Marks: []Mark{{1, name}, {nan, name}},
			}
			requireSVG(t, c.SVG())
			requireSVG(t, File(&c, &c))
			require.NotContains(t, string(c.SVG()), "<script")
			m := HeatMap{Title: name, Rows: []string{name}, At: x, Data: [][]float64{y}, Values: Axis{Label: name, Log: log}}
			requireSVG(t, m.SVG())
			b := Bars{Title: name, X: Axis{Label: name, Log: log}, Rows: []string{name}, Parts: slices.Repeat([]string{name}, len(y)), Data: [][]float64{y}}
			requireSVG(t, File(&b, &m))
			require.NotContains(t, string(b.SVG()), "<script")
			var text bytes.Buffer
			require.NoError(t, c.WriteText(&text, 40, 4, false))
			require.LessOrEqual(t, len(Sparkline(y, 10, true)), 10)
			c.Table(10)
			m.Table(10)
		}
	}
}

// TestBars measures the parts of two bars.
func TestBars(t *testing.T) {
	b := Bars{
		Title: "Time", X: Axis{Label: "ms"}, Rows: []string{"first", "second"}, Parts: []string{"a", "b", "c"},
		Data: [][]float64{{3, 1, 0}, {1, nan, 1}},
	}
	svg := string(b.SVG())
	at := regexp.MustCompile(`<rect class="bar b(\d)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="22"><title>(.*?)</title>`).FindAllStringSubmatch(svg, -1)
	var got []string
	for _, m := range at {
		x, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		wide, err := strconv.ParseFloat(m[4], 64)
		require.NoError(t, err)
		got = append(got, m[1]+" from "+Number((x-leftOf)/width)+" to "+Number((x+wide-leftOf)/width)+": "+m[5])
	}
	require.Equal(t, []string{"0 from 0 to 0.75: a: 3 ms", "1 from 0.75 to 1: b: 1 ms", "0 from 0 to 0.25: a: 1 ms", "2 from 0.25 to 0.5: c: 1 ms"}, got)
	require.Equal(t, at[0][3], at[1][3])
	require.NotEqual(t, at[0][3], at[2][3])
	require.Equal(t, 3, strings.Count(svg, `width="24" height="13"`), "the legend")
	require.Contains(t, svg, `aria-label="Time. Bars of ms. first: 4. second: 2."`)
	require.NotContains(t, svg, "opacity")
	wide := b
	wide.Rows = []string{"a name that is longer", "second"}
	back := regexp.MustCompile(`</style><g class="chart"><rect class="frame" width="[\d.]+" height="\d+"/></g>`)
	require.NotRegexp(t, back, string(File(&b, &b)))
	require.Regexp(t, back, string(File(&b, &wide)))
	b.Parts, b.Data = slices.Repeat([]string{"part"}, Colors+1), [][]float64{make([]float64, Colors+1)}
	require.Contains(t, string(b.SVG()), `opacity=".5"`, "a colour that returns")
}

// TestTicks reads the labels of random axes back.
func TestTicks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	units := map[byte]float64{'k': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}
	for range 20000 {
		low := r.NormFloat64() * math.Pow(10, float64(r.IntN(18)-6))
		span := math.Abs(low) * math.Pow(10, float64(r.IntN(8)-5))
		s := newScale(Axis{Min: low, Max: low + span}, 0, 100)
		list := s.ticks(5)
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), 7)
		for i, k := range list {
			require.GreaterOrEqual(t, k.value, s.min-1e-9*span)
			require.LessOrEqual(t, k.value, s.max+1e-9*span)
			text, unit := k.label, 1.0
			if u, ok := units[text[len(text)-1]]; ok {
				text, unit = text[:len(text)-1], u
			}
			v, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			if math.Abs(k.value) < 1e15 && span > 1e-5 {
				require.InDelta(t, k.value, v*unit, 1e-6*span, "%s of %g to %g", k.label, low, low+span)
				require.True(t, i == 0 || list[i-1].label != k.label, "%s twice, of %g to %g", k.label, low, low+span)
			}
		}
	}
	for _, low := range []float64{1<<53 - 1, 1e17, -1e17} { // where adding 1 to an index changes nothing
		s := newScale(Axis{Min: low, Max: math.Nextafter(low, math.Inf(1))}, 0, 100)
		require.LessOrEqual(t, len(s.ticks(5)), 7)
	}
	s := newScale(Axis{Log: true, Min: 1e-6, Max: 1}, 0, 1)
	var labels []string
	for _, k := range s.ticks(6) {
		labels = append(labels, k.label)
	}
	require.Equal(t, []string{"1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1"}, labels)
	s, labels = newScale(Axis{Log: true, Min: 1, Max: 64}, 0, 1), nil
	for _, k := range s.ticks(6) {
		labels = append(labels, k.label)
	}
	require.Equal(t, []string{"1", "2", "5", "10", "20", "50"}, labels)
}

// TestThin keeps the extremes of every column and the size of the drawing.
func TestThin(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	xs, ys := ramp(20000), make([]float64, 20000)
	for i := range ys {
		ys[i] = r.NormFloat64()
	}
	for i := 5000; i < 5200; i++ {
		ys[i] = nan
	}
	x, y := newScale(Axis{}, 0, 300, xs), newScale(Axis{}, 200, 0, ys)
	list := thin(x, y, xs, ys)
	require.LessOrEqual(t, len(list), 4*301)
	type limits struct{ low, high float64 }
	of := func(points []point) map[float64]limits {
		all := map[float64]limits{}
		for _, p := range points {
			if math.IsNaN(p.y) {
				continue
			}
			column := math.Floor(p.x)
			l, ok := all[column]
			if !ok {
				l = limits{p.y, p.y}
			}
			all[column] = limits{min(l.low, p.y), max(l.high, p.y)}
		}
		return all
	}
	var whole []point
	for i := range xs {
		whole = append(whole, point{x.at(xs[i]), y.at(ys[i])})
	}
	require.Equal(t, of(whole), of(list))
	gaps := 0
	for i, p := range list {
		if math.IsNaN(p.y) {
			gaps++
		}
		require.True(t, i == 0 || list[i-1].x <= p.x)
	}
	require.Positive(t, gaps, "the gap of 200 steps is more than a column wide")

	few := thin(x, y, []float64{1, 2, 3}, []float64{1, nan, 2})
	require.Len(t, few, 3)
	require.True(t, math.IsNaN(few[1].y))
}

// TestDots draws points that have no neighbour, and all of a line with few points.
func TestDots(t *testing.T) {
	dots := func(y ...float64) int {
		c := Chart{Lines: []Line{{X: ramp(len(y)), Y: y}}}
		return strings.Count(string(c.SVG()), "<circle")
	}
	require.Equal(t, 1, dots(3))
	require.Equal(t, 2, dots(3, nan, 4))
	long := ramp(100)
	require.Zero(t, dots(long...))
	long[49], long[51] = nan, nan
	require.Equal(t, 1, dots(long...))
}

// A line of dots alone takes points in any order and draws no path.
func TestScatter(t *testing.T) {
	c := Chart{Lines: []Line{{Name: "channels", X: []float64{2, 1, 3}, Y: []float64{1, 5, math.NaN()}, Dots: true}}}
	svg := string(c.SVG())
	require.Equal(t, 3, strings.Count(svg, `<circle class="dot`), "two points and the legend's")
	require.NotContains(t, svg, `class="line`)
}

// TestFile puts one chart below the other.
func TestFile(t *testing.T) {
	one, two := Chart{Title: "first"}, Chart{Title: "second", Lines: []Line{{Name: "with a legend"}}}
	text := string(File(&one, &two))
	require.Contains(t, text, `viewBox="0 0 560 696"`) // 338 and 20 for each row of a legend
	require.Regexp(t, `translate\(0 0\).*>first<.*translate\(0 338\).*>second<`, text)
	require.Contains(t, text, Style())
}

// TestBand closes an area for each run of points without a gap.
func TestBand(t *testing.T) {
	x := ramp(7)
	c := Chart{Lines: []Line{{X: x, Y: x, Low: []float64{0, 1, nan, 2, 3, nan, nan}, High: []float64{1, 2, nan, 3, 4, nan, 9}}}}
	path := regexp.MustCompile(`class="band b0" d="([^"]*)"`).FindStringSubmatch(string(c.SVG()))
	require.Equal(t, 2, strings.Count(path[1], "Z"))
	require.Equal(t, 2, strings.Count(path[1], "M"))
	require.Equal(t, 2*(4-1), strings.Count(path[1], "L"))
}

// TestHeatMapColors decodes the image: colours follow values, and gaps have none.
func TestHeatMapColors(t *testing.T) {
	m := HeatMap{Rows: []string{"a", "b"}, At: ramp(4), Data: [][]float64{{0, 1, 2, 3}, {nan, 3, inf, 0}}}
	encoded := regexp.MustCompile(`base64,([^"]*)"`).FindStringSubmatch(string(m.SVG()))
	raw, err := base64.StdEncoding.DecodeString(encoded[1])
	require.NoError(t, err)
	p, err := png.Decode(bytes.NewReader(raw))
	require.NoError(t, err)
	require.Equal(t, 4, p.Bounds().Dx())
	require.Equal(t, 2, p.Bounds().Dy())
	lightness := func(x, y int) float64 {
		r, g, b, a := p.At(x, y).RGBA()
		require.Equal(t, uint32(0xffff), a)
		return luminance(uint8(r>>8), uint8(g>>8), uint8(b>>8))
	}
	for i := range 3 {
		require.Less(t, lightness(i, 0), lightness(i+1, 0))
	}
	require.Equal(t, p.At(3, 0), p.At(1, 1))
	require.Equal(t, p.At(0, 0), p.At(3, 1))
	for _, x := range []int{0, 2} {
		_, _, _, a := p.At(x, 1).RGBA()
		require.Zero(t, a)
	}

	// Of neighbours that share a column, the largest shows.
	m = HeatMap{Rows: []string{"a"}, At: ramp(10 * heatColumns), Data: [][]float64{make([]float64, 10*heatColumns)}}
	m.Data[0][1003] = 7
	picture := m.picture(newScale(m.Values, 0, 1, m.Data...))
	require.Equal(t, heatColumns, picture.Bounds().Dx())
	require.Equal(t, uint8(255), picture.ColorIndexAt(100, 0))
	require.Equal(t, uint8(1), picture.ColorIndexAt(101, 0))
}

// TestHeatMapSteps draws each measurement at its step, whatever the steps between them.
func TestHeatMapSteps(t *testing.T) {
	for _, c := range []struct {
		at   []float64
		want []uint8 // 0: nothing
	}{
		{[]float64{10, 20, 30, 60}, []uint8{1, 86, 170, 0, 0, 255}}, // two are missing
		{[]float64{10, 20, 30, 33}, []uint8{1, 86, 255}},            // the last column shows both
		{[]float64{1, 1 << 20, 1<<20 + 1, 1 << 53}, nil},
	} {
		m := HeatMap{Rows: []string{"a"}, At: c.at, Data: [][]float64{{0, 1, 2, 3}}}
		p := m.picture(newScale(m.Values, 0, 1, m.Data...))
		if c.want != nil {
			require.Equal(t, c.want, p.Pix)
		}
		requireSVG(t, m.SVG())
	}
}

// luminance is the relative luminance of WCAG 2.1.
func luminance(r, g, b uint8) float64 {
	linear := func(v uint8) float64 {
		c := float64(v) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b)
}

// TestContrast checks lines against their background: WCAG 2.1 asks for 3:1 of graphics.
func TestContrast(t *testing.T) {
	of := func(color string) float64 {
		v, err := strconv.ParseUint(color[1:], 16, 32)
		require.NoError(t, err)
		return luminance(uint8(v>>16), uint8(v>>8), uint8(v))
	}
	for _, theme := range []struct {
		background string
		lines      [Colors]string
	}{{"#ffffff", lightLines}, {"#0d1117", darkLines}} {
		require.Contains(t, Style(), theme.background)
		for _, color := range theme.lines {
			a, b := of(theme.background)+0.05, of(color)+0.05
			require.GreaterOrEqual(t, max(a, b)/min(a, b), 3.0, color)
		}
	}
	type looks struct {
		color int
		dash  string
	}
	seen := map[looks]bool{}
	for i := range Colors * len(dashes) {
		color, dash := look(i)
		require.False(t, seen[looks{color, dash}])
		seen[looks{color, dash}] = true
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1.23456: "1.235", 9999.4: "9999", 9999.6: "10000", -29764: "-29760", 123456: "123500", 999960: "1e6", 1.5e7: "1.5e7",
		0.00012346: "0.0001235", 1.5e-5: "1.5e-5", inf: "not finite",
	} {
		require.Equal(t, want, Number(v))
	}
	require.Equal(t, "not finite", Number(nan))
}

func TestTable(t *testing.T) {
	c := Chart{X: Axis{Label: "step"}, Lines: []Line{
		{Name: "a", X: ramp(5), Y: []float64{1, nan, 3, 4, 5}}, {Name: "b", X: []float64{4}, Y: []float64{1e-6}},
	}}
	require.Equal(t, Table{
		Head: []string{"step", "a", "b"},
		Rows: [][]string{{"0", "1", ""}, {"1", "", ""}, {"2", "3", ""}, {"3", "4", ""}, {"4", "5", "1e-6"}},
	}, c.Table(10))
	require.Equal(t, [][]string{{"2", "3", ""}, {"4", "5", "1e-6"}}, c.Table(2).Rows)
	c.Lines[1].X = []float64{2.5}
	require.Equal(t, [][]string{{"2", "3", ""}, {"2.5", "", "1e-6"}, {"3", "4", ""}, {"4", "5", ""}}, c.Table(10).Rows[2:])
	m := HeatMap{X: Axis{Label: "step"}, Rows: []string{"r"}, At: ramp(2), Data: [][]float64{{1, inf}}}
	require.Equal(t, Table{Head: []string{"step", "r"}, Rows: [][]string{{"0", "1"}, {"1", "not finite"}}}, m.Table(5))
}

func TestText(t *testing.T) {
	c := Chart{Title: "loss", X: Axis{Label: "step"}, Lines: []Line{{X: []float64{0, 8}, Y: []float64{4, 0}}}}
	var b strings.Builder
	require.NoError(t, c.WriteText(&b, 19, 3, true))
	require.Equal(t, "loss\n        4 **\n            ****\n        0       **\n          0 8  step\n", b.String())
	b.Reset()
	require.NoError(t, c.WriteText(&b, 19, 3, false))
	require.Equal(t, "loss\n        4 ⠑⠢⡀\n            ⠈⠑⢄⡀\n        0      ⠈⠢⢄\n          0 8  step\n", b.String())
	require.Equal(t, "▁▅█ ▁", Sparkline([]float64{0, 1, 2, nan, 0}, 9, false))
	require.Empty(t, Sparkline([]float64{1}, -3, true))
	require.Equal(t, "09 0", Sparkline([]float64{0, 0, 1, 0.5, nan, nan, -1, 0}, 4, true))
}
