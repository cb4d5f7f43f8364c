package quantize

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"octet/fp8"
)

// Bin counts the codes of one magnitude or binade, of both signs.
type Bin struct {
	Value string `json:"value"` // of the codes, scales not applied: "0", "1.5", "2^-3" for [2^-3, 2^-2), "nan"
	Count int    `json:"count"`
}

// Histogram counts the codes: by magnitude in a format of up to four bits, otherwise by
// binade. It leaves out empty bins above the largest value and below the smallest one that
// is not 0.
func (r *Result) Histogram() []Bin {
	codes := r.Codes
	if d := r.Cast.DType; d.InBytes() != d {
		codes = make([]byte, r.Rows*r.Cols)
		fp8.Unpack4(codes, r.Codes)
	}
	var counts [256]int
	for _, c := range codes {
		counts[c]++
	}
	narrow := r.Cast.DType.Format().Bits <= 4
	values := r.Cast.DType.Table()
	bins := map[float64]int{} // by the smallest magnitude; notNumber for NaN
	const notNumber = math.MaxFloat64
	for code, n := range counts {
		x := math.Abs(float64(values[code]))
		switch {
		case x != x:
			x = notNumber
		case !narrow && x != 0 && x-x == 0:
			_, e := math.Frexp(x)
			x = math.Ldexp(1, e-1)
		}
		bins[x] += n
	}
	order := make([]float64, 0, len(bins))
	for x := range bins {
		order = append(order, x)
	}
	slices.SortFunc(order, func(a, b float64) int { return cmp.Compare(a, b) })
	used := func(x float64) bool { return x != 0 && bins[x] > 0 && x < notNumber }
	first, last := slices.IndexFunc(order, used), len(order)-1
	for last > 0 && !used(order[last]) {
		last--
	}
	var list []Bin
	for i, x := range order {
		if x != 0 && bins[x] == 0 && (i < first || i > last) {
			continue
		}
		name := fmt.Sprint(x)
		switch {
		case x == notNumber:
			name = "nan"
		case x > notNumber:
			name = "inf"
		case x != 0 && !narrow:
			name = fmt.Sprintf("2^%d", math.Ilogb(x))
		}
		list = append(list, Bin{name, bins[x]})
	}
	return list
}
