package fp8

import (
	"encoding/binary"
	"math"
)

// Decode writes to dst the values of the codes in raw, which are contiguous and
// little endian, as in memory and in files. It applies no scale.
//
// Decode panics if d is not a float format or raw is shorter than
// len(dst)*d.Size() bytes.
func (d DType) Decode(dst []float32, raw []byte) {
	if !d.IsFloat() {
		panic("fp8: Decode: " + d.String() + " is not a float format")
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

// AppendFloats appends x to dst as little-endian float32.
func AppendFloats(dst []byte, x ...float32) []byte {
	for _, v := range x {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}
