package arith

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// The reference computes on the significands and exponents of codes, with integers of any
// size. It shares only the models' parameters with the package.

// term is ±significand·2^(exponent−fraction). exponent decides its alignment.
type term struct {
	negative    bool
	significand *big.Int
	fraction    int
	exponent    int
}

// split returns the sign, significand and exponent of an FP8 code; special is its value if
// that is NaN or infinite. A subnormal is normalized, down to the exponent minExp.
func split(code uint8, d fp8.DType, minExp int) (t term, special float64) {
	mantissaBits, bias := 3, 7
	if d == fp8.E5M2 {
		mantissaBits, bias = 2, 15
	}
	mantissa, exponent := int(code)&(1<<mantissaBits-1), int(code&0x7f)>>mantissaBits
	top := 0x7f >> mantissaBits
	switch {
	case d == fp8.E4M3 && code&0x7f == 0x7f, d != fp8.E4M3 && exponent == top && mantissa > 0:
		return t, math.NaN()
	case d != fp8.E4M3 && exponent == top:
		return t, math.Inf(1 - 2*int(code>>7))
	}
	t = term{negative: code > 127, fraction: mantissaBits, exponent: exponent - bias}
	if exponent == 0 {
		t.exponent = 1 - bias
		for mantissa > 0 && mantissa < 1<<mantissaBits && t.exponent > minExp {
			mantissa *= 2
			t.exponent--
		}
	} else {
		mantissa += 1 << mantissaBits
	}
	t.significand = big.NewInt(int64(mantissa))
	return t, 0
}

func splitFloat32(x float32) term {
	bits := math.Float32bits(x)
	t := term{negative: bits>>31 > 0, fraction: 23, exponent: int(bits>>23&0xff) - 127}
	mantissa := int64(bits & (1<<23 - 1))
	if t.exponent == -127 {
		t.exponent = -126
	} else {
		mantissa += 1 << 23
	}
	t.significand = big.NewInt(mantissa)
	return t
}

// aligned returns the term in units of 2^(largest−bits), truncated toward zero.
func (t term) aligned(largest, bits int) *big.Int {
	x := new(big.Int).Set(t.significand)
	if shift := bits - t.fraction + t.exponent - largest; shift >= 0 {
		x.Lsh(x, uint(shift))
	} else {
		x.Rsh(x, uint(-shift))
	}
	if t.negative {
		x.Neg(x)
	}
	return x
}

// round returns sum·2^exponent as a float32 with kept fraction bits, rounded toward zero
// or to nearest.
func round(sum *big.Int, exponent, kept int, mode big.RoundingMode) float32 {
	if sum.Sign() == 0 {
		return 0
	}
	x := new(big.Float).SetInt(sum)
	x.SetMantExp(x, exponent)
	precision := kept + 1
	if top := x.MantExp(nil) - 1; top < -126 { // subnormal
		precision -= -126 - top
	}
	if precision <= 0 {
		return 0
	}
	y, _ := new(big.Float).SetMode(mode).SetPrec(uint(precision)).Set(x).Float32()
	return y
}

// referenceFuse computes a fused sum. scale is the exponent of the product of the block
// scales; scaleNaN says that one of them is NaN.
func (m *Model) referenceFuse(a, b []uint8, da, db fp8.DType, scale int, scaleNaN bool, c float32) float32 {
	if scaleNaN {
		return canonicalNaN
	}
	s := m.Sum
	minExp := func(d fp8.DType) int {
		if d == fp8.E5M2 {
			return s.MinExpE5M2
		}
		return s.MinExpE4M3
	}
	ieee := float64(c)
	var terms []term
	for i := range a {
		x, specialX := split(a[i], da, minExp(da))
		y, specialY := split(b[i], db, minExp(db))
		if specialX != 0 || specialY != 0 {
			value := func(special float64, code uint8, d fp8.DType) float64 {
				if special != 0 {
					return special
				}
				return float64(d.Float32(uint32(code)))
			}
			ieee += value(specialX, a[i], da) * value(specialY, b[i], db)
			continue
		}
		terms = append(terms, term{
			x.negative != y.negative, new(big.Int).Mul(x.significand, y.significand), x.fraction + y.fraction, x.exponent + y.exponent + scale,
		})
	}
	if math.IsNaN(ieee) {
		return canonicalNaN
	} else if math.IsInf(ieee, 0) {
		return float32(ieee)
	}
	addend := splitFloat32(c)
	if s.AddendLast && addend.significand.BitLen() < 24 {
		addend.significand.SetInt64(0)
	}
	// An addend of 0 has the exponent of subnormals and takes part in the maximum.
	largest := -126
	for _, t := range terms {
		if t.significand.Sign() > 0 {
			largest = max(largest, t.exponent)
		}
	}
	if !s.AddendLast {
		largest = max(largest, addend.exponent)
		terms = append(terms, addend)
	}
	sum := new(big.Int)
	for _, t := range terms {
		sum.Add(sum, t.aligned(largest, s.Bits))
	}
	if !s.AddendLast {
		return round(sum, largest-s.Bits, s.Kept, big.ToZero)
	}
	// One exact sum; products and addend are multiples of 2^unit.
	const unit = -300
	exact := new(big.Int).Lsh(sum, uint(largest-s.Bits-unit))
	exact.Add(exact, addend.aligned(unit, 0))
	y := round(exact, unit, 23, big.ToNearestEven)
	if math.Abs(float64(y)) < 0x1p-126 {
		return 0
	}
	return y
}

