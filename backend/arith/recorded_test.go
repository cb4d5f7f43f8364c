package arith

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Dot products that real hardware answered: 5,000 of each file, see the README
// beside them.
func TestRecordedAnswers(t *testing.T) {
	for _, c := range []struct{ model, file string }{
		{"h100", "h200_e4m3.txt"},
		{"ada", "ada_e4m3.txt"},
	} {
		t.Run(c.file, func(t *testing.T) {
			f, err := os.Open(filepath.Join("../../../shared/data/tensorcore", c.file))
			if err != nil {
				t.Skipf("no recorded answers here: %v", err)
			}
			defer f.Close()
			m, err := Lookup(c.model)
			require.NoError(t, err)
			lines := 0
			for s := bufio.NewScanner(f); s.Scan(); lines++ {
				field := strings.Fields(s.Text())
				require.Len(t, field, 4)
				a, b := numbers(t, field[0]), numbers(t, field[1])
				c, want := float(t, field[2]), float(t, field[3])
				least := m.Sum.Least(fp8.E4M3)
				for l := 0; l < len(a); l += m.Sum.Group {
					c = m.Sum.Fuse(a[l:l+m.Sum.Group], b[l:l+m.Sum.Group], least, least, c)
				}
				require.Equal(t, math.Float32bits(want), math.Float32bits(c), "line %d", lines+1)
			}
			require.Equal(t, 5000, lines)
		})
	}
}

func numbers(t *testing.T, text string) (list []float32) {
	codes, err := hex.DecodeString(text)
	require.NoError(t, err)
	for _, code := range codes {
		list = append(list, fp8.E4M3.Float32(uint32(code)))
	}
	return list
}

func float(t *testing.T, text string) float32 {
	bits, err := strconv.ParseUint(text, 16, 32)
	require.NoError(t, err)
	return math.Float32frombits(uint32(bits))
}

// products is a sparse dot product: "0: 1*1, 32-35: 0.125*0.125".
func products(t *testing.T, k int, d fp8.DType, text string) (a, b []uint8) {
	a, b = make([]uint8, k), make([]uint8, k)
	code := func(value string) uint8 {
		mantissa, exponent, _ := strings.Cut(value, "p")
		x, err := strconv.ParseFloat(mantissa, 64)
		require.NoError(t, err)
		if exponent != "" {
			e, err := strconv.Atoi(exponent)
			require.NoError(t, err)
			x = math.Ldexp(x, e)
		}
		c := uint8(d.Nearest(float32(x), fp8.Saturate))
		require.Equal(t, float32(x), d.Float32(uint32(c)), value)
		return c
	}
	for part := range strings.SplitSeq(text, ", ") {
		where, what, ok := strings.Cut(part, ": ")
		require.True(t, ok, part)
		x, y, _ := strings.Cut(what, "*")
		from, to, many := strings.Cut(where, "-")
		first, err := strconv.Atoi(from)
		require.NoError(t, err)
		last := first
		if many {
			last, err = strconv.Atoi(to)
			require.NoError(t, err)
		}
		for i := first; i <= last; i++ {
			a[i], b[i] = code(x), code(y)
		}
	}
	return a, b
}

// Each probe tells one property of a model from another one.
func TestProbes(t *testing.T) {
	for _, c := range []struct {
		model, probe string
		k            int
		products     string
		want         float64
		rulesOut     string
	}{
		{"h100", "P1", 32, "0: 1*1, 1: 1p-6*1p-7", 1 + 0x1p-13, "fewer than 13 fraction bits"},
		{"h100", "P1'", 32, "0: 1*1, 1: 1p-7*1p-7", 1, "more than 13"},
		{"h100", "N1", 32, "0: -1*1, 1: -1p-7*1p-7", -1, "rounding down: -1.00012"},
		{"h100", "P2", 32, "0: 1*1, 1-31: 1p-7*1p-7", 1, "a sum before the cut: 1.00189"},
		{"h100", "P3b", 32, "0: 1.75*1.75, 1-2: 1p-6*1p-7", 3.0625 + 0x1p-12, "products that are normalised first: 3.0625"},
		{"h100", "P4", 32, "0: 1*1, 1: 1*1, 2: 1p-6*1p-7", 2, "results with more than 13 fraction bits"},
		{"h100", "P6c", 32, "0: 1p-9*256, 1: 1p-6*1p-7", 0.5, "subnormal operands that are normalised: 0.50012"},
		{"h100", "P7", 32, "0: 1*1, 1: -1*1, 16: 1p-7*1p-7", 0, "groups of 16"},
		{"ada", "P7", 32, "0: 1*1, 1: -1*1, 16: 1p-7*1p-7", 0x1p-14, "groups of 32"},
		{"h100,fast", "P5", 64, "0: 1*1, 32-35: 1p-7*1p-7", 1, "an addend that joins behind the cut: 1.00024"},
		{"h100,fast", "O1", 64, "0: 256*1, 1: -256*1, 32: 1p-6*1", 0x1p-6, "k descending"},
		{"h100,fast", "O2", 64, "32: 256*1, 33: -256*1, 0: 1p-6*1", 0, "k descending"},
		{"h100,fast", "O3", 64, "0: 256*1, 1: -256*1, 2: 1p-6*1", 0, "groups of two"},
		{"h100,fast", "O3", 64, "0: 256*1, 1: -256*1, 31: 1p-6*1", 0, "groups of fewer than 32"},
		{"h100,fast", "G1", 16384, "0-16383: 1.125*1.125", 16410, "an accumulator of FP32: 20736"},
		{"h100", "G1", 16384, "0-16383: 1.125*1.125", 20736, "no promotion: 16410"},
		{"h100,fast", "G2", 65536, "0-65535: 1*0.125", 2048, "an accumulator of FP32: 8192"},
		{"h100", "G2", 65536, "0-65535: 1*0.125", 8192, "no promotion: 2048"},
		{"h100", "Z1", 32, "0: -0*1, 1: -0*1", 0, "a zero with a sign"},
		{"b200", "25 bits", 32, "0: 256*1, 1: -256*1, 2: 1p-8*1p-9", 0x1p-17, "fewer than 25 fraction bits"},
		{"b200", "25 bits", 32, "0: 256*1, 1: -256*1, 2: 1p-9*1p-9", 0, "more than 25"},
		{"b200", "toward zero", 64, "0: 256*1, 1: 1p-8*1p-9", 256, "rounding away from zero"},
		{"b200", "FP32", 64, "0: 128*1, 1: 1p-8*1p-8", 128 + 0x1p-16, "results of fewer than 23 fraction bits"},
		{"gaudi2", "groups", 32, "0: 128*128, 1: -128*128, 15: 1p-9*1p-9", 0, "the last one of a group by itself"},
		{"gaudi2", "groups", 32, "0: 128*128, 1: -128*128, 16: 1p-9*1p-9", 0x1p-18, "groups of more than 16"},
		{"gaudi2", "nearest", 32, "0-15: 128*128, 16: 1*0.01171875", 16*16384 + 0.015625, "an addend that is cut off"},
		{"gaudi3", "groups", 16, "0: 128*128, 1: -128*128, 7: 1p-9*1p-9", 0, "the last one of a group by itself"},
		{"gaudi3", "groups", 16, "0: 128*128, 1: -128*128, 8: 1p-9*1p-9", 0x1p-18, "groups of more than 8"},
		{"gaudi3", "toward zero", 16, "0-7: 128*128, 8: 1*0.01171875", 8*16384 + 0.0078125, "rounding to nearest: .0156"},
	} {
		t.Run(c.model+" "+c.probe, func(t *testing.T) {
			m, err := Lookup(c.model)
			require.NoError(t, err)
			a, b := products(t, c.k, m.E4M3, c.products)
			got := m.Dot(a, b, m.E4M3, m.E4M3, true)
			require.Equal(t, fmt.Sprint(float32(c.want)), fmt.Sprint(got), "it rules out: %s", c.rulesOut)
			require.False(t, got == 0 && math.Signbit(float64(got)))
		})
	}
}

