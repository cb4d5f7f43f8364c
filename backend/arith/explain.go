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
	s := m.SumOf(a.Encoding(), b.Encoding())
	scaled := false // block scales multiply finished sums, in FP32
	switch {
	case s.Exact > 0:
		fmt.Fprintf(out, "block scales multiply exact sums of %d products, aligned with the exponents of the scales\n", s.Exact)
	case s.scalesInside(a, b):
		fmt.Fprintf(out, "block scales multiply the products before they are aligned\n")
	case a.Scales != nil || b.Scales != nil:
		scaled = true
		fmt.Fprintf(out, "block scales multiply sums of %d products, in FP32\n", m.run(a, b, promoted))
	}
	total := m.dot(a, b, promoted, watcher{
		fused: func(s *Sum, g fusedGroup, c, result float32) {
			fmt.Fprintf(out, "\nk %d to %d, addend %v\n", g.first, g.first+len(g.a)-1, c)
			explainSum(out, s, s.terms(&g, c), result)
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

// explained is a term of a fused sum, the addend included.
type explained struct {
	name  string
	value float64
	power float64 // with which the term is aligned; 0: it is not
}

// terms returns the terms of a fused sum, the addend last.
func (s *Sum) terms(g *fusedGroup, c float32) (list []explained) {
	if s.Exact > 0 {
		for l := 0; l < len(g.a); l += s.Exact {
			end, i := min(len(g.a), l+s.Exact), l/s.Exact
			value, power := s.exactTerm(g.a[l:end], g.b[l:], g.scaleA[i], g.scaleB[i], g.minScale)
			name := fmt.Sprintf("k %d to %d, scales %v and %v", g.first+l, g.first+end-1, g.scaleA[i], g.scaleB[i])
			list = append(list, explained{name, value, power})
		}
	} else {
		for i, x := range g.a {
			name := fmt.Sprintf("k %d: %v * %v", g.first+i, x, g.b[i])
			if g.scale != 1 {
				name += " * " + powerText(g.scale)
			}
			list = append(list, explained{name, float64(x) * float64(g.b[i]) * g.scale, powerOf(x, g.minA) * powerOf(g.b[i], g.minB) * g.scale})
		}
	}
	addend := explained{name: fmt.Sprintf("the addend %v", c), value: float64(c)}
	if !s.AddendLast {
		addend.power = powerOf(c, 0)
	}
	return append(list, addend)
}

func powerText(x float64) string {
	if fraction, exponent := math.Frexp(x); fraction == 0.5 {
		return fmt.Sprintf("2^%d", exponent-1)
	}
	return fmt.Sprint(float32(x))
}

// explainSum writes how a sum of terms, the addend last, becomes result.
func explainSum(out io.Writer, s *Sum, terms []explained, result float32) {
	largest, at := 0.0, -1 // at is the first term with the largest exponent
	for i, t := range terms {
		if t.power > largest {
			largest, at = t.power, i
		}
	}
	if at < 0 || result-result != 0 {
		fmt.Fprintf(out, "  = %v\n", result)
		return
	}
	unit := max(largest, minNormal) / math.Ldexp(1, s.Bits)
	fmt.Fprintf(out, "  aligned to %s, of %s; a unit is %s\n", powerText(max(largest, minNormal)), terms[at].name, powerText(unit))
	losing, lost, sum := 0, 0.0, 0.0
	for i, t := range terms {
		kept := math.Trunc(t.value/unit)*unit + 0 // no -0
		if i == len(terms)-1 && s.AddendLast {
			kept = t.value
		}
		sum += kept
		if kept == t.value {
			continue
		}
		lost += kept - t.value
		if losing++; losing <= listed {
			fmt.Fprintf(out, "  truncated: %s = %v becomes %v\n", t.name, t.value, kept)
		}
	}
	if losing > listed {
		fmt.Fprintf(out, "  and %d more\n", losing-listed)
	}
	if losing > 0 {
		fmt.Fprintf(out, "  truncated in all: %.3g\n", lost)
	}
	if sum != float64(result) {
		fmt.Fprintf(out, "  sum %v, stored as\n", sum)
	}
	fmt.Fprintf(out, "  = %v\n", result)
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
