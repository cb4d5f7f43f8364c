package gaudi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func root(d fp8.DType, shape ...int) *backend.Tensor {
	return backend.NewVars().Tensor(backend.Stash, "root", d, shape...)
}

func TestLayoutOf(t *testing.T) {
	records := root(fp8.F32, 480)
	matrix := root(fp8.BF16, 64, 80)
	for _, c := range []struct {
		name         string
		root         *backend.Tensor
		views        []*backend.Tensor
		align        int
		grain, pitch int
	}{
		{"untouched", records, nil, 128, 480, 480},
		{"whole", records, []*backend.Tensor{records}, 128, 480, 480},
		{"single records", records, []*backend.Tensor{records, records.Slice("a", 7, 1)}, 128, 1, 32},
		{"single records, Gaudi 3", records, []*backend.Tensor{records.Slice("a", 7, 1)}, 256, 1, 64},
		{"groups", records, []*backend.Tensor{records.Slice("a", 24, 24), records.Slice("b", 48, 72)}, 128, 24, 32},
		{"aligned groups", records, []*backend.Tensor{records.Slice("a", 32, 7), records.Slice("b", 64, 96)}, 128, 480, 480},
		{"the first record", records, []*backend.Tensor{records.Slice("a", 0, 1)}, 128, 480, 480},
		{"aligned rows", matrix, []*backend.Tensor{matrix.RowRange(8, 8)}, 128, 64 * 80, 64 * 80},
		{"rows", matrix, []*backend.Tensor{matrix.RowRange(3, 8)}, 128, 80, 128},
		{"columns of all rows", matrix, []*backend.Tensor{matrix.Columns("a", 7, 9)}, 128, 64 * 80, 64 * 80},
		{"columns of some rows", matrix, []*backend.Tensor{matrix.RowRange(3, 8).Columns("a", 7, 9)}, 128, 80, 128},
	} {
		l := layoutOf(c.root, c.views, c.align)
		require.Equal(t, [2]int{c.grain, c.pitch}, [2]int{l.grain, l.pitch}, c.name)
		for _, v := range c.views {
			for _, p := range l.pieces(v) {
				require.Zero(t, l.at(p.from)%int64(c.align), c.name)
			}
		}
	}
}

// For any views, no two elements share a byte, and gather restores what scatter wrote.
func FuzzLayout(f *testing.F) {
	f.Add(uint16(480), uint16(7), uint16(1), uint16(30), uint8(0))
	f.Add(uint16(960), uint16(96), uint16(24), uint16(48), uint8(1))
	f.Add(uint16(33), uint16(11), uint16(11), uint16(0), uint8(2))
	f.Fuzz(func(t *testing.T, elems, from, n, second uint16, format uint8) {
		if elems == 0 || n == 0 || int(from)+int(n) > int(elems) || second >= elems {
			return
		}
		d := []fp8.DType{fp8.F32, fp8.BF16, fp8.E5M2}[format%3]
		r := root(d, int(elems))
		for _, align := range []int{128, 256} {
			views := []*backend.Tensor{r.Slice("a", int(from), int(n)), r.Slice("b", int(second), 1)}
			l := layoutOf(r, views, align)
			require.Zero(t, int(elems)%l.grain)
			for _, v := range views {
				require.Zero(t, l.at(v.Offset)%int64(align))
			}
			host := make([]byte, r.Bytes())
			for i := range host {
				host[i] = byte(i*7 + i>>8)
			}
			device := bytes.Repeat([]byte{0xee}, int(l.Bytes()))
			l.scatter(device, host)
			for i := range int(elems) {
				at, size := l.at(i/l.grain*l.grain)+int64(i%l.grain*l.size), l.size
				require.Equal(t, host[i*size:][:size], device[at:][:size])
			}
			back := make([]byte, len(host))
			l.gather(back, device)
			require.Equal(t, host, back)
		}
	})
}
