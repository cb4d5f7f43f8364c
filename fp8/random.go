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
	return mix64(mix64(mix64(seed+golden64)^step) ^ name)
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
// A discarded fraction below 2^-16 therefore never rounds up. Magnitudes below 2^-16 of
// the smallest subnormal always become zero: below 2^-25 in E4M3, 2^-32 in E5M2 and
// 2^-40 in F16.
//
// A word is the mix of a number of a Weyl sequence: SplitMix (Steele, Lea and Flood
// 2014, Fast splittable pseudorandom number generators) with one stride for all streams,
// for some strides of 32 bits are weak. One half of the key is where the sequence begins,
// the other is mixed in. In a loop that is an addition, two multiplications and, where an
// instruction takes three operands, six shifts and XORs, all of 32-bit integers, so that
// a GPU and every vector unit can afford it and get the same bits. It is not cryptography.
//
// The tests walk along index, step, seed and name (uniform bytes, serial
// correlation at lags up to 1024, the halves of a word together, avalanche of
// every bit of seed, step, name and index). PractRand's tests of 32-bit words ran on
// 2 GiB along the words of one tensor, and on 1 GiB down columns of 2^20 words, at one
// word of one step after the other, and through two steps and 1024 word by word, each of
// four keys. The least p of some 12,000 was 5·10^-6, down columns. Dieharder's birthdays,
// rank 32x32, count the 1s (both), runs, craps, STS monobit and runs, DAB byte
// distribution, DCT, fill tree and monobit 2 failed nowhere along words, columns, steps
// and 1024 steps of one key. Two halves of words up to 2^23 halves apart are not
// correlated: along the words of a tensor, through 1024 steps and from step to step the
// largest of 3·10^8 coefficients was 6.3 standard deviations. Over the 2^32 words of a
// key every fraction rounds up with a probability that is right to within 2·10^-5, as it
// would be by chance.
func Random(key, index uint64) uint32 {
	word := randomWord(key, index/2)
	if index%2 == 0 {
		return word << 16
	}
	return word &^ 0xffff
}

func randomWord(key, number uint64) uint32 { return mix32(firstWord(key, number)) }

// firstWord returns the number of word number in the Weyl sequence, and the key of
// mix32. That of the next word is golden32 higher, as long as the high half of number
// stays the same.
func firstWord(key, number uint64) (weyl, key32 uint32) {
	key += number >> 32 * golden64
	return uint32(key) + uint32(number)*golden32, uint32(key >> 32)
}

// oddFirst is how many of n elements come before the first word that the
// elements from index on have to themselves: vectors begin with a low half.
func oddFirst(index uint64, n int) int { return min(int(index%2), n) }

// mix32 has the shifts and multipliers of lowbias32 (github.com/skeeto/hash-prospector).
// That is a bijection, and in a sequence shows it: of words that come once each there are
// too few alike. With x once more in the middle, which costs nothing where three operands
// go into one instruction, tests do not tell it from chance.
func mix32(x, key uint32) uint32 {
	h := x ^ x>>16 ^ key
	h *= mix1
	h ^= h>>15 ^ x
	h *= mix2
	return h ^ h>>16
}

const mix1, mix2 = 0x7feb352d, 0x846ca68b

// The integers nearest to 2^32 and 2^64 by the golden ratio: the multiples of no other
// stride stay as far from each other.
const golden32, golden64 = 0x9e3779b9, 0x9e3779b97f4a7c15

// mix64 is the finaliser of MurmurHash3, a bijection too.
func mix64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
