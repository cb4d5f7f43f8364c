package backend_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func words(raw []byte) []int32 {
	list := make([]int32, len(raw)/4)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return list
}

func FuzzControlRoundTrip(f *testing.F) {
	f.Add(uint64(math.MaxUint64), uint64(1)<<63, uint64(1)<<32-1, uint32(1), uint32(0x3f800000), int32(-1))
	f.Fuzz(func(t *testing.T, seed, step, token uint64, lr, inv uint32, position int32) {
		c := backend.Control{
			Seed: seed, Step: step, Token: token,
			LR: math.Float32frombits(lr), InvTokens: math.Float32frombits(inv), Position: position, Rank: ^position,
		}
		raw := c.AppendTo([]byte{1, 2, 3, 4})
		require.Len(t, raw, 4+4*backend.ControlWords)
		again := backend.ControlFrom(words(raw[4:]))
		require.Equal(t, raw[4:], again.AppendTo(nil)) // bytes: a NaN is not equal to itself
	})
}

// Kernels on every device read this layout.
func TestControlLayout(t *testing.T) {
	c := backend.Control{Seed: 1 | 2<<32, Step: 3 | 4<<32, Token: 5 | 6<<32, LR: 1, InvTokens: 2, Position: -7, Rank: 8}
	require.Equal(t, []int32{1, 2, 3, 4, 5, 6, 0x3f800000, 0x40000000, -7, 8, 0, 0, 0, 0, 0, 0}, words(c.AppendTo(nil)))
}
