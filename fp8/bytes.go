package fp8

import (
	"encoding/binary"
	"math"
)

// Decode writes to dst the values of the codes in raw, which are contiguous and
// little endian, as in memory and in files. It applies no scale. Of two codes of four
// bits in a byte, the first is in the low half.
//
// Decode panics if d is not a float format or raw is shorter than d.Bytes(len(dst)).
func (d DType) Decode(dst []float32, raw []byte) {
	if !d.IsFloat() {
		panic("fp8: Decode: " + d.String() + " is not a float format")
	}
	raw = raw[:d.Bytes(len(dst))]
	switch d.row().Store {
	case 32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	case 16:
		for i := range dst {
			dst[i] = d.Float32(uint32(binary.LittleEndian.Uint16(raw[2*i:])))
		}
	case 8:
		for i := range dst {
			dst[i] = d.Float32(uint32(raw[i]))
		}
	default:
		for i := range dst {
			dst[i] = d.Float32(uint32(raw[i/2] >> (i % 2 * 4)))
		}
	}
}

// AppendFloats appends x to dst as little-endian float32.
func AppendFloats(dst []byte, x ...float32) []byte {
	for _, v := range x {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}
