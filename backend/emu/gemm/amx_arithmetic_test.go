package gemm

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// flushed returns x, with subnormals flushed to zero.
func flushed(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// flushedFMA is fma(a, b, c) as amx.go defines it. Near the ends of the range it
// rounds in arbitrary precision, where the exponent is unbounded.
func flushedFMA(a, b, c float32) float32 {
	a, b, c = flushed(a), flushed(b), flushed(c)
	v := float64(a)*float64(b) + float64(c)
	if size := math.Abs(v); size == 0 || 0x1p-120 < size && size < 0x1p120 || math.IsNaN(v) || math.IsInf(v, 0) {
		return float32(v)
	}
	x, y := big.NewFloat(float64(a)), big.NewFloat(float64(b))
	exact := new(big.Float).SetPrec(2000)
	exact.Mul(x, y).Add(exact, big.NewFloat(float64(c)))
	rounded := new(big.Float).SetPrec(24).SetMode(big.ToNearestEven).Set(exact)
	switch size := new(big.Float).Abs(rounded); {
	case size.Cmp(big.NewFloat(0x1p-126)) < 0:
		return float32(math.Copysign(0, v))
	case size.Cmp(big.NewFloat(0x1p128)) >= 0:
		return float32(math.Inf(exact.Sign()))
	}
	r, _ := rounded.Float32()
	return r
}

// amxDot is acc plus a dot product, as amx.go defines it.
func amxDot(acc float32, a, b []float32) float32 {
	acc = flushed(acc)
	for from := 0; from < len(a); from += 32 {
		var sum [2]float32
		for l := range 32 {
			var x, y float32
			if from+l < len(a) {
				x, y = a[from+l], b[from+l]
			}
			sum[l%2] = flushedFMA(x, y, sum[l%2])
		}
		acc = flushed(acc + flushed(sum[0]+sum[1]))
	}
	return acc
}

// drawAMX draws operands for each rule of the arithmetic.
var drawAMX = []struct {
	name string
	draw func(r *rand.Rand) uint16
}{
	{"any bits", func(r *rand.Rand) uint16 { return uint16(r.Uint32()) }},
	{"moderate", func(r *rand.Rand) uint16 { return uint16(r.Uint32()&0x807f | (0x70+r.Uint32N(0x20))<<7) }},
	{"products around the smallest normal", func(r *rand.Rand) uint16 { return uint16(r.Uint32()&0x807f | (54+r.Uint32N(20))<<7) }},
	{"sums that cancel to subnormals", func(r *rand.Rand) uint16 { return uint16(r.Uint32()&0x8060 | (61+r.Uint32N(4))<<7) }},
	{"subnormals", func(r *rand.Rand) uint16 { return uint16(r.Uint32()&0x807f | []uint32{0, 0x3f, 0x80}[r.IntN(3)]<<7) }},
	{"overflow", func(r *rand.Rand) uint16 {
		return uint16(r.Uint32()&0x807f | []uint32{0, 0xbe, 0xbf, 0xc0}[r.IntN(4)]<<7)
	}},
}

// The Go version equals the definition, and the hardware equals the Go version: dot
// products of one run of 32 with all kinds of extreme operands and accumulators.
func TestAMXArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	a, b := make([]uint16, 2*amxTile), make([]uint16, 2*amxTile)
	old, want, got := make([]float32, amxAcc), make([]float32, amxAcc), make([]float32, amxAcc)
	for _, kind := range drawAMX {
		for round := range 8 {
			for i := range a {
				a[i], b[i] = kind.draw(r), kind.draw(r)
			}
			for i := range old {
				old[i] = math.Float32frombits(r.Uint32()&0x8000ffff | uint32(kind.draw(r))<<16)
				if i%2 > 0 { // subnormal or slightly larger
					old[i] = math.Float32frombits(r.Uint32() & 0x81ffffff)
				}
			}
			copy(want, old)
			amxMultiplyGo(1, 1, AMXTiles{Elems: a, Panel: amxTile}, AMXTiles{Elems: b, Panel: amxTile}, amxSums{want, amxOut, amxAcc}, round > 0, false)
			for _, kernel := range amxKernels() {
				copy(got, old)
				kernel.multiply(1, 1, AMXTiles{Elems: a, Panel: amxTile}, AMXTiles{Elems: b, Panel: amxTile}, amxSums{got, amxOut, amxAcc}, round > 0, false)
				for i := range want {
					if !same(fp8.F32, math.Float32bits(want[i]), math.Float32bits(got[i])) {
						require.Failf(t, "wrong bits", "%s: %s: %x, want %x, from %x", kernel.name, kind.name, got[i], want[i], old[i])
					}
				}
			}
			for range 64 {
				i, j := r.IntN(amxOut), r.IntN(amxOut)
				var x, y [32]float32
				for l := range x {
					x[l] = fp8.BF16.Float32(uint32(a[i/16*amxTile+i%16*32+l]))
					y[l] = fp8.BF16.Float32(uint32(b[j/16*amxTile+l/2*32+j%16*2+l%2]))
				}
				acc := float32(0)
				if round > 0 {
					acc = old[i*amxOut+j]
				}
				acc = amxDot(acc, x[:], y[:])
				if w := want[i*amxOut+j]; !same(fp8.F32, math.Float32bits(acc), math.Float32bits(w)) {
					require.Failf(t, "wrong bits", "%s: the Go version gives %x, want %x", kind.name, w, acc)
				}
			}
		}
	}
}

