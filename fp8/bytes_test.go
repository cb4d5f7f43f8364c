package fp8

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDecode decodes every code of every format.
func TestDecode(t *testing.T) {
	for _, d := range append([]DType{E8M0}, castFormats...) {
		n := 1 << d.Format().Bits
		raw := make([]byte, 0, 2*n)
		for code := range n {
			raw = append(raw, byte(code))
			if d.Size() == 2 {
				raw = append(raw, byte(code>>8))
			}
		}
		if d.Format().Store == 4 {
			Pack4(raw, raw)
			raw = raw[:d.Bytes(n)]
		}
		got := make([]float32, n)
		d.Decode(got, raw)
		for code, x := range got {
			require.Equal(t, math.Float32bits(d.Float32(uint32(code))), math.Float32bits(x), "%s %x", d, code)
		}
	}
	require.Panics(t, func() { I32.Decode(make([]float32, 1), make([]byte, 4)) })
	require.Panics(t, func() { F32.Decode(make([]float32, 1), make([]byte, 3)) })
}

func TestAppendFloats(t *testing.T) {
	x := []float32{1.5, -0, inf, nan, 0x1p-149}
	raw := AppendFloats([]byte{7}, x...)
	require.Equal(t, byte(7), raw[0])
	for i, v := range x {
		require.Equal(t, math.Float32bits(v), binary.LittleEndian.Uint32(raw[1+4*i:]))
	}
	back := make([]float32, len(x))
	F32.Decode(back, raw[1:])
	require.Equal(t, raw[1:], AppendFloats(nil, back...))
}
