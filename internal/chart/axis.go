package chart

import (
	"math"
	"strconv"
	"strings"
)

// Axis is an axis of a chart.
type Axis struct {
	Label string
	Log   bool // logarithmic: values that are not positive are gaps
	// Min and Max are the ends of the axis. If they are equal, the data determines them.
	Min, Max float64
}

// scale maps the values of an axis to positions of the drawing.
type scale struct {
	log      bool
	min, max float64 // of the values; of log10 of the values if log
	from, to float64 // positions of min and max
}

// newScale returns the scale of an axis over values. Without any value to show, the axis
// goes from 0 to 1.
func newScale(a Axis, from, to float64, values ...[]float64) scale {
	s := scale{log: a.Log, min: math.Inf(1), max: math.Inf(-1), from: from, to: to}
	if a.Min != a.Max {
		values = [][]float64{{a.Min, a.Max}}
	}
	for _, list := range values {
		for _, v := range list {
			if v = s.linear(v); !math.IsNaN(v) {
				s.min, s.max = min(s.min, v), max(s.max, v)
			}
		}
	}
	switch {
	case s.min > s.max:
		s.min, s.max = 0, 1
	case s.min == s.max:
		margin := math.Abs(s.min) / 2
		if margin == 0 || s.log {
			margin = 0.5
		}
		s.min, s.max = s.min-margin, s.max+margin
	}
	return s
}

// linear returns the value on the axis's linear scale; NaN for a gap.
func (s *scale) linear(v float64) float64 {
	if s.log {
		if v <= 0 {
			return math.NaN()
		}
		v = math.Log10(v)
	}
	if math.IsInf(v, 0) || math.Abs(v) > math.MaxFloat64/4 { // the length of the axis must be finite
		return math.NaN()
	}
	return v
}

// at returns the position of a value; NaN for a gap.
func (s *scale) at(v float64) float64 {
	return s.from + (s.linear(v)-s.min)/(s.max-s.min)*(s.to-s.from)
}

// pad extends both ends by a share of the axis.
func (s *scale) pad(share float64) {
	margin := share * (s.max - s.min)
	s.min, s.max = s.min-margin, s.max+margin
}

// tick is a labelled value of an axis.
type tick struct {
	value float64
	label string
}

// ticks returns about n ticks, at multiples of 1, 2 or 5 times a power of ten. On a logarithmic
// axis of two decades or more they are at powers of ten; on a shorter one that does not look
// linear, at 1, 2 and 5 times these.
func (s *scale) ticks(n int) (list []tick) {
	span := s.max - s.min
	if s.log && span >= 2 {
		every := math.Ceil(span / float64(n))
		for e := every * math.Ceil(s.min/every); e <= s.max; e += every {
			list = append(list, tick{math.Pow(10, e), powerLabel(int(e))})
		}
		return list
	}
	if s.log && span >= 0.7 {
		for e := math.Floor(s.min); e <= s.max; e++ {
			for _, f := range []float64{1, 2, 5} {
				if v := f * math.Pow(10, e); math.Log10(v) >= s.min && math.Log10(v) <= s.max {
					list = append(list, tick{v, Number(v)})
				}
			}
		}
		return list
	}
	low, high := s.min, s.max
	if s.log {
		low, high = math.Pow(10, low), math.Pow(10, high)
	}
	step := niceStep((high - low) / float64(n))
	first, last := math.Ceil(low/step), math.Floor(high/step)
	for i := 0.0; i <= last-first; i++ { // above 2^53, first+i may equal first
		v := (first + i) * step
		if i == 0 || v > list[len(list)-1].value {
			list = append(list, tick{v, numberLabel(v, step, max(math.Abs(low), math.Abs(high)))})
		}
	}
	return list
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is at least step.
func niceStep(step float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= step {
			return f * power
		}
	}
	return 10 * power
}

func powerLabel(exponent int) string {
	if exponent >= -2 && exponent <= 3 {
		return strconv.FormatFloat(math.Pow(10, float64(exponent)), 'f', -1, 64)
	}
	return "1e" + strconv.Itoa(exponent)
}

// numberLabel writes a multiple of step without more digits than step has, in thousands,
// millions and so on if the largest label is above 10,000.
func numberLabel(v, step, largest float64) string {
	if v == 0 {
		return "0"
	}
	size, name := 1.0, ""
	for i, unit := range []string{"k", "M", "G", "T"} {
		if power := math.Pow(1000, float64(i+1)); largest >= 10_000 && largest >= power {
			size, name = power, unit
		}
	}
	digits := max(0, -int(math.Floor(math.Log10(step/size*1.0001))))
	if digits > 6 || largest >= 1e16 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return strconv.FormatFloat(v/size, 'f', digits, 64) + name
}

// Number writes a value with four significant digits, as tables and captions show it: with an
// exponent below 1e-4 and from 1e6. A value that is not finite is "not finite".
func Number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "not finite"
	}
	text := strconv.FormatFloat(v, 'g', 4, 64)
	if digits, exponent, ok := strings.Cut(text, "e"); ok { // 1e-06: 1e-6
		n, err := strconv.Atoi(exponent)
		switch {
		case err != nil:
		case n == 4 || n == 5:
			rounded := math.Pow(10, float64(n-3))
			return strconv.FormatFloat(rounded*math.Round(v/rounded), 'f', 0, 64)
		default:
			return digits + "e" + strconv.Itoa(n)
		}
	}
	return text
}
