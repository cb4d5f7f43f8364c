package data

import "math/bits"

// feistelRounds: four make a balanced Feistel network a pseudo-random
// permutation (Luby and Rackoff, 1988) if the halves are wide. Ours may be one
// bit; the extra rounds are for these.
const feistelRounds = 8

// permutation is a keyed shuffle of [0, n) that computes any of its values in
// constant memory: a Feistel network over the smallest even number of bits that
// holds n, repeated while the result is not below n (cycle walking, less than
// four rounds of it on average because the domain is less than 4n).
type permutation struct {
	n    uint64
	half uint // bits of each half
	keys [feistelRounds]uint64
}

// newPermutation takes n > 0.
func newPermutation(n int64, key uint64) permutation {
	p := permutation{n: uint64(n), half: uint(bits.Len64(uint64(n)-1)+1) / 2}
	for i := range p.keys {
		p.keys[i] = mix(key, uint64(i))
	}
	return p
}

// at is the value in place i, for i in [0, n).
func (p *permutation) at(i int64) int64 {
	mask := uint64(1)<<p.half - 1
	x := uint64(i)
	for {
		left, right := x>>p.half, x&mask
		for _, key := range p.keys {
			left, right = right, left^mix(key, right)&mask
		}
		x = left<<p.half | right
		if x < p.n {
			return int64(x)
		}
	}
}

// mix hashes x under a key: the x-th output of SplitMix64 (Steele, Lea and
// Flood, 2014; constants of its reference implementation) seeded with the key.
func mix(key, x uint64) uint64 {
	z := key + (x+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
