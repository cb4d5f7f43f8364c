package fp8

import "hash/fnv"

// NameKey returns the key of a tensor's name: its 64-bit FNV-1a hash, then
// mixed, because FNV maps names that differ in the last letter to nearby
// values. NameKey must never change, so that a later version of Octet resumes a
// run with the same rounding.
func NameKey(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix64(h.Sum64())
}

// StreamKey returns the key of the random stream of one tensor in one step of a
// run. name is the tensor's NameKey.
func StreamKey(seed, step, name uint64) uint64 {
	return mix64(mix64(mix64(seed+golden64)^step) ^ name)
}

// Random returns 16 random bits in the high half of its result and zeros in the low
// half. The bits belong to element index of the stream key (StreamKey). Elements 2i and
// 2i+1 take the low and the high half of one 32-bit word, so a vector of words serves
// twice as many elements. (PTX's cvt.rs takes one word for two 16-bit or four 8-bit
// results.)
//
// DType.Stochastic adds these bits to the discarded fraction, so the probability of
// rounding up is that fraction truncated to a multiple of 2^-16. The expected value is
// biased toward zero by less than 2^-16 of the spacing of the neighbors. In BF16,
// which discards 16 bits, it is exact. Rounding to nearest can be off by half a spacing
// in every cast, 2^15 times as much.
//
// A discarded fraction below 2^-16 never rounds up. Magnitudes below 2^-16 of the
// smallest subnormal therefore flush to zero: below 2^-25 in E4M3, 2^-32 in E5M2 and
// 2^-40 in F16.
//
// A word is a hash of one value of a Weyl sequence, as in SplitMix (Steele, Lea and
// Flood 2014, Fast splittable pseudorandom number generators). All streams share one
// stride, because some 32-bit strides are weak. The low half of the key is the start of
// the sequence; the hash mixes in the high half. In a loop, a word costs one addition,
// two multiplications and, with three-operand instructions, six shifts and XORs of
// 32-bit integers. GPUs and vector units compute the same bits at that cost. The
// generator is not cryptographic.
//
// Octet's tests vary index, step, seed and name. They check uniform bytes, serial
// correlation at lags up to 1024, the two halves of a word together, and the avalanche
// of every bit of seed, step, name and index.
//
// PractRand's tests of 32-bit words ran on four keys each. They read 2 GiB along the
// words of one tensor and 1 GiB in each of these orders: down columns of 2^20 words, one
// word of successive steps, and two and 1024 steps word by word. The smallest of some
// 12,000 p-values was 5·10^-6, down columns.
//
// These Dieharder tests failed nowhere along words, columns, steps and 1024 steps of one
// key: birthdays, rank 32x32, count the 1s (both), runs, craps, STS monobit and runs,
// DAB byte distribution, DCT, fill tree and monobit 2.
//
// Halves of words up to 2^23 halves apart are uncorrelated: along the words of a
// tensor, through 1024 steps and from step to step, the largest of 3·10^8 coefficients
// was 6.3 standard deviations. Over the 2^32 words of a key, every fraction rounds up
// with its probability to within 2·10^-5, as truly random bits would.
func Random(key, index uint64) uint32 {
	word := randomWord(key, index/2)
	if index%2 == 0 {
		return word << 16
	}
	return word &^ 0xffff
}

func randomWord(key, number uint64) uint32 { return mix32(weylValue(key, number)) }

// weylValue returns the Weyl value of word number and the key of mix32. The next word's
// Weyl value is golden32 higher, as long as the high half of number stays the same.
func weylValue(key, number uint64) (weyl, key32 uint32) {
	key += number >> 32 * golden64
	return uint32(key) + uint32(number)*golden32, uint32(key >> 32)
}

// oddFirst returns 1 if index is odd, else 0, but at most n: the number of
// elements before the first low half of a word, where vectors start.
func oddFirst(index uint64, n int) int { return min(int(index%2), n) }

// mix32 hashes x with the shifts and multipliers of lowbias32
// (github.com/skeeto/hash-prospector). lowbias32 is a bijection: in a sequence every word
// comes once, so equal words are rarer than in random data, and tests detect that.
// mix32 XORs x in again in the middle, which passes these tests and is free with
// three-operand instructions.
func mix32(x, key uint32) uint32 {
	h := x ^ x>>16 ^ key
	h *= mix1
	h ^= h>>15 ^ x
	h *= mix2
	return h ^ h>>16
}

const mix1, mix2 = 0x7feb352d, 0x846ca68b

// golden32 and golden64 are the odd integers nearest to 2^32 and 2^64 divided by the
// golden ratio. With this stride the values of a Weyl sequence stay farthest apart.
const golden32, golden64 = 0x9e3779b9, 0x9e3779b97f4a7c15

// mix64 is the 64-bit finalizer of MurmurHash3, a bijection.
func mix64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
