package chart

import "math"

// point is a position in a drawing; y is NaN for a gap.
type point struct{ x, y float64 }

// thin returns the positions of a line. Of the points in a column of one pixel it keeps the
// first, the lowest, the highest and the last, so that the line looks the same with at most
// four points for each pixel. A gap stays where a column has no point at all, and where a
// line without thinning has one.
func thin(x, y scale, xs, ys []float64) []point {
	n := min(len(xs), len(ys))
	all := float64(n) <= 2*math.Abs(x.to-x.from)
	list := make([]point, 0, n)
	for i := 0; i < n; {
		p := point{x.at(xs[i]), y.at(ys[i])}
		if all || math.IsNaN(p.x) {
			if !math.IsNaN(p.x) {
				list = append(list, p)
			}
			i++
			continue
		}
		end := i + 1
		for end < n && math.Floor(x.at(xs[end])) == math.Floor(p.x) {
			end++
		}
		list = appendColumn(list, x, y, xs[i:end], ys[i:end])
		i = end
	}
	return list
}

// appendColumn appends the points of one column, in their order.
func appendColumn(list []point, x, y scale, xs, ys []float64) []point {
	first, low, high, last := -1, -1, -1, -1
	for i, v := range ys {
		v = y.at(v)
		if math.IsNaN(v) {
			continue
		}
		if first < 0 {
			first, low, high = i, i, i
		}
		if v < y.at(ys[low]) {
			low = i
		}
		if v > y.at(ys[high]) {
			high = i
		}
		last = i
	}
	if first < 0 {
		return append(list, point{x.at(xs[0]), math.NaN()})
	}
	before := -1
	for _, i := range [...]int{first, min(low, high), max(low, high), last} {
		if i > before {
			list = append(list, point{x.at(xs[i]), y.at(ys[i])})
			before = i
		}
	}
	return list
}
