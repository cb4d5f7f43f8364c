package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestCacheWrite(t *testing.T) {
	const batch, n, places, width = 2, 3, 8, 5
	for _, position := range []int32{0, 2, 5} {
		tr := newTrial(t)
		x := tr.tensor("x", fp8.BF16, tr.noise(batch*n*width), batch*n, width)
		cache := tr.tensor("cache", fp8.BF16, []float32{7}, batch*places, width)
		tr.program.Add(&backend.CacheWrite{X: x, Control: tr.control(backend.Control{Position: position}), Cache: cache, Batch: batch})
		d := tr.run()
		xs := d.values(x)
		for i, got := range d.values(cache) {
			row, col := i/width, i%width
			want, at := 7.0, row%places-int(position)
			if at >= 0 && at < n {
				want = xs[(row/places*n+at)*width+col]
			}
			require.Equal(t, want, got, "row %d", row)
		}
	}
}

func TestCacheWriteBeyondEnd(t *testing.T) {
	for _, position := range []int32{-1, 6, 1 << 30} {
		tr := newTrial(t)
		x := tr.tensor("x", fp8.F32, []float32{1}, 3, 2)
		cache := tr.tensor("cache", fp8.F32, []float32{7}, 8, 2)
		tr.program.Scope("layers.0").Add(&backend.CacheWrite{X: x, Control: tr.control(backend.Control{Position: position}), Cache: cache, Batch: 1})
		d, run := tr.load(1)
		err := run.Run(t.Context())
		require.ErrorContains(t, err, "layers.0")
		require.ErrorContains(t, err, "8 positions")
		for _, got := range d.values(cache) {
			require.Equal(t, 7.0, got)
		}
	}
}