// mxScale returns the exponent of the product of the block scales at l, and whether one
// is NaN.
func mxScale(l int, operands ...Operand) (exponent int, nan bool) {
	for _, o := range operands {
		if o.Scales != nil {
			code := int(o.Scales[l/32])
			exponent += code - 127
			nan = nan || code == 255
		}
	}
	return exponent, nan
}

func (m *Model) reference(a, b Operand, promoted bool) float32 {
	inside := m.Sum.MX && a.Scales != nil && b.Scales != nil
	run := new(big.Int) // products per sum: divides block and promotion interval; 0: all
	if promoted {
		run.SetInt64(int64(m.Promote))
	}
	if !inside && (a.Scales != nil || b.Scales != nil) {
		run.GCD(nil, nil, run, big.NewInt(32))
	}
	joins := func(l int) bool { // before product l
		return l > 0 && run.Sign() > 0 && l%int(run.Int64()) == 0
	}
	total, part, from := float32(0), float32(0), 0
	join := func() {
		scale := 1.0
		if !inside {
			exponent, nan := mxScale(from, a, b)
			scale = math.Ldexp(1, exponent)
			if nan {
				scale = math.NaN()
			}
		}
		if total += float32(part * float32(scale)); math.IsNaN(float64(total)) {
			total = canonicalNaN
		}
	}
	for l := 0; l < len(a.Codes); {
		if joins(l) {
			join()
			part, from = 0, l
		}
		to := l + 1
		for to < len(a.Codes) && !joins(to) && to-l < m.Sum.Group {
			to++
		}
		exponent, nan := 0, false
		if inside {
			exponent, nan = mxScale(l, a, b)
		}
		part = m.referenceFuse(a.Codes[l:to], b.Codes[l:to], a.DType, b.DType, exponent, nan, part)
		l = to
	}
	join()
	return total
}

// draw returns k random codes of one random kind: any code, evenly spread exponents,
// values that nearly cancel, a nonzero mean, normal noise, or some with NaN or infinity.
func draw(r *rand.Rand, d fp8.DType, k int) []uint8 {
	codes := make([]uint8, k)
	nearest := func(x float64) uint8 { return uint8(d.Nearest(float32(x), fp8.Saturate)) }
	kind := r.IntN(6)
	for i := range codes {
		switch kind {
		case 0:
			codes[i] = uint8(r.Uint32())
		case 1:
			codes[i] = nearest(math.Ldexp(1+r.Float64(), r.IntN(24)-15) * float64(1-2*r.IntN(2)))
		case 2:
			codes[i] = nearest(100 * (1 + 0.1*r.Float64()))
			if i%2 > 0 {
				codes[i] ^= 0x80
			}
		case 3:
			codes[i] = nearest(3 + r.NormFloat64())
		default:
			codes[i] = nearest(r.NormFloat64() * 8)
		}
		if v := float64(d.Float32(uint32(codes[i]))); v-v != 0 {
			codes[i] = 1 // only kind 5 has NaN and infinity
		}
	}
	if kind == 5 && r.IntN(4) == 0 {
		codes[r.IntN(k)] = uint8(0x78+r.IntN(8)) | uint8(r.IntN(2))<<7
	}
	return codes
}

// drawOperands returns two operands, half of them with block scales.
func drawOperands(r *rand.Rand, da, db fp8.DType, k int) (a, b Operand) {
	a, b = Operand{Codes: draw(r, da, k), DType: da}, Operand{Codes: draw(r, db, k), DType: db}
	kind := r.IntN(8)
	if kind > 3 {
		return a, b
	}
	for i, o := range []*Operand{&a, &b} {
		if kind == 3 && i == r.IntN(2) {
			continue // only one operand has scales
		}
		middle := 127 + r.IntN(41) - 20
		for range (k + 31) / 32 {
			code := middle + r.IntN(25) - 12
			if kind == 1 || r.IntN(2000) == 0 {
				code = r.IntN(255 + r.IntN(2))
			}
			o.Scales = append(o.Scales, uint8(code))
		}
	}
	return a, b
}

func formats(m *Model, r *rand.Rand) (fp8.DType, fp8.DType) {
	p := m.Pairs[r.IntN(len(m.Pairs))]
	return p[0], p[1]
}

// length draws a dot product's length: mostly short, since time grows with it.
func length(r *rand.Rand) int {
	switch r.IntN(100) {
	case 0:
		return 8192
	case 1, 2, 3:
		return 1 + r.IntN(1024)
	}
	return 1 + r.IntN(160)
}

