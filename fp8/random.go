package fp8

import "hash/fnv"

// NameKey returns the key of a tensor's name: FNV-1a of 64 bits, then a mixer,
// because FNV leaves names that differ in their last letter close together.
// It never changes: a run resumed by a later version rounds the same way.
func NameKey(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix64(h.Sum64())
}

// StreamKey returns the key of the random bits of one tensor (its NameKey) in
// one step of one run.
func StreamKey(seed, step, name uint64) uint64 {
	return mix64(mix64(mix64(seed+0x9e3779b97f4a7c15)^step) ^ name)
}

// Random returns 32 random bits for element index of the stream key, which
// comes from StreamKey. It needs 32-bit integer operations only, five
// multiplications and some shifts, so that a GPU and every vector unit can
// afford it per element and get the same bits.
//
// The low word of the index goes through a mixer twice, and meets the key's
// low half before and its high half, with the index's high word, between. In
// one stream each value occurs once in 2^32 elements. It is not cryptography.
//
// The tests walk along index, step, seed and name (uniform bytes, serial
// correlation at lags up to 1024, avalanche of every bit of key and index).
// Walks along the index of one tensor, along the steps at one element, and
// through 1024 steps element by element also passed dieharder's birthdays,
// rank 32x32, count the 1s (both), runs, craps, STS monobit and runs, DAB byte
// distribution, DCT, fill tree and monobit 2.
func Random(key, index uint64) uint32 {
	first, second := randomKeys(key, index)
	return mix32(mix32(uint32(index)^first) ^ second)
}

// randomKeys is what all indices with the same high word have in common.
func randomKeys(key, index uint64) (first, second uint32) {
	return uint32(key), uint32(key>>32) + uint32(index>>32)*0x9e3779b9
}

// mix32 is a bijection in which every input bit changes every output bit half
// of the time, to within 0.1 per cent: the shifts and constants were found by
// the search of github.com/skeeto/hash-prospector (bias 0.107).
func mix32(x uint32) uint32 {
	x ^= x >> 16
	x *= mix1
	x ^= x >> 15
	x *= mix2
	x ^= x >> 15
	return x
}

const mix1, mix2 = 0x21f0aaad, 0xd35a2d97

// mix64 is the finaliser of MurmurHash3, a bijection too.
func mix64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
