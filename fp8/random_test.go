package fp8

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRandomIsFixed compares with fixed values, which must never change: resumed
// runs of later versions and all devices must draw the same bits.
func TestRandomIsFixed(t *testing.T) {
	require.Equal(t, uint64(0xefd01f60ba992926), NameKey(""))
	require.Equal(t, uint64(0x82a2a958a9bece5b), NameKey("a"))
	require.Equal(t, uint64(0xb164ea397a4a0575), NameKey("layers.3.mlp.hidden"))
	name := NameKey("layers.3.mlp.hidden")
	require.Equal(t, uint64(0x365afc61535b3920), StreamKey(0, 0, 0))
	require.Equal(t, uint64(0xefd774cb2255d1ba), StreamKey(1234, 7, name))
	require.Equal(t, uint64(0x7cab796a904ac01c), StreamKey(1234, 8, name))
	key := StreamKey(1234, 7, name)
	for index, want := range map[uint64]uint32{
		0:           0xcbbe0000,
		1:           0x06f40000,
		2:           0xf3190000,
		3:           0x6cbe0000,
		1<<33 - 2:   0xc02d0000,
		1<<33 - 1:   0xabed0000,
		1 << 33:     0xa47a0000,
		1<<33 + 1:   0x6fe60000,
		2<<40 + 2*3: 0x940a0000,
	} {
		require.Equal(t, want, Random(key, index), index)
	}
}

// streams are sequences of draws that must be statistically independent. Each
// varies one or two of seed, step, name and index.
var streams = map[string]func(i uint64) uint32{
	"index":      func(i uint64) uint32 { return Random(StreamKey(1, 2, NameKey("x")), i) },
	"index high": func(i uint64) uint32 { return Random(StreamKey(1, 2, NameKey("x")), i<<32) },
	"stride":     func(i uint64) uint32 { return Random(StreamKey(1, 2, NameKey("x")), i*4096) },
	"step":       func(i uint64) uint32 { return Random(StreamKey(1, i, NameKey("x")), 3) },
	"seed":       func(i uint64) uint32 { return Random(StreamKey(i, 2, NameKey("x")), 3) },
	"name":       func(i uint64) uint32 { return Random(StreamKey(1, 2, NameKey(fmt.Sprintf("layers.%d.mlp", i))), 3) },
	"steps":      func(i uint64) uint32 { return Random(StreamKey(1, i%256, NameKey("x")), i/256) },
}

// All bounds are at least five standard deviations of independent bits. The
// inputs are fixed, so the tests are deterministic.

func TestRandomIsUniform(t *testing.T) {
	const n = 1 << 17
	for name, draw := range streams {
		var sum float64
		var counts [2][256]float64
		for i := range uint64(n) {
			r := draw(i)
			require.Zero(t, r&0xffff, name)
			sum += float64(r) / (1 << 32)
			for b := range counts {
				counts[b][r>>(16+8*b)&0xff]++
			}
		}
		require.InDelta(t, 0.5, sum/n, 5*math.Sqrt(1./12/n), name)
		for b := range counts {
			var chi float64
			for _, c := range counts[b] {
				chi += (c - n/256.) * (c - n/256.) / (n / 256.)
			}
			require.InDelta(t, 255, chi, 5*math.Sqrt(2*255), "%s: byte %d", name, b)
		}
	}
}

func TestRandomNeighboursAreUncorrelated(t *testing.T) {
	const n = 1 << 16
	for name, draw := range streams {
		values := make([]float64, n)
		words := make([]uint32, n)
		for i := range values {
			words[i] = draw(uint64(i))
			values[i] = float64(words[i])/(1<<32) - 0.5
		}
		for _, lag := range []int{1, 2, 3, 4, 8, 16, 32, 64, 256, 1024} {
			var product float64
			var differing int
			for i := lag; i < n; i++ {
				product += values[i] * values[i-lag]
				differing += bits.OnesCount32(words[i] ^ words[i-lag])
			}
			pairs := float64(n - lag)
			require.InDelta(t, 0, product*12/pairs, 5/math.Sqrt(pairs), "%s: lag %d", name, lag)
			require.InDelta(t, 8, float64(differing)/pairs, 5*math.Sqrt(4/pairs), "%s: bits at lag %d", name, lag)
		}
	}
}

// TestRandomHalvesAreIndependent tests the two elements that share a word: every
// pair of their bytes, high or low, must be equally frequent, and their XOR and
// their sum must be uniform.
func TestRandomHalvesAreIndependent(t *testing.T) {
	const n, cells = 1 << 20, 1 << 16
	streams := map[string]func(i uint64) (even, odd uint32){
		"index": func(i uint64) (uint32, uint32) { return Random(1, 2*i), Random(1, 2*i+1) },
		"step": func(i uint64) (uint32, uint32) {
			key := StreamKey(1, i, NameKey("x"))
			return Random(key, 6), Random(key, 7)
		},
	}
	for name, draw := range streams {
		var pairs [4][cells]float64
		var joined [2][cells]float64
		for i := range uint64(n) {
			even, odd := draw(i)
			for b := range pairs {
				pairs[b][even>>(16+8*(b%2))&0xff<<8|odd>>(16+8*(b/2))&0xff]++
			}
			joined[0][(even^odd)>>16]++
			joined[1][(even+odd)>>16]++
		}
		for b, counts := range append(pairs[:], joined[:]...) {
			var chi float64
			for _, c := range counts {
				chi += (c - n/cells) * (c - n/cells) / (n / cells)
			}
			require.InDelta(t, cells-1, chi, 5*math.Sqrt(2*cells), "%s: %d", name, b)
		}
	}
}

// TestRandomAvalanche flips each bit of seed, step, name and index; each result bit must
// change half of the time. Flipping a bit of the key need not do that: only one
// multiplication follows its high half. StreamKey mixes the keys.
func TestRandomAvalanche(t *testing.T) {
	const trials = 4096
	draw := func(in [4]uint64) uint32 { return Random(StreamKey(in[0], in[1], in[2]), in[3]) }
	for bit := range 4 * 64 {
		var flips [32]int
		for i := range uint64(trials) {
			in := [4]uint64{StreamKey(9, i, 1), StreamKey(9, i, 2), StreamKey(9, i, 3), StreamKey(9, i, 4)}
			flipped := in
			flipped[bit/64] ^= 1 << (bit % 64)
			changed := draw(in) ^ draw(flipped)
			for out := range flips {
				flips[out] += int(changed >> out & 1)
			}
		}
		for out, count := range flips[16:] {
			require.InDelta(t, trials/2, count, 6*math.Sqrt(trials)/2, "input bit %d, output bit %d", bit, 16+out)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := map[uint64]string{}
	add := func(key uint64, what string) {
		require.Empty(t, seen[key], "%s has the same key", what)
		seen[key] = what
	}
	for i := range uint64(50) {
		add(NameKey(fmt.Sprint("layers.", i)), fmt.Sprint("name ", i))
		for j := range uint64(50) {
			add(StreamKey(i, j, 1), fmt.Sprint("seed ", i, " step ", j))
			add(StreamKey(1, i+100, j+2), fmt.Sprint("step ", i+100, " name ", j+2))
		}
	}
}
