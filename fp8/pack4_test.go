package fp8

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPack4(t *testing.T) {
	for n := range 140 {
		codes, packed := make([]uint8, n), slices.Repeat([]uint8{0xa5}, (n+1)/2+1)
		for i := range codes {
			codes[i] = uint8(7*i+i/16+3) & 0xf
		}
		last := len(packed) - 1
		Pack4(packed, codes)
		for i, c := range codes {
			require.Equal(t, c, packed[i/2]>>(i%2*4)&0xf)
		}
		if n%2 == 1 {
			require.Zero(t, packed[n/2]>>4)
		}
		require.Equal(t, uint8(0xa5), packed[last])

		back := slices.Repeat([]uint8{0xa5}, n+1)
		Unpack4(back[:n], packed)
		require.Equal(t, codes, back[:n])
		require.Equal(t, uint8(0xa5), back[n])

		Pack4(codes, codes)
		require.Equal(t, packed[:last], codes[:last], "in place")
	}
	require.Panics(t, func() { Pack4(make([]uint8, 1), make([]uint8, 3)) })
	require.Panics(t, func() { Unpack4(make([]uint8, 3), make([]uint8, 1)) })
}

func BenchmarkUnpack4(b *testing.B) {
	codes, packed := make([]uint8, 4096), make([]uint8, 2048)
	b.SetBytes(4096)
	for b.Loop() {
		Unpack4(codes, packed)
	}
}

func BenchmarkPack4(b *testing.B) {
	codes, packed := make([]uint8, 4096), make([]uint8, 2048)
	b.SetBytes(4096)
	for b.Loop() {
		Pack4(packed, codes)
	}
}
