package fp8

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Kind says what the codes of a format stand for.
type Kind uint8

const (
	Float   Kind = iota // sign, exponent and mantissa
	Integer             // a signed integer, in two's complement
	Power               // E8M0: a power of two without a sign, for scales
	Index               // I32: token ids and counters, to which no cast applies
)

// Special says which codes of a Float format stand for no finite number. Exponent
// means the exponent bits of a code.
type Special uint8

const (
	// Fin: none. A cast of NaN gives the largest value, as PTX and Transformer Engine do.
	Fin Special = iota
	// FN: all ones, with either sign, is NaN. There is no infinity. (OCP's E4M3)
	FN
	// IEEE: the largest exponent is for infinity (mantissa 0) and NaN.
	IEEE
	// FNUZ: the code of -0 is NaN. There is no -0 and no infinity, and the bias is one
	// more. (AMD's FP8 before MI350)
	FNUZ
	// P3109: as FNUZ, and all ones is infinity. (the draft of IEEE P3109)
	P3109
)

var specialNames = [...]string{Fin: "fin", FN: "fn", IEEE: "ieee", FNUZ: "fnuz", P3109: "p3109"}

// Format describes a number format. A Float code has, from the highest bit, a sign,
// Exponent bits and Mantissa bits. With e and f the values of the latter two, a
// magnitude is
//
//	f/2^Mantissa · 2^(1-Bias)        if e is 0
//	(1 + f/2^Mantissa) · 2^(e-Bias)  otherwise
//
// An Integer code of n bits stands for itself; casts use -(2^(n-1)-1) to 2^(n-1)-1.
type Format struct {
	Name     string // lower case, as configurations, dumps and errors write it
	Kind     Kind
	Exponent int // bits
	Mantissa int // bits; of an integer the bits besides the sign
	Bias     int
	Special  Special
	// Mask says that a cast clears bits of the nearest BF16 value instead of rounding to the
	// nearest value of the format: see ParseDType.
	Mask bool
	Bits int // of a code
	// Store is the number of bits of an element in memory: 32, 16, 8, or 4 for two
	// elements in a byte, the first in the low half.
	Store int
	// Container is the format whose codes the elements have in memory: BF16 for floating
	// formats of more than eight bits that BF16 contains, such as E8M5. They have no
	// codes of their own and no scales. Otherwise it is the format itself.
	Container DType
	// File is the dtype of safetensors files for the format's codes, without gaps between
	// them; empty if those have none.
	File string
}

// inBytes is the suffix of the name of a format of four bits with one element in a byte.
const inBytes = " in bytes"

// format is a row: a Format and what follows from it.
type format struct {
	Format
	max         float32 // largest finite value
	minExponent int     // exponent of the smallest normal value
	maxCode     uint32  // code of max
	nan         uint32  // canonical code of NaN; without one, what NaN is cast to
	sign        uint32  // bit of the code; 0 if there is none
	values      *[256]float32
	// bytes reports whether a code is a magnitude with the sign in the highest bit of its
	// byte or word, as the vector kernels write it: see fromBytes.
	bytes   bool
	vectors *vectorConstants // nil if the vector kernels do not cast to the format
	decode  *decodeWords     // nil if they do not decode it
	inBytes DType            // the same format with one element in a byte
}

// rows holds a row for each DType, in the order of registration. A row never changes
// once its DType is known.
var (
	rows, known = namedRows() // known is the number of rows in use
	adds        sync.Mutex    // held to read known, and to add a row
)

// named are the formats with constants.
var named = [...]Format{
	Invalid:  {Name: "invalid"},
	F32:      {Name: "fp32", Exponent: 8, Mantissa: 23, Special: IEEE, File: "F32"},
	BF16:     {Name: "bf16", Exponent: 8, Mantissa: 7, Special: IEEE, File: "BF16"},
	F16:      {Name: "fp16", Exponent: 5, Mantissa: 10, Special: IEEE, File: "F16"},
	E4M3:     {Name: "e4m3", Exponent: 4, Mantissa: 3, Special: FN, File: "F8_E4M3"},
	E4M3IEEE: {Name: "e4m3ieee", Exponent: 4, Mantissa: 3, Special: IEEE},
	E5M2:     {Name: "e5m2", Exponent: 5, Mantissa: 2, Special: IEEE, File: "F8_E5M2"},
	E8M0:     {Name: "e8m0", Kind: Power, Exponent: 8, Bias: 127, File: "F8_E8M0"},
	E2M1:     {Name: "e2m1", Exponent: 2, Mantissa: 1, File: "F4"},
	E2M3:     {Name: "e2m3", Exponent: 2, Mantissa: 3, File: "F6_E2M3"},
	E3M2:     {Name: "e3m2", Exponent: 3, Mantissa: 2, File: "F6_E3M2"},
	INT8:     {Name: "int8", Kind: Integer, Mantissa: 7, File: "I8"},
	INT4:     {Name: "int4", Kind: Integer, Mantissa: 3},
	I32:      {Name: "i32", Kind: Index, Mantissa: 31, File: "I32"},
}

