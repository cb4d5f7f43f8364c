package fp8

import "encoding/binary"

// Pack4 writes codes of four bits, one in each byte of src, to dst, two in each byte, the
// first in the low half. Of an odd number, the last byte has a high half of 0. dst may be
// src.
//
// Pack4 panics if dst is shorter than (len(src)+1)/2 bytes.
func Pack4(dst, src []uint8) {
	dst = dst[:(len(src)+1)/2]
	n := pack4Vectors(dst, src)
	dst, src = dst[n/2:], src[n:]
	for ; len(src) >= 8; dst, src = dst[4:], src[8:] { // eight codes in a word
		x := binary.LittleEndian.Uint64(src)
		x = (x | x>>4) & 0x00ff00ff00ff00ff
		x = (x | x>>8) & 0x0000ffff0000ffff
		binary.LittleEndian.PutUint32(dst, uint32(x|x>>16))
	}
	for i, code := range src {
		if i%2 == 0 {
			dst[i/2] = code
		} else {
			dst[i/2] |= code << 4
		}
	}
}

// Unpack4 writes the codes that Pack4 packed to dst, one in each byte.
//
// Unpack4 panics if src is shorter than (len(dst)+1)/2 bytes.
func Unpack4(dst, src []uint8) {
	src = src[:(len(dst)+1)/2]
	n := unpack4Vectors(dst, src)
	dst, src = dst[n:], src[n/2:]
	for ; len(dst) >= 8; dst, src = dst[8:], src[4:] { // eight codes in a word
		x := uint64(binary.LittleEndian.Uint32(src))
		x = (x | x<<16) & 0x0000ffff0000ffff
		x = (x | x<<8) & 0x00ff00ff00ff00ff
		x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
		binary.LittleEndian.PutUint64(dst, x)
	}
	for i := range dst {
		dst[i] = src[i/2] >> (i % 2 * 4) & 0xf
	}
}
