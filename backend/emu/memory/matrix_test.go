package memory

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/pool"
	"octet/fp8"
)

// An element is the same, however it is read.
func TestMatrix(t *testing.T) {
	const rows, cols, ld = 3, 20, 23
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E5M2} {
		for _, scale := range [][]float32{nil, {0.5}} {
			m := New(d, rows, cols, ld, pool.Bytes(int64(rows*ld*d.Size())))
			m.Scale = scale
			for i := range rows * ld {
				v := float32(i % 16)
				switch code := d.Nearest(v, fp8.Saturate); d.Size() {
				case 4:
					m.F32[i] = v
				case 2:
					m.U16[i] = uint16(code)
				default:
					m.U8[i] = uint8(code)
				}
			}
			want := func(row, col int) float32 {
				v := d.Float32(d.Nearest(float32((row*ld+col)%16), fp8.Saturate))
				return v * m.ScaleInv()
			}
			buffer := make([]float32, cols)
			for row := range rows {
				for col, v := range m.Row(buffer, row) {
					require.Equal(t, want(row, col), v, "%s: (%d, %d)", d, row, col)
				}
			}
			part := m.Sub(1, 2)
			require.Equal(t, []int{rows - 1, cols - 2}, []int{part.Rows, part.Cols})
			require.Equal(t, m.Address(2, 7), part.Address(1, 5))
			require.Equal(t, []float32{want(2, 7), want(2, 8)}, part.Piece(buffer, 1, 5, 2))
			m.Prefetch(2, 0, cols)
		}
	}
}

func TestBlockScales(t *testing.T) {
	s := BlockScales{Rows: 2, Cols: 3, Across: 2, F32: []float32{1, 2, 3, 4}}
	require.EqualValues(t, 2, s.Element(1, 5))
	require.EqualValues(t, 3, s.Element(2, 2))
	s = BlockScales{Cols: 3, Across: 2, DType: fp8.E8M0, Codes: []uint8{127, 129}}
	require.EqualValues(t, 4, s.Element(9, 3))
	require.EqualValues(t, 1, new(BlockScales).Element(7, 7))
}

// Code reads the formats of eight and of four bits, two of which share a byte.
func TestCode(t *testing.T) {
	m := Matrix{DType: fp8.E2M1, U8: []uint8{0x21, 0x43}}
	for i := range 4 {
		require.EqualValues(t, i+1, m.Code(i))
	}
	m.DType = fp8.E4M3
	require.EqualValues(t, 0x43, m.Code(1))
}
