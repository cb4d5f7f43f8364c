package main

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
)

// Two tokens and two channels by hand.
func TestLayer(t *testing.T) {
	gates := []float64{2, -1, 1, 0}
	up := []float64{1, 3, -4, 5}
	ids := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 65), 66)
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	a := []float64{silu(2), 3 * silu(-1), -4 * silu(1), 0} // by token, then by channel
	l := layerOf(up, gates, ids, 2)
	require.Len(t, l.channels, 2)
	require.InDelta(t, max(a[0], -a[2]), l.channels[0].amax, 1e-12)
	require.InDelta(t, -a[1], l.channels[1].amax, 1e-12)
	require.InDelta(t, a[2]*a[2]/(a[0]*a[0]+a[2]*a[2]), l.channels[0].byte, 1e-12, "the second token's share")
	require.InDelta(t, 1, l.channels[1].byte, 1e-12)
	var second, fourth float64
	for _, x := range a {
		second += x * x / 4
		fourth += x * x * x * x / 4
	}
	require.InDelta(t, fourth/(second*second), l.kurtosis, 1e-12)
}

// Rare bytes stand where the text for training has them, wherever reading begins.
func TestRareBytes(t *testing.T) {
	text := make([]byte, 2*rareEvery)
	for i := range text {
		text[i] = rareAt(int64(i), 'a')
	}
	require.Equal(t, byte(rareByte), text[rareEvery/2])
	require.Equal(t, consequence, text[rareEvery/2+1:][:len(consequence)])
	require.Equal(t, byte('a'), text[rareEvery/2+1+len(consequence)])
	tokens := rareTokens{zeros{}}
	read := make([]int32, 10)
	require.NoError(t, tokens.ReadTokens(read, rareEvery/2-1))
	require.Equal(t, []int32{0, rareByte, '~', '~', '~', '~', '~', '~', '~', '~'}, read)
}

// zeros is a stream of zeros.
type zeros struct{ data.Tokens }

func (zeros) ReadTokens(dst []int32, _ int64) error {
	clear(dst)
	return nil
}
