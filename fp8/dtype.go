package fp8

import (
	"fmt"
	"strings"
)

// DType is the storage format of a tensor's elements. All of Octet names
// formats by it: tensors, recipes, kernels and files.
type DType uint8

const (
	Invalid  DType = iota
	F32            // IEEE binary32
	BF16           // bfloat16: float32 with 8 significant bits
	F16            // IEEE binary16, largest 65504
	E4M3           // OCP FP8 E4M3 (float8_e4m3fn): largest 448, no infinity, NaN 0x7f and 0xff
	E4M3IEEE       // E4M3 with an IEEE-style top exponent, as on Gaudi2: largest 240, infinity 0x78
	E5M2           // OCP FP8 E5M2: largest 57344, infinity 0x7c
	E8M0           // power-of-two scale of MX blocks: 2^(code-127), NaN 0xff, no zero and no sign
	I32            // int32: token ids and counters
)

// format holds the constants of one DType.
type format struct {
	name         string
	size         int     // bytes
	max          float32 // largest finite value
	mantissaBits int     // stored bits of the significand
	minExponent  int     // exponent of the smallest normal value
	maxCode      uint32  // code of max; the next code is infinity, or NaN in a format without infinity
}

var formats = [...]format{
	Invalid:  {name: "invalid"},
	F32:      {"fp32", 4, 0x1.fffffep127, 23, -126, 0x7f7fffff},
	BF16:     {"bf16", 2, 0x1.fep127, 7, -126, 0x7f7f},
	F16:      {"fp16", 2, 65504, 10, -14, 0x7bff},
	E4M3:     {"e4m3", 1, 448, 3, -6, 0x7e},
	E4M3IEEE: {"e4m3ieee", 1, 240, 3, -6, 0x77},
	E5M2:     {"e5m2", 1, 57344, 2, -14, 0x7b},
	E8M0:     {"e8m0", 1, 0x1p127, 0, -127, 0xfe},
	I32:      {"i32", 4, 0, 0, 0, 0},
}

func (d DType) row() format {
	if int(d) >= len(formats) {
		return formats[Invalid]
	}
	return formats[d]
}

// String returns the lower-case name that configs, dumps and errors use.
func (d DType) String() string { return d.row().name }

// Size returns the number of bytes of one element; 0 for an invalid DType.
func (d DType) Size() int { return d.row().size }

// Max returns the largest finite value; 0 for I32, which is not a float format.
func (d DType) Max() float32 { return d.row().max }

// IsFP8 reports whether d is one of the eight-bit formats that GEMMs take as
// inputs: E4M3, E4M3IEEE or E5M2, not the scale format E8M0.
func (d DType) IsFP8() bool { return d == E4M3 || d == E4M3IEEE || d == E5M2 }

// IsFloat reports whether d is a floating-point format: any valid DType but
// I32. E8M0 is one.
func (d DType) IsFloat() bool { return d >= F32 && d <= E8M0 }

// ParseDType returns the DType that String names s. It ignores case and also
// accepts "f32" and "f16".
func ParseDType(s string) (DType, error) {
	name := strings.ToLower(s)
	for d := F32; int(d) < len(formats); d++ {
		if row := formats[d].name; row == name || d <= F16 && row == strings.Replace(name, "f", "fp", 1) {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown number format %q (known: fp32, bf16, fp16, e4m3, e4m3ieee, e5m2, e8m0)", s)
}