func namedRows() (rows [256]*format, known DType) {
	known = DType(len(named))
	for d, f := range named {
		if f.Kind == Float && f.Exponent > 0 {
			f.Bias = defaultBias(f.Exponent, f.Special)
		}
		known = register(&rows, known, DType(d), f)
	}
	return rows, known
}

// register adds format d, and the same with one element in a byte, if d has two.
func register(rows *[256]*format, known, d DType, f Format) DType {
	rows[d] = newFormat(d, f)
	rows[d].inBytes = d
	if rows[d].Store == 4 {
		f.Name, f.File = f.Name+inBytes, ""
		rows[known] = newFormat(known, f)
		rows[d].inBytes, rows[known].inBytes = known, known
		known++
	}
	return known
}

// defaultBias returns the bias of IEEE 754, one more for formats without -0.
func defaultBias(exponent int, s Special) int {
	bias := 1<<(exponent-1) - 1
	if s == FNUZ || s == P3109 {
		bias++
	}
	return bias
}

// newFormat completes the row of format d.
func newFormat(d DType, f Format) *format {
	if f.Exponent == 0 && f.Mantissa == 0 {
		return &format{Format: f}
	}
	f.Bits = 1 + f.Exponent + f.Mantissa
	f.Store, f.Container = max(8, f.Bits), d
	switch {
	case f.Kind == Power:
		f.Bits, f.Store = 8, 8
	case f.Bits <= 4 && !strings.HasSuffix(f.Name, inBytes):
		f.Store = 4
	case f.Bits > 8 && f.Bits < 16:
		f.Store, f.Container = 16, BF16
	}
	r := &format{Format: f, minExponent: 1 - f.Bias, sign: 1 << (f.Bits - 1)}
	magnitude := r.sign - 1
	switch f.Kind {
	case Index:
		return r
	case Power:
		r.maxCode, r.nan, r.sign, r.minExponent, r.max = 0xfe, 0xff, 0, -127, 0x1p127
	case Integer:
		// The magnitudes are the subnormal values of a format whose smallest normal value,
		// 2^Mantissa, no code reaches.
		r.maxCode, r.minExponent, r.max = magnitude, f.Mantissa, float32(magnitude)
	case Float:
		r.maxCode = magnitude - [...]uint32{Fin: 0, FN: 1, IEEE: 1 << f.Mantissa, FNUZ: 0, P3109: 1}[f.Special]
		r.nan = [...]uint32{Fin: magnitude, FN: magnitude, IEEE: magnitude, FNUZ: r.sign, P3109: r.sign}[f.Special]
		r.max = r.value(r.maxCode)
	}
	if f.Container == d && f.Bits <= 8 {
		r.values = new([256]float32)
		for code := range r.values {
			r.values[code] = r.float32(uint32(code))
		}
	}
	r.bytes = f.Kind == Float && f.Bits >= 8 && f.Bits == f.Store && f.Special < FNUZ
	if f.Container == d && f.Bits <= 16 && f.Kind != Power && (f.Exponent <= 5 || d == BF16) {
		r.vectors = newVectorConstants(r)
	}
	r.decode = newDecodeWords(r)
	return r
}

// Format returns the description of d.
func (d DType) Format() Format { return d.row().Format }

func (d DType) row() *format {
	if r := rows[d]; r != nil {
		return r
	}
	return rows[Invalid]
}

// String returns the lower-case name that configurations, dumps and errors use.
func (d DType) String() string { return d.row().Name }