// sameFloat reports whether the bits are equal, those of NaN included.
func sameFloat(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }

func TestAgainstIntegers(t *testing.T) {
	n := 3_000
	if os.Getenv("OCTET_LONG") != "" {
		n = 1_000_000
	}
	variants := Models()
	for _, name := range []string{"h100,fast", "h100,promote=32", "ada,promote=48", "gaudi3,e4m3=240"} {
		m, err := Lookup(name)
		require.NoError(t, err)
		m.Name = name
		variants = append(variants, m)
	}
	for _, m := range variants {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(5, 6))
			for range n {
				da, db := formats(&m, r)
				k := length(r)
				a, b := drawOperands(r, da, db, k)
				promoted := r.IntN(2) > 0
				want, got := m.reference(a, b, promoted), m.Dot(a, b, promoted)
				if !sameFloat(want, got) {
					t.Fatalf("k %d, promoted %v: %x, expected %x\n%x\n%x", k, promoted, math.Float32bits(got), math.Float32bits(want), a, b)
				}
			}
		})
	}
}

// Addends of any size, beyond those that dot products of FP8 values produce.
func TestAddendsAgainstIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, m := range models {
		for range 5_000 {
			da, db := formats(&m, r)
			n := 1 + r.IntN(m.Sum.Group)
			a, b := draw(r, da, n), draw(r, db, n)
			c := math.Float32frombits(r.Uint32())
			if r.IntN(2) > 0 {
				c = float32(math.Ldexp(r.NormFloat64(), r.IntN(60)-40))
			}
			var x, y []float32
			for i := range a {
				x, y = append(x, da.Float32(uint32(a[i]))), append(y, db.Float32(uint32(b[i])))
			}
			scale := 0
			if m.Sum.MX && r.IntN(2) > 0 {
				scale = r.IntN(509) - 254
			}
			want := m.referenceFuse(a, b, da, db, scale, false, c)
			got := m.Sum.Fuse(x, y, m.Sum.MinPower(da), m.Sum.MinPower(db), math.Ldexp(1, scale), c)
			if math.Float32bits(want) != math.Float32bits(got) {
				t.Fatalf("%s: %s × %s times 2^%d, addend %x: %x, expected %x\n%x\n%x", m.Name, da, db, scale,
					math.Float32bits(c), math.Float32bits(got), math.Float32bits(want), a, b)
			}
		}
	}
}

// Changing one parameter of a model by one changes some result.
func TestEveryParameterMatters(t *testing.T) {
	edits := map[string]func(m *Model, by int){
		"Group":      func(m *Model, by int) { m.Sum.Group += by },
		"Bits":       func(m *Model, by int) { m.Sum.Bits += by },
		"Kept":       func(m *Model, by int) { m.Sum.Kept += by },
		"MX":         func(m *Model, _ int) { m.Sum.MX = !m.Sum.MX },
		"AddendLast": func(m *Model, _ int) { m.Sum.AddendLast = !m.Sum.AddendLast },
		"MinExpE4M3": func(m *Model, by int) { m.Sum.MinExpE4M3 += by },
		"MinExpE5M2": func(m *Model, by int) { m.Sum.MinExpE5M2 += by },
		"Promote":    func(m *Model, by int) { m.Promote += by * m.Sum.Group },
	}
	for _, m := range models {
		for name, edit := range edits {
			for _, by := range []int{-1, 1} {
				other := m
				edit(&other, by)
				switch {
				case name == "Kept" && (m.Sum.AddendLast || m.Sum.Kept == 23 && by > 0):
					continue // a float32 has no more bits, and AddendLast ignores Kept
				case name == "Promote" && m.Promote == 0:
					continue
				case name == "MinExpE4M3" && (by < 0 && m.Sum.MinExpE4M3 <= -9 || m.Sum.MinExpE4M3 < -9):
					continue // E4M3 has no smaller value
				case name == "MinExpE5M2" && by < 0 && m.Sum.MinExpE5M2 == -16:
					continue // nor E5M2
				}
				require.True(t, differ(&m, &other), fmt.Sprint(m.Name, " ", name, by))
			}
		}
	}
}

func differ(m, other *Model) bool {
	r := rand.New(rand.NewPCG(9, 10))
	for range 200_000 {
		da, db := formats(m, r)
		k := 1 + r.IntN(160)
		a, b := drawOperands(r, da, db, k)
		if r.IntN(2) > 0 { // only subnormal and small values show the minimum exponent
			for i := range a.Codes {
				a.Codes[i] &= 0x87
				b.Codes[i] = b.Codes[i]&0x87 | uint8(r.IntN(16))<<3
			}
			if r.IntN(2) > 0 {
				if a, b = b, a; !slices.Contains(m.Pairs, [2]fp8.DType{a.DType, b.DType}) {
					continue
				}
			}
		}
		if !sameFloat(m.Dot(a, b, true), other.Dot(a, b, true)) {
			return true
		}
	}
	return false
}
