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

// Pack4 writes codes of four bits, one in each byte of src, to dst, two in each byte, the
// first in the low half. Of an odd number, the last byte has a high half of 0. dst may be
// src.
//
// Pack4 panics if dst is shorter than (len(src)+1)/2 bytes.
func Pack4(dst, src []uint8) {
	n := len(src) / 2
	dst = dst[:(len(src)+1)/2]
	i := 0
	for ; i+4 <= n; i += 4 { // eight codes in a word
		x := binary.LittleEndian.Uint64(src[2*i:])
		x = (x | x>>4) & 0x00ff00ff00ff00ff
		x = (x | x>>8) & 0x0000ffff0000ffff
		binary.LittleEndian.PutUint32(dst[i:], uint32(x|x>>16))
	}
	for ; i < n; i++ {
		pair := src[2*i:][:2]
		dst[i] = pair[0] | pair[1]<<4
	}
	if len(src)%2 == 1 {
		dst[n] = src[2*n]
	}
}

// Unpack4 writes the codes that Pack4 packed to dst, one in each byte.
//
// Unpack4 panics if src is shorter than (len(dst)+1)/2 bytes.
func Unpack4(dst, src []uint8) {
	n := len(dst) / 2
	src = src[:(len(dst)+1)/2]
	i := 0
	for ; i+4 <= n; i += 4 { // eight codes in a word
		x := uint64(binary.LittleEndian.Uint32(src[i:]))
		x = (x | x<<16) & 0x0000ffff0000ffff
		x = (x | x<<8) & 0x00ff00ff00ff00ff
		x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
		binary.LittleEndian.PutUint64(dst[2*i:], x)
	}
	for ; i < n; i++ {
		pair := dst[2*i:][:2]
		pair[0], pair[1] = src[i]&0xf, src[i]>>4
	}
	if len(dst)%2 == 1 {
		dst[2*n] = src[n] & 0xf
	}
}

// AppendFloats appends x to dst as little-endian float32.
func AppendFloats(dst []byte, x ...float32) []byte {
	for _, v := range x {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}