// Size returns the bytes of one element in memory; 0 for an invalid DType and for formats
// of four bits, of which two share a byte: see Bytes.
func (d DType) Size() int { return d.row().Store / 8 }

// Bytes returns the bytes of n consecutive elements in memory.
func (d DType) Bytes(n int) int { return (n*d.row().Store + 7) / 8 }

// InBytes returns the format with the codes of d and one element in a byte of memory, d
// itself unless it has four bits.
func (d DType) InBytes() DType { return d.row().inBytes }

// Max returns the largest finite value; 0 for I32, which has no scales and casts.
func (d DType) Max() float32 { return d.row().max }

// IsQuantized reports whether d is a format of at most eight bits for GEMM operands and
// stored tensors, which needs a scale: a floating-point format such as E4M3 and E2M1, or
// an integer format such as INT8. The scale format E8M0 is none.
func (d DType) IsQuantized() bool {
	r := d.row()
	return r.Bits > 0 && r.Bits <= 8 && r.Kind != Power
}

// IsForScales reports whether d is E8M0: a format of block scales that has no sign and no
// zero, so that no other tensor can have it.
func (d DType) IsForScales() bool { return d.row().Kind == Power }

// HoldsMoments reports whether Adam's moments can have the format d: any floating-point
// format that has NaN, with codes of its own of more than four bits.
func (d DType) HoldsMoments() bool {
	r := d.row()
	return r.Bits > 0 && r.Store >= 8 && r.Kind == Float && r.Container == d && d.HasNaN()
}

// HoldsMomentum reports whether Muon's momentum can have the format d: one of Adam's moments, or
// an integer format with codes of its own of more than four bits, whose values all count alike.
func (d DType) HoldsMomentum() bool { return d.HoldsMoments() || d.IsInteger() && d.Size() == 1 }

// IsWide reports whether d is a format of more than eight bits with codes of its own, whose
// tensors need no scale: F32, BF16 or F16. Activations, gradients and GEMM operands may
// have it.
func (d DType) IsWide() bool {
	r := d.row()
	return r.Kind == Float && r.Bits >= 16
}

// Smallest returns the smallest positive value. In formats with codes of their own all finite
// values are multiples of it. It is 0 for I32.
func (d DType) Smallest() float32 {
	r := d.row()
	switch r.Kind {
	case Index:
		return 0
	case Power:
		return 0x1p-127
	}
	if r.Mask {
		return r.value(1 << r.Mantissa) // there are no subnormal values
	}
	return r.value(1)
}

// ScaledIsBF16 reports whether a value of d, a floating-point format of up to eight bits,
// times a scale of the format s is a BF16 value, unless it leaves BF16's range: whether their
// significands have at most eight bits together. With E8M0 they do in every such d, with
// E4M3 in formats of up to three bits of mantissa.
func (d DType) ScaledIsBF16(s DType) bool {
	f, by := d.row(), s.row()
	bits := f.Mantissa + 1
	if by.Kind == Float {
		bits += by.Mantissa + 1
	}
	return d.IsQuantized() && f.Kind == Float && by.Bits <= 8 && bits <= 8
}

// HasNaN reports whether a code of d stands for NaN.
func (d DType) HasNaN() bool {
	r := d.row()
	return r.Kind == Power || r.Kind == Float && r.Special != Fin
}

// IsInteger reports whether d is a quantized integer format, whose products sum exactly.
func (d DType) IsInteger() bool { return d.row().Kind == Integer }

// IsFloat reports whether the elements are real numbers, to which casts apply: any valid
// DType but I32.
func (d DType) IsFloat() bool { return d.row().Bits > 0 && d != I32 }

// grammar matches the names of floating-point formats: bits of exponent and mantissa,
// bias, and special codes.
var grammar = regexp.MustCompile(`^e([1-8])m([1-7])(?:b([0-9]+))?(fin|fn|ieee|fnuz|p3109|mask)?$`)

