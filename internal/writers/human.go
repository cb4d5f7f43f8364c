package writers

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Bytes writes a size in decimal units: "512 B", "1.5 GB", "31 MB".
func Bytes(n int64) string { return Quantity(float64(n), "B") }

// Quantity writes a number with a decimal prefix and at least two digits: "71 GFLOP/s",
// "8.3 TFLOP/s", "950 B".
func Quantity(x float64, unit string) string {
	if !finite(x) {
		return number(x, "") + " " + unit
	}
	prefixes := []string{"", "k", "M", "G", "T", "P", "E"}
	i := 0
	for math.Abs(x) >= 999.5 && i < len(prefixes)-1 {
		x /= 1000
		i++
	}
	digits := 0
	if i > 0 && math.Abs(x) < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + prefixes[i] + unit
}

// Count writes a count: exactly below a million ("18,204"), then with two decimals and the
// letters of model sizes ("13.76M", "6.74B").
func Count(n int64) string {
	for _, s := range []struct {
		size   float64
		letter string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}} {
		// A number that rounds up to 1.00 of a letter takes that letter.
		if x := float64(n) / s.size; math.Abs(x) >= 0.999995 {
			return strconv.FormatFloat(x, 'f', 2, 64) + s.letter
		}
	}
	return commas(strconv.FormatInt(n, 10))
}

// commas groups the digits of a whole number by thousands.
func commas(digits string) string {
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Clock writes a duration in clock form: "0:42", "1:02:03", "2d 03:04:05".
func Clock(d time.Duration) string {
	s := int64(max(d, 0).Round(time.Second) / time.Second)
	days, h, m, s := s/86400, s/3600%24, s/60%60, s%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %02d:%02d:%02d", days, h, m, s)
	case h > 0:
		return fmt.Sprintf("%d:%02d:%02d", h, m, s)
	}
	return fmt.Sprintf("%d:%02d", m, s)
}

// number formats a float: "nan", "inf" or "-inf" if it is not finite.
func number(x float64, format string) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 1):
		return "inf"
	case math.IsInf(x, -1):
		return "-inf"
	}
	return fmt.Sprintf(format, x)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
