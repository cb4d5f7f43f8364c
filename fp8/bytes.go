package fp8

import (
	"encoding/binary"
	"math"
)

// Decode writes the values of codes as they lie in memory and in files: little
// endian, one behind the other. A scale is the caller's to apply.
//
// Decode panics if d is not a float format or raw shorter than dst asks for.
func (d DType) Decode(dst []float32, raw []byte) {
	if !d.IsFloat() {
		panic("fp8: Decode of " + d.String() + ", which is no float format")
	}
	raw = raw[:len(dst)*d.Size()]
	switch d.Size() {
	case 4:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	case 2:
		for i := range dst {
			dst[i] = d.Float32(uint32(binary.LittleEndian.Uint16(raw[2*i:])))
		}
	default:
		for i := range dst {
			dst[i] = d.Float32(uint32(raw[i]))
		}
	}
}

// AppendFloats appends numbers as F32 lies in memory and in files.
func AppendFloats(dst []byte, x ...float32) []byte {
	for _, v := range x {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}