// Values that round to the smallest normal number are not flushed; values that round to
// the next smaller 24-bit number are. Sums are 2^-126 plus or minus products on both
// sides of half a step, 2^-151.
func TestAMXTininess(t *testing.T) {
	r := rand.New(rand.NewPCG(37, 38))
	const n = 100
	a, b := newMatrix(fp8.BF16, n, 4, 4), newMatrix(fp8.BF16, n, 4, 4)
	for _, m := range []memory.Matrix{a, b} {
		for i := range n {
			values := [4]float32{0x1p-63, 0, float32(math.Ldexp(1+float64(r.IntN(4))/128, -76+r.IntN(3))), 0}
			for l, v := range values {
				if r.IntN(2) > 0 {
					v = -v
				}
				setCode(m, i*4+l, fp8.BF16.Nearest(v, fp8.Saturate))
			}
		}
	}
	p := pool.New(1)
	defer p.Close()
	for _, kernel := range amxKernels() {
		out := newMatrix(fp8.F32, n, n, n)
		g, err := newAMXGemmWith(kernel, p, a, false, b, true, out)
		require.NoError(t, err)
		g.Run(Epilogue{})
		zeros := 0
		for i, x := range rowsOf(a, false, false) {
			for j, y := range rowsOf(b, true, true) {
				want, got := amxDot(0, x, y), out.F32[i*n+j]
				require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%s: %x", kernel.name, x)
				if got == 0 {
					zeros++
				}
			}
		}
		require.Greater(t, zeros, 100)
		require.Less(t, zeros, n*n-100)
	}
}

// These sums differ in any other order of additions.
func TestAMXOrder(t *testing.T) {
	const big = 0x1p24
	a, b := make([]float32, 64), make([]float32, 64)
	for i := range b {
		b[i] = 1
	}
	dot := func(values map[int]float32) float32 {
		clear(a)
		for at, v := range values {
			a[at] = v
		}
		want := amxDot(0, a, b)
		x, y, out := newMatrix(fp8.BF16, 1, 64, 64), newMatrix(fp8.BF16, 64, 1, 1), newMatrix(fp8.F32, 1, 1, 1)
		for i := range a {
			setCode(x, i, fp8.BF16.Nearest(a[i], fp8.Saturate))
			setCode(y, i, fp8.BF16.Nearest(1, fp8.Saturate))
		}
		p := pool.New(1)
		defer p.Close()
		for _, kernel := range amxKernels() {
			g, err := newAMXGemmWith(kernel, p, x, false, y, false, out)
			require.NoError(t, err)
			g.Run(Epilogue{})
			require.Equal(t, want, out.F32[0], kernel.name)
		}
		return want
	}
	require.Equal(t, float32(0), dot(map[int]float32{0: big, 2: 1, 4: -big}), "1 is lost in the even chain")
	require.Equal(t, float32(1), dot(map[int]float32{0: big, 3: 1, 4: -big}), "1 is kept in the odd chain")
	require.Equal(t, float32(2), dot(map[int]float32{0: 1, 1: 1, 32: big, 34: -big}), "the second run is summed separately")
	require.Equal(t, float32(0), dot(map[int]float32{0: big, 32: 1, 33: 0})-big, "the runs are added in FP32")
}