// The interval of promotion shows where a small product begins to survive.
func TestPromotionInterval(t *testing.T) {
	for model, interval := range map[string]int{"h100": 128, "h100,promote=64": 64, "ada": 128, "h100,fast": 1024} {
		m, err := Lookup(model)
		require.NoError(t, err)
		for p := 32; p < 1024; p += 31 {
			a, b := products(t, 1024, fp8.E4M3, fmt.Sprintf("0: 1*1, %d: 1p-7*1p-7", p))
			want := float32(1)
			if p >= interval {
				want = 1 + 0x1p-14
			}
			require.Equal(t, want, m.Dot(a, b, fp8.E4M3, fp8.E4M3, true), "%s %d", model, p)
			require.Equal(t, float32(1), m.Dot(a, b, fp8.E4M3, fp8.E4M3, false), "%s %d, fast", model, p)
		}
	}
}

func TestSpecials(t *testing.T) {
	const one, inf, negInf, nan, zero = 0x3c, 0x7c, 0xfc, 0x7e, 0
	infinity := float32(math.Inf(1))
	for _, m := range Models() {
		dot := func(codes ...uint8) float32 {
			a, b := make([]uint8, 40), make([]uint8, 40)
			for i := 0; i < len(codes); i += 2 {
				a[9*i], b[9*i] = codes[i], codes[i+1]
			}
			return m.Dot(a, b, fp8.E5M2, fp8.E5M2, false)
		}
		require.Equal(t, infinity, dot(inf, one), m.Name)
		require.Equal(t, -infinity, dot(negInf, one, one, one), m.Name)
		for _, x := range []float32{dot(inf, zero), dot(nan, one), dot(inf, one, negInf, one), dot(inf, one, nan, zero)} {
			require.Equal(t, uint32(0x7fffffff), math.Float32bits(x), m.Name)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, name := range Names() {
		m, err := Lookup(name)
		require.NoError(t, err)
		require.Equal(t, name, m.Name)
		require.NotEmpty(t, m.Source)
	}
	m, err := Lookup("gaudi3,e4m3=240")
	require.NoError(t, err)
	require.Equal(t, fp8.E4M3IEEE, m.E4M3)
	for text, want := range map[string]string{
		"h200":              `unknown device model "h200" (known: h100, ada, b200, gaudi2, gaudi3)`,
		"":                  `unknown device model ""`,
		"h100,slow":         `device model h100 has no option "slow" (it has fast, promote=N)`,
		"h100,promote=100":  "no multiple of the 32 products",
		"h100,promote=-32":  "no multiple",
		"h100,promote=4096": "up to 1024",
		"gaudi2,fast":       `device model gaudi2 has no option "fast" (it has none)`,
		"gaudi3,e4m3=480":   "it has e4m3=240, e4m3=448",
	} {
		_, err := Lookup(text)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzLookup(f *testing.F) {
	for _, s := range []string{"h100", "h100,fast", "ada,promote=64", "gaudi3,e4m3=240", "x,,=", "h100,promote="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Lookup(text)
		if err == nil && (m.Sum.Group < 1 || len(m.Pairs) == 0 || m.Promote%m.Sum.Group != 0) {
			t.Fatalf("%q gives %+v", text, m)
		}
	})
}
