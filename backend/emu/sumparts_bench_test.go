package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// BenchmarkSumParts adds eight ranks' parts of 2^20 elements: in FP32, in BF16, and as
// codes with a scale for each 1x128 block.
func BenchmarkSumParts(b *testing.B) {
	const parts, rows, cols = 8, 128, 8192
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3} {
		b.Run(d.String(), func(b *testing.B) {
			vars := backend.NewVars()
			x := vars.Tensor(backend.Stash, "x", d, parts*rows, cols)
			if d.IsQuantized() {
				x.Block, x.Scale = backend.Block1x128, vars.Tensor(backend.Stash, "scale", fp8.F32, parts*rows, cols/128)
			}
			p := vars.Program("sum")
			p.Add(&backend.SumParts{X: x, Out: vars.Tensor(backend.Stash, "out", fp8.F32, rows, cols)})
			device, err := backend.Open("emu", backend.Options{Threads: 1})
			require.NoError(b, err)
			defer device.Close()
			loaded, err := device.Load(p)
			require.NoError(b, err)
			b.SetBytes(parts * rows * cols) // elements
			for b.Loop() {
				if err := loaded[0].Run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
