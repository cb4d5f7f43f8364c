package gemm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	_ "octet/backend/emu"
	"octet/fp8"
)

// Every device model multiplies as package arith does, with fast and promoted
// accumulation, without block scales, with those of one operand and of both.
func TestMultiply(t *testing.T) {
	for _, name := range append(arith.Names(), "h100,fast", "ada,promote=48", "gaudi3,e4m3=240") {
		model, err := arith.Lookup(name)
		require.NoError(t, err)
		for _, pair := range model.Pairs {
			for trial := range 6 {
				accum := []backend.Accum{backend.Fast, backend.Promoted}[trial%2]
				dev, err := backend.Open("emu:"+name, backend.Options{Threads: 2})
				require.NoError(t, err)
				a, b := Random(1, pair[0], 5, 300), Random(2, pair[1], 7, 300)
				if trial > 1 {
					a.RandomScales(3)
				}
				if trial > 3 {
					b.RandomScales(4)
				}
				got, err := Multiply(t.Context(), dev, a.Operand(), b.Operand(), accum)
				require.NoError(t, err)
				require.NoError(t, dev.Close())
				for i := range a.Rows {
					for j := range b.Rows {
						want := model.Dot(a.Row(i), b.Row(j), accum == backend.Promoted)
						require.Equal(t, want, got[i*b.Rows+j], "%s %s %d: %d %d", name, pair, trial, i, j)
					}
				}
			}
		}
	}
}

func TestUnsupportedPair(t *testing.T) {
	dev, err := backend.Open("emu:gaudi2", backend.Options{})
	require.NoError(t, err)
	_, err = Multiply(t.Context(), dev, Random(1, fp8.E5M2, 1, 16).Operand(), Random(1, fp8.E4M3IEEE, 1, 16).Operand(), backend.Fast)
	require.ErrorIs(t, err, backend.ErrUnsupported)
}

func TestRead(t *testing.T) {
	m, err := Read(strings.NewReader("38 3c 00\n\n7eB601\n"), fp8.E4M3)
	require.NoError(t, err)
	require.Equal(t, Matrix{DType: fp8.E4M3, Rows: 2, Cols: 3, Codes: []uint8{0x38, 0x3c, 0, 0x7e, 0xb6, 1}}, m)
	for text, want := range map[string]string{
		"":          "no codes",
		"38 3":      "line 1",
		"38\n3838":  "line 2 has 2 codes, the first row has 1",
		"38\n\nxy ": "line 3",
	} {
		_, err := Read(strings.NewReader(text), fp8.E4M3)
		require.ErrorContains(t, err, want)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("38 3c\n00 01\n")
	f.Add("zz")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Read(strings.NewReader(text), fp8.E5M2)
		if err == nil && len(m.Codes) != m.Rows*m.Cols {
			t.Fatalf("%q gives %d codes of %d×%d", text, len(m.Codes), m.Rows, m.Cols)
		}
	})
}
