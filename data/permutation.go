package data

import "math/bits"

// feistelRounds is the number of rounds of the Feistel network. Four make it a
// pseudo-random permutation (Luby and Rackoff, 1988) if the halves are wide. Here
// halves can be one bit wide, which needs more rounds.
const feistelRounds = 8

// permutation is a keyed permutation of [0, n) that computes single values in
// constant memory. It is a Feistel network over the smallest even number of bits
// that holds n, repeated while the result is not below n (cycle walking). That
// takes fewer than four repetitions on average, because the domain is below 4n.
type permutation struct {
	n    uint64
	half uint // width of each half in bits
	keys [feistelRounds]uint64
}

// newPermutation returns a permutation of [0, n), n > 0.
func newPermutation(n int64, key uint64) permutation {
	p := permutation{n: uint64(n), half: uint(bits.Len64(uint64(n)-1)+1) / 2}
	for i := range p.keys {
		p.keys[i] = mix(key, uint64(i))
	}
	return p
}

// at returns the i-th value, for i in [0, n).
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

// mix returns a hash of x and key: the x-th output of SplitMix64 (Steele, Lea and
// Flood, 2014; constants of its reference implementation) seeded with key.
func mix(key, x uint64) uint64 {
	z := key + (x+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
