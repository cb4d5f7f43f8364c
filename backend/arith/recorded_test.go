package arith

import (
	"bufio"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Dot products recorded on real hardware: 5,000 in each file, E4M3 by E4M3 or E5M2 by
// E5M2; see the README beside them. A missing file is skipped.
//
// The B200's are of mma.sync, which adds the addend last, rounded to nearest. fused is
// the number of answers that the fused sum of emu:b200, the model of tcgen05, reproduces.
func TestRecordedAnswers(t *testing.T) {
	for _, c := range []struct {
		model, file string
		d           fp8.DType
		addendLast  bool
		fused       int
	}{
		{"h100", "h100_e4m3.txt", fp8.E4M3, false, 5000},
		{"h100", "h100_e5m2.txt", fp8.E5M2, false, 5000},
		{"h100", "h200_e4m3.txt", fp8.E4M3, false, 5000},
		{"h100", "h200_e5m2.txt", fp8.E5M2, false, 5000},
		{"ada", "ada_e4m3.txt", fp8.E4M3, false, 5000},
		{"ada", "ada_e5m2.txt", fp8.E5M2, false, 5000},
		{"ada", "l40s_e4m3.txt", fp8.E4M3, false, 5000},
		{"ada", "l40s_e5m2.txt", fp8.E5M2, false, 5000},
		{"b200", "b200_e4m3.txt", fp8.E4M3, true, 3207},
		{"b200", "b200_e5m2.txt", fp8.E5M2, true, 3236},
	} {
		t.Run(c.file, func(t *testing.T) {
			f, err := os.Open(filepath.Join("../../../shared/data/tensorcore", c.file))
			if err != nil {
				t.Skipf("no recorded answers here: %v", err)
			}
			defer f.Close()
			m, err := Lookup(c.model)
			require.NoError(t, err)
			lines, fused := 0, 0
			for s := bufio.NewScanner(f); s.Scan(); lines++ {
				field := strings.Fields(s.Text())
				require.Len(t, field, 4)
				a, b := values(t, c.d, field[0]), values(t, c.d, field[1])
				addend, want := float(t, field[2]), float(t, field[3])
				minPower := m.Sum.MinPower(c.d)
				addTo := func(sum float32) float32 {
					for l := 0; l < len(a); l += m.Sum.Group {
						sum = m.Sum.Fuse(a[l:l+m.Sum.Group], b[l:l+m.Sum.Group], minPower, minPower, 1, sum)
					}
					return sum
				}
				got := addTo(addend)
				if math.Float32bits(got) == math.Float32bits(want) {
					fused++
				}
				if c.addendLast {
					got = addTo(0) + addend
				}
				require.Equal(t, math.Float32bits(want), math.Float32bits(got), "line %d", lines+1)
			}
			require.Equal(t, 5000, lines)
			require.Equal(t, c.fused, fused)
		})
	}
}

func values(t *testing.T, d fp8.DType, text string) (list []float32) {
	codes, err := hex.DecodeString(text)
	require.NoError(t, err)
	for _, code := range codes {
		list = append(list, d.Float32(uint32(code)))
	}
	return list
}

func float(t *testing.T, text string) float32 {
	bits, err := strconv.ParseUint(text, 16, 32)
	require.NoError(t, err)
	return math.Float32frombits(uint32(bits))
}
