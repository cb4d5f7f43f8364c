package nn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// headRows splits the tokens into as few chunks as headElems allows.
func TestHeadRows(t *testing.T) {
	for _, rows := range []int{16, 32, 272} { // allowed by headElems
		saved := headElems
		headElems = rows * 64
		for tokens := 1; tokens < 20*rows; tokens++ {
			size := headRows(tokens, 64, 0, 16)
			require.LessOrEqual(t, size, rows, tokens)
			require.Equal(t, (tokens+rows-1)/rows, (tokens+size-1)/size, "chunks of %d for %d tokens", size, tokens)
		}
		headElems = saved
	}
}

// Chunks do not cut blocks of tokens that share a scale.
func TestHeadRowsOfBlocks(t *testing.T) {
	saved := headElems
	defer func() { headElems = saved }()
	headElems = 100 * 64
	for _, unit := range []int{16, 32, 48, 128} {
		for tokens := 1; tokens < 2000; tokens++ {
			size := headRows(tokens, 64, 0, unit)
			require.True(t, size == tokens || size%unit == 0, "chunks of %d for %d tokens", size, tokens)
			require.LessOrEqual(t, size, max(unit, 100), tokens)
		}
	}
}

// A device's HeadTokens enlarges chunks, and does not shrink those that headElems allows
// to be larger.
func TestHeadRowsOfADevice(t *testing.T) {
	for _, c := range []struct{ vocab, tokens, device, want int }{
		{128_256, 8192, 0, 128},
		{128_256, 8192, 1024, 1024},
		{128_256, 1500, 1024, 752},
		{32_000, 16_384, 0, 512},
		{32_000, 16_384, 1024, 1024},
		{256, 1 << 17, 0, 1 << 16},
		{256, 1 << 17, 1024, 1 << 16},
	} {
		require.Equal(t, c.want, headRows(c.tokens, (&Base{}).padded(c.vocab), c.device, 16), c)
	}
}
