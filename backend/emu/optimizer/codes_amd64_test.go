//go:build !noasm

package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// The path from codes to codes and the general path leave the same bits, for any old
// state.
func TestAdamWCodes(t *testing.T) {
	if !haveAVX512 {
		t.Skip("no AVX-512")
	}
	defer func() { haveAVX512 = true }()
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	cases := []struct {
		name string
		edit func(gaps, one *Param) // the parameter whose gradient has gaps, and that of one span
	}{
		{"finite codes", func(_, _ *Param) {}},
		{"zeros", func(p, _ *Param) {
			clear(p.States[1].U8)
			clear(p.States[2].U8)
		}},
		{"negative zeros", func(p, _ *Param) {
			for i := range p.States[1].U8 {
				p.States[1].U8[i] = 0x80
			}
		}},
		{"a first moment that is NaN", func(p, _ *Param) { p.States[1].U8[4000] = 0xff }},
		{"a first moment above the largest finite value of E4M3IEEE", func(p, _ *Param) { p.States[1].U8[7] = 0x78 }},
		{"an infinite second moment", func(p, _ *Param) { p.States[2].U8[4000] = 0x7c }},
		{"a negative second moment", func(p, _ *Param) { p.States[2].U8[4000] = 0xbc }},
		{"a master that is NaN", func(p, _ *Param) { p.States[0].U16[1000] = 0x7e00 }},
		{"an infinite gradient", func(_, p *Param) { p.Grad.F32[1000] = inf }},
		{"no old scale", func(p, _ *Param) { p.States[1].Scale[0] = 0 }},
		{"a scale that is NaN", func(p, _ *Param) { p.States[2].Scale[0] = nan }},
		{"a negative scale", func(p, _ *Param) { p.States[2].Scale[0] = -1 }},
		{"scales near the end of float32", func(p, _ *Param) {
			p.States[0].Scale[0] = 0x1p100
			p.States[1].Scale[0] = 0x1p121
		}},
		{"values near zero", func(_, p *Param) {
			clear(p.Grad.F32)
			clear(p.States[0].U16)
			p.States[1].Scale[0] = 0x1p-118
			p.States[2].Scale[0] = 0x1p-126
		}},
	}
	for _, m1 := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for i, c := range append(cases, cases...) {
				floor := i < len(cases)
				t.Run(fmt.Sprintf("%s %s floor=%v %s", m1, rounding, floor, c.name), func(t *testing.T) {
					a := unlike(fp8.F16, m1, fp8.E5M2)
					a.Rounding, a.FloorV = rounding, floor
					random := rand.New(rand.NewPCG(1, 2))
					for i := range a.Params {
						s := &a.Params[i].States
						for j := range s[1].U8 {
							code := uint8(random.Uint32())
							s[1].U8[j] = code&0x80 | min(code&0x7f, 0x77)
							s[2].U8[j] = uint8(random.IntN(0x7c))
						}
					}
					c.edit(&a.Params[1], &a.Params[2])
					bits := func(codes bool) []any {
						haveAVX512 = codes
						after := a.runOn(2)
						all := after.memory()
						for i := range all { // ignore the payload of NaN, which NotEqual to itself hides
							if x, ok := all[i].([]float32); ok {
								words := make([]uint32, len(x))
								for k, v := range x {
									if words[k] = math.Float32bits(v); v != v {
										words[k] = math.Float32bits(nan)
									}
								}
								all[i] = words
							}
						}
						return all
					}
					require.Equal(t, bits(false), bits(true))
				})
			}
		}
	}
}

func TestAdamWExtents(t *testing.T) {
	if !haveAVX2 {
		t.Skip("no kernels for extents")
	}
	const blocks = 40
	random := rand.New(rand.NewPCG(5, 6))
	p, m, v := make([]uint16, blocks*extentBlock), make([]uint8, blocks*extentBlock), make([]uint8, blocks*extentBlock)
	for i := range p {
		p[i], m[i], v[i] = uint16(random.Uint32()), uint8(random.Uint32()), uint8(random.Uint32N(0x7c))
		p[i] = p[i]&0x8000 | min(p[i]&0x7fff, 0x7bff)
		m[i] = m[i]&0x80 | min(m[i]&0x7f, 0x7e)
		if block := i / extentBlock; block%2 == 1 { // p and m small, v large, except one code of each
			p[i], m[i], v[i] = p[i]&0x83ff, m[i]&0x87, min(v[i]|0x40, 0x7b)
		}
	}
	for block := 1; block < blocks; block += 2 {
		at := block*extentBlock + random.IntN(extentBlock)
		p[at], m[at], v[at] = 0xf000, 0xf0, 1
	}
	want, got := [4][]float32{}, [4][]float32{}
	for block := range blocks {
		largest, minV := [3]float32{}, float32(math.Inf(1))
		for i := block * extentBlock; i < (block+1)*extentBlock; i++ {
			for j, x := range []float32{fp8.F16.Float32(uint32(p[i])), fp8.E4M3.Float32(uint32(m[i])) / 256, fp8.E5M2.Float32(uint32(v[i]))} {
				largest[j] = fp8.MaxAmax(largest[j], x)
			}
			minV = min(minV, fp8.E5M2.Float32(uint32(v[i])))
		}
		for j, x := range []float32{largest[0], largest[1], largest[2], minV} {
			want[j], got[j] = append(want[j], x), append(got[j], 0)
		}
	}
	wide := haveAVX512
	defer func() { haveAVX512 = wide }()
	for _, haveAVX512 = range []bool{wide, false} {
		for j := range got {
			clear(got[j])
		}
		extents(p, m, v, blocks, got[0], got[1], got[2], got[3])
		require.Equal(t, want, got)
	}
}

func TestFloorBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0x1p-149, -0x1p-149, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
	for n := range 100 {
		codes, x := make([]uint8, n), make([]float32, n)
		for i := range codes {
			x[i] = values[random.IntN(len(values))]
			if codes[i] = uint8(random.IntN(3)); x[i] != x[i] {
				codes[i] = 0x7f
			}
		}
		want := slices.Clone(codes)
		floorCodes(want, x)
		done := floorBytes(codes, x)
		if haveAVX2 {
			require.Equal(t, n&^31, done)
		}
		floorCodes(codes[done:], x[done:])
		require.Equal(t, want, codes)
	}
}
