package gemm

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
)

// The fast kernels of every model equal package arith, whose tests compare it with
// integers. The operands have codes of all kinds (any, subnormals, cancelling zeros and
// powers of two, with and without infinities and NaN), blocks of zeros, block scales of
// all kinds, and K up to 8,192.
func TestMultiplyAnything(t *testing.T) {
	elements := 10_000
	if os.Getenv("OCTET_LONG") != "" {
		elements = 1_000_000
	}
	for _, name := range append(arith.Names(), "h100,fast", "ada,promote=48", "gaudi3,e4m3=240") {
		t.Run(name, func(t *testing.T) {
			m, err := arith.Lookup(name)
			require.NoError(t, err)
			r := rand.New(rand.NewPCG(77, 78))
			for seen := 0; seen < elements; {
				pair := m.Pairs[r.IntN(len(m.Pairs))]
				rows, cols, k := 1+r.IntN(20), 1+r.IntN(40), []int{33, 96, 300, 1000}[r.IntN(4)]
				if r.IntN(16) == 0 {
					rows, cols, k = 3, 5, 8192
				}
				a, b := anything(r, pair[0], rows, k), anything(r, pair[1], cols, k)
				accum := []backend.Accum{backend.Fast, backend.Promoted}[r.IntN(2)]
				dev, err := backend.Open("emu:"+name, backend.Options{Threads: 1 + r.IntN(2)})
				require.NoError(t, err)
				got, err := Multiply(t.Context(), dev, a.Operand(), b.Operand(), accum)
				require.NoError(t, err)
				require.NoError(t, dev.Close())
				for i, y := range got {
					row, col := i/cols, i%cols
					want := m.Dot(a.Row(row), b.Row(col), accum == backend.Promoted)
					if math.Float32bits(want) != math.Float32bits(y) {
						t.Fatalf("%v, K %d, %v: %d, %d is %x, expected %x", pair, k, accum, row, col, math.Float32bits(y), math.Float32bits(want))
					}
				}
				seen += len(got)
			}
		})
	}
}

func anything(r *rand.Rand, d fp8.DType, rows, cols int) Matrix {
	m := Matrix{DType: d, Rows: rows, Cols: cols, Codes: make([]uint8, rows*cols)}
	kind := r.IntN(5)
	for i := range m.Codes {
		c := uint8(r.Uint32())
		switch kind {
		case 0:
			c &= 0x8f
		case 1:
			if r.IntN(3) > 0 {
				c &= 0x80
			}
		case 2:
			c = c&0x87 | 0x38
		}
		x := float64(d.Float32(uint32(c)))
		if special := math.IsNaN(x) || math.IsInf(x, 0); special && (kind != 3 || r.IntN(200) > 0) {
			c = 0
		}
		m.Codes[i] = c
	}
	for range r.IntN(6) {
		row, from := r.IntN(rows), r.IntN(m.across())*arith.Block
		clear(m.Codes[row*cols+from : row*cols+min(cols, from+arith.Block)])
	}
	if r.IntN(3) == 0 {
		return m
	}
	lowest, n := 127-8, 16 // exponents, biased
	switch r.IntN(5) {
	case 0:
		lowest, n = 0, 256
	case 1:
		lowest, n = 70, 60
	case 2:
		lowest, n = 140, 20
	}
	m.Scales = make([]uint8, rows*m.across())
	for i := range m.Scales {
		m.Scales[i] = uint8(lowest + r.IntN(n))
	}
	return m
}
