package arith

import (
	"fmt"
	"strconv"
	"strings"
)

// Accumulator is a register of a given width, in two's complement, that adds up products of
// integers, k ascending.
type Accumulator struct {
	Bits     int  // width, sign included
	Saturate bool // a sum beyond the range becomes its nearest value after each addition; otherwise it wraps
}

// accumulatorName is the name of these device models, before the number of bits.
const accumulatorName = "accum"

// The narrowest and the widest Accumulator. In 32 bits every sum of backend.MaxIntegerK products
// of INT8 is exact.
const minAccumulator, maxAccumulator = 2, 32

// LookupAccumulator returns the accumulator that text names: "accum16" has 16 bits and wraps,
// as "accum16,wrap" does, and "accum16,saturate" saturates. It returns nil for the name of
// another device model.
func LookupAccumulator(text string) (*Accumulator, error) {
	name, over, given := strings.Cut(text, ",")
	digits, ok := strings.CutPrefix(name, accumulatorName)
	if !ok {
		return nil, nil
	}
	bits, err := strconv.Atoi(digits)
	if err != nil || digits != strconv.Itoa(bits) || bits < minAccumulator || bits > maxAccumulator {
		return nil, fmt.Errorf("device model %s: %q is no number of bits from %d to %d: give one, such as %s16",
			name, digits, minAccumulator, maxAccumulator, accumulatorName)
	}
	if given && over != "wrap" && over != "saturate" {
		return nil, fmt.Errorf("device model %s has no option %q (it has wrap, saturate)", name, over)
	}
	return &Accumulator{Bits: bits, Saturate: over == "saturate"}, nil
}

// Dot returns the sum of the products of a and b, which have equally many values of INT8.
func (c *Accumulator) Dot(a, b []int32) int32 {
	shift := 64 - c.Bits
	low, high := int64(-1)<<(c.Bits-1), int64(1)<<(c.Bits-1)-1
	sum := int64(0)
	for i, x := range a {
		sum += int64(x) * int64(b[i])
		if c.Saturate {
			sum = min(max(sum, low), high)
		}
	}
	return int32(sum << shift >> shift)
}
