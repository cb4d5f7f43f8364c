package arith

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/big"

	"octet/fp8"
)

// listed is how many terms of a group are shown that lose bits.
const listed = 4

// Explain writes how the model computes a dot product of codes, sum by sum: what the
// terms of each are aligned to, which lose bits, and what that costs in the end.
func (m *Model) Explain(w io.Writer, a, b []uint8, formatA, formatB fp8.DType, promoted bool) error {
	out := bufio.NewWriter(w)
	x, y := decode(a, formatA), decode(b, formatB)
	step := len(a)
	if promoted && m.Promote > 0 {
		step = m.Promote
	}
	fmt.Fprintf(out, "%s: %s\n", m.Name, m.Summary)
	fmt.Fprintf(out, "%s times %s, %d products", formatA, formatB, len(a))
	if step < len(a) {
		fmt.Fprintf(out, ", promoted to FP32 every %d", step)
	}
	fmt.Fprintln(out)
	total := float32(0)
	for from := 0; from < len(a); from += step {
		part, end := float32(0), min(len(a), from+step)
		for l := from; l < end; l += m.Sum.Group {
			to := min(end, l+m.Sum.Group)
			part = m.explainSum(out, x[l:to], y[l:to], l, m.Sum.Least(formatA), m.Sum.Least(formatB), part)
		}
		if step < len(a) {
			fmt.Fprintf(out, "  promoted: %v + %v = %v\n", total, part, total+part)
		}
		total += part
	}
	fmt.Fprintf(out, "\nresult  %v\n", total)
	exact := exactDot(x, y)
	if exact == nil {
		return out.Flush()
	}
	value, _ := exact.Float64()
	fmt.Fprintf(out, "exact   %v\n", value)
	difference := new(big.Float).Sub(big.NewFloat(float64(total)), exact)
	if lost, _ := difference.Float64(); lost != 0 {
		fmt.Fprintf(out, "error   %.3g", lost)
		if value != 0 {
			fmt.Fprintf(out, ", %.2g of it", lost/math.Abs(value))
		}
		fmt.Fprintln(out)
	} else {
		fmt.Fprintln(out, "error   none")
	}
	return out.Flush()
}

// explainSum shows one fused sum, whose first product is number first, and returns
// its result.
func (m *Model) explainSum(w io.Writer, a, b []float32, first int, leastA, leastB, c float32) float32 {
	s := &m.Sum
	result := s.Fuse(a, b, leastA, leastB, c)
	fmt.Fprintf(w, "\nk %d to %d on top of %v\n", first, first+len(a)-1, c)
	at, largest := -1, 0.0
	for i := range a {
		if p := powerOf(a[i], leastA) * powerOf(b[i], leastB); p > largest {
			at, largest = i, p
		}
	}
	if p := powerOf(c, leastFloat32); !s.Apart && p > largest {
		at, largest = len(a), p
	}
	if largest == 0 || result-result != 0 {
		fmt.Fprintf(w, "  = %v\n", result)
		return result
	}
	unit := largest / math.Ldexp(1, s.Bits)
	fmt.Fprintf(w, "  aligned to 2^%.0f, of %s; a unit is 2^%.0f\n", math.Log2(largest), termName(a, b, c, at, first), math.Log2(unit))
	losing, lost := 0, 0.0
	see := func(i int, value float64) {
		kept := math.Trunc(value/unit) * unit
		if kept == value {
			return
		}
		lost += kept - value
		if losing++; losing <= listed {
			fmt.Fprintf(w, "  cut off: %s = %v becomes %v\n", termName(a, b, c, i, first), value, kept)
		}
	}
	for i := range a {
		see(i, float64(a[i])*float64(b[i]))
	}
	if !s.Apart {
		see(len(a), float64(c))
	}
	if losing > listed {
		fmt.Fprintf(w, "  and %d more\n", losing-listed)
	}
	if losing > 0 {
		fmt.Fprintf(w, "  cut off in all: %.3g\n", lost)
	}
	sum := float64(c) - lostOf(s, c, unit)
	for i := range a {
		sum += math.Trunc(float64(a[i])*float64(b[i])/unit) * unit
	}
	if sum != float64(result) {
		fmt.Fprintf(w, "  sum %v, stored as\n", sum)
	}
	fmt.Fprintf(w, "  = %v\n", result)
	return result
}

// lostOf is what alignment cuts off the addend.
func lostOf(s *Sum, c float32, unit float64) float64 {
	if s.Apart {
		return 0
	}
	return float64(c) - math.Trunc(float64(c)/unit)*unit
}

func termName(a, b []float32, c float32, i, first int) string {
	if i == len(a) {
		return fmt.Sprintf("the addend %v", c)
	}
	return fmt.Sprintf("k %d: %v * %v", first+i, a[i], b[i])
}

func decode(codes []uint8, d fp8.DType) []float32 {
	x := make([]float32, len(codes))
	for i, code := range codes {
		x[i] = d.Float32(uint32(code))
	}
	return x
}

// exactDot is nil where a number is not finite.
func exactDot(a, b []float32) *big.Float {
	const enough = 2000 // bits
	sum := new(big.Float).SetPrec(enough)
	for i := range a {
		p := float64(a[i]) * float64(b[i])
		if p-p != 0 {
			return nil
		}
		sum.Add(sum, new(big.Float).SetPrec(enough).SetFloat64(p))
	}
	return sum
}
