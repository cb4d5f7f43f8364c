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

// Random returns sixteen random bits, above sixteen zeros, for element index of
// the stream key, which comes from StreamKey. Elements 2i and 2i+1 have the low
// and the high half of one word, so that a vector of words serves twice as many
// elements. (PTX's cvt.rs takes a word for two results of sixteen bits, or four of
// eight.)
//
// Sixteen bits round up with a probability that is the discarded fraction cut
// off to a multiple of 2^-16, as DType.Stochastic adds them to it: the expected
// value is nearer to zero than the exact one by less than 2^-16 of the distance
// between the neighbours. In BF16, which discards sixteen bits, it is exact. The
// steady error of rounding to nearest is up to 2^15 times as large.
//
// A word needs 32-bit integer operations only, five multiplications and some
// shifts, so that a GPU and every vector unit can afford it and get the same
// bits. The low half of its number goes through a mixer twice, and meets the
// key's low half before and its high half, with the number's high half, between.
// In one stream each value of a word occurs once in 2^32. It is not cryptography.
//
// The tests walk along index, step, seed and name (uniform bytes, serial
// correlation at lags up to 1024, the halves of a word together, avalanche of
// every bit of key and index). Walks along the words of one tensor, along the
// steps at one word, and through 1024 steps word by word also passed dieharder's
// birthdays, rank 32x32, count the 1s (both), runs, craps, STS monobit and runs,
// DAB byte distribution, DCT, fill tree and monobit 2.
func Random(key, index uint64) uint32 {
	word := randomWord(key, index/2)
	if index%2 == 0 {
		return word << 16
	}
	return word &^ 0xffff
}

func randomWord(key, number uint64) uint32 {
	first, second := randomKeys(key, number)
	return mix32(mix32(uint32(number)^first) ^ second)
}

// randomKeys is what all words have in common whose numbers have the same high
// half.
func randomKeys(key, number uint64) (first, second uint32) {
	return uint32(key), uint32(key>>32) + uint32(number>>32)*0x9e3779b9
}

// oddFirst is how many of n elements come before the first word that the
// elements from index on have to themselves: vectors begin with a low half.
func oddFirst(index uint64, n int) int { return min(int(index%2), n) }

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