// ParseDType returns the DType that String names s, ignoring case. Any name of the form
//
//	e<exponent bits>m<mantissa bits>[b<bias>][fin|fn|ieee|fnuz|p3109|mask]
//
// is a format, such as e3m4, e5m2fnuz and e4m3b11: see Special for the suffixes. Without
// one, E4M3 is FN, other formats of eight bits or more are IEEE, smaller ones are Fin.
// The bias is by default 2^(exponent bits - 1) - 1, for FNUZ and P3109 one more. A format
// of up to eight bits, the sign included, has codes of its own; a larger one rounds values
// of BF16, which must contain it (e8m5). Two names of one format give the same DType.
//
// A larger format may have the suffix mask (e8m5mask). A cast to it truncates: it rounds to
// BF16, clears the mantissa bits that the format lacks, gives 0 for magnitudes below the
// smallest normal value, and the largest value for finite magnitudes above it. Infinity and
// NaN stay. Such formats are those of "To FP8 and Back Again" (arXiv 2405.18710).
//
// ParseDType also accepts "f32" and "f16". The error for an unknown name suggests a known one.
func ParseDType(s string) (DType, error) {
	name := strings.ToLower(s)
	if name == "f32" || name == "f16" {
		name = "fp" + name[1:]
	}
	adds.Lock()
	defer adds.Unlock()
	if d := lookup(name); d != Invalid {
		return d, nil
	}
	m := grammar.FindStringSubmatch(name)
	if m == nil {
		return Invalid, unknown(s, name)
	}
	f, err := parametric(m)
	if err != nil {
		return Invalid, fmt.Errorf("number format %q: %w", s, err)
	}
	if f.Name == "e8m7" {
		return BF16, nil
	}
	if d := lookup(f.Name); d != Invalid {
		return d, nil
	}
	if known >= math.MaxUint8-1 {
		return Invalid, fmt.Errorf("number format %q: this process already uses %d formats, the maximum", s, known)
	}
	d := known
	known = register(&rows, d+1, d, f)
	return d, nil
}

// FromFile returns the format with the dtype name in safetensors files.
func FromFile(name string) (DType, bool) {
	d, _ := ParseDType(strings.TrimPrefix(name, "F8_")) // FNUZ formats have no constants
	for i, f := range named {
		if f.File == name {
			d = DType(i)
		}
	}
	return d, name != "" && d.row().File == name
}

func lookup(name string) DType {
	for d := Invalid + 1; d < known; d++ {
		if rows[d].Name == name && !strings.HasSuffix(name, inBytes) {
			return d
		}
	}
	return Invalid
}

// parametric returns the format of a match of grammar.
func parametric(m []string) (f Format, err error) {
	f.Exponent, f.Mantissa = int(m[1][0]-'0'), int(m[2][0]-'0')
	bits := 1 + f.Exponent + f.Mantissa
	usual := Fin
	switch {
	case f.Exponent == 4 && f.Mantissa == 3:
		usual = FN
	case bits >= 8:
		usual = IEEE
	}
	f.Special = usual
	for s, name := range specialNames {
		if m[4] == name {
			f.Special = Special(s)
		}
	}
	f.Mask = m[4] == "mask"
	standard := defaultBias(f.Exponent, f.Special)
	f.Bias = standard
	if m[3] != "" {
		if f.Bias, err = strconv.Atoi(m[3]); err != nil || f.Bias > 64 {
			return f, fmt.Errorf("the bias is %s, must be at most 64", m[3])
		}
	}
	switch {
	case f.Mask && (bits <= 8 || bits >= 16):
		return f, errors.New("a mask clears bits of bf16 and leaves nine to fifteen, such as e8m3mask and e5m7mask")
	case bits > 8 && (f.Special != IEEE || f.Bias != standard):
		return f, errors.New("a format of more than eight bits is rounded bf16 and takes no bias and no suffix but mask")
	case bits > 8 && f.Exponent == 1:
		return f, errors.New("infinity takes the larger of two exponents: all numbers would be subnormal (use two or more bits of exponent)")
	case f.Exponent == 1 && f.Special == IEEE:
		return f, errors.New("ieee reserves the larger of two exponents: all numbers would be subnormal (use fin or fn)")
	}
	f.Name = fmt.Sprintf("e%dm%d", f.Exponent, f.Mantissa)
	if f.Bias != standard {
		f.Name += fmt.Sprintf("b%d", f.Bias)
	}
	if f.Special != usual {
		f.Name += specialNames[f.Special]
	}
	if f.Mask {
		f.Name += "mask"
	}
	if f.Name == "e4m3fnuz" || f.Name == "e5m2fnuz" {
		f.File = "F8_" + strings.ToUpper(f.Name)
	}
	return f, nil
}
