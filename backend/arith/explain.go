package arith

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/big"
)

// listed is the maximum number of truncated terms that Explain shows for each sum.
const listed = 4

// Explain writes to w how the model computes a dot product, sum by sum: the exponent
// that the terms are aligned to, the terms that lose bits, and the resulting error.
func (m *Model) Explain(w io.Writer, a, b Operand, promoted bool) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s: %s\n", m.Name, m.Summary)
	fmt.Fprintf(out, "%s times %s, %d products", a.DType, b.DType, len(a.Codes))
	if promoted && m.Promote > 0 && m.Promote < len(a.Codes) {
		fmt.Fprintf(out, ", promoted to FP32 every %d", m.Promote)
	}
	fmt.Fprintln(out)
	scaled := false // block scales multiply finished sums, in FP32
	switch {
	case m.scalesInside(a, b):
		fmt.Fprintf(out, "block scales multiply the products before they are aligned\n")
	case a.Scales != nil || b.Scales != nil:
		scaled = true
		fmt.Fprintf(out, "block scales multiply sums of %d products, in FP32\n", m.run(a, b, promoted))
	}
	minA, minB := m.Sum.MinPower(a.DType), m.Sum.MinPower(b.DType)
	total := m.dot(a, b, promoted, watcher{
		fused: func(first int, x, y []float32, scale float64, c, result float32) {
			e := explanation{out: out, s: &m.Sum, a: x, b: y, c: c, scale: scale, first: first}
			e.sum(minA, minB, result)
		},
		joined: func(total, part, scale, joined float32) {
			switch {
			case scaled:
				fmt.Fprintf(out, "  joined: %v + %v * %s = %v\n", total, part, powerText(float64(scale)), joined)
			case m.Promote < len(a.Codes):
				fmt.Fprintf(out, "  promoted: %v + %v = %v\n", total, part, joined)
			}
		},
	})
	fmt.Fprintf(out, "\nresult  %v\n", total)
	exact := exactDot(a, b)
	if exact == nil {
		return out.Flush()
	}
	value, _ := exact.Float64()
	fmt.Fprintf(out, "exact   %v\n", value)
	difference := new(big.Float).Sub(big.NewFloat(float64(total)), exact)
	if lost, _ := difference.Float64(); lost != 0 {
		fmt.Fprintf(out, "error   %.3g", lost)
		if value != 0 {
			fmt.Fprintf(out, ", %.2g relative", lost/math.Abs(value))
		}
		fmt.Fprintln(out)
	} else {
		fmt.Fprintln(out, "error   none")
	}
	return out.Flush()
}

// explanation describes one fused sum, whose first product is at k = first.
type explanation struct {
	out   io.Writer
	s     *Sum
	a, b  []float32
	scale float64
	c     float32
	first int
}

// value returns term i; the last term is the addend.
func (e *explanation) value(i int) float64 {
	if i == len(e.a) {
		return float64(e.c)
	}
	return float64(e.a[i]) * float64(e.b[i]) * e.scale
}

func (e *explanation) name(i int) string {
	if i == len(e.a) {
		return fmt.Sprintf("the addend %v", e.c)
	}
	text := fmt.Sprintf("k %d: %v * %v", e.first+i, e.a[i], e.b[i])
	if e.scale != 1 {
		text += " * " + powerText(e.scale)
	}
	return text
}

func powerText(x float64) string {
	if fraction, exponent := math.Frexp(x); fraction == 0.5 {
		return fmt.Sprintf("2^%d", exponent-1)
	}
	return fmt.Sprint(float32(x))
}

func (e *explanation) sum(minA, minB, result float32) {
	fmt.Fprintf(e.out, "\nk %d to %d, addend %v\n", e.first, e.first+len(e.a)-1, e.c)
	largest := e.s.largest(e.a, e.b, minA, minB, e.scale, e.c)
	at := -1 // the term with the largest exponent
	for i := range e.a {
		if at < 0 && powerOf(e.a[i], minA)*powerOf(e.b[i], minB)*e.scale == largest {
			at = i
		}
	}
	if at < 0 && e.c != 0 && !e.s.AddendLast {
		at = len(e.a)
	}
	if at < 0 || result-result != 0 {
		fmt.Fprintf(e.out, "  = %v\n", result)
		return
	}
	unit := largest / math.Ldexp(1, e.s.Bits)
	fmt.Fprintf(e.out, "  aligned to %s, of %s; a unit is %s\n", powerText(largest), e.name(at), powerText(unit))
	losing, lost, sum := 0, 0.0, 0.0
	for i := range len(e.a) + 1 {
		value := e.value(i)
		kept := math.Trunc(value/unit)*unit + 0 // no -0
		if i == len(e.a) && e.s.AddendLast {
			kept = value
		}
		sum += kept
		if kept == value {
			continue
		}
		lost += kept - value
		if losing++; losing <= listed {
			fmt.Fprintf(e.out, "  truncated: %s = %v becomes %v\n", e.name(i), value, kept)
		}
	}
	if losing > listed {
		fmt.Fprintf(e.out, "  and %d more\n", losing-listed)
	}
	if losing > 0 {
		fmt.Fprintf(e.out, "  truncated in all: %.3g\n", lost)
	}
	if sum != float64(result) {
		fmt.Fprintf(e.out, "  sum %v, stored as\n", sum)
	}
	fmt.Fprintf(e.out, "  = %v\n", result)
}

// exactDot returns the exact dot product, or nil where a product is not finite.
func exactDot(a, b Operand) *big.Float {
	const enough = 2000 // bits
	sum := new(big.Float).SetPrec(enough)
	for i := range a.Codes {
		p := decoded(a, i) * decoded(b, i)
		if p-p != 0 {
			return nil
		}
		sum.Add(sum, new(big.Float).SetPrec(enough).SetFloat64(p))
	}
	return sum
}

func decoded(o Operand, l int) float64 {
	return float64(o.DType.Float32(uint32(o.Codes[l]))) * float64(o.scale(l))
}
