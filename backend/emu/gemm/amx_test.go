package gemm

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// checkAMX is checkGemm for the kernels of AMX's arithmetic. With wild, operands have
// random bits.
func checkAMX(t *testing.T, c gemmCase, r *rand.Rand, workers int, wild bool) {
	t.Helper()
	a, b, before, e := c.operands(r)
	if wild {
		for _, m := range []memory.Matrix{a, b} {
			for i := range m.U8 {
				m.U8[i] = uint8(r.Uint32())
			}
			for i := range m.U16 {
				m.U16[i] = uint16(r.Uint32())
			}
		}
	}
	rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
	want := cloneOf(before)
	var amax float32
	for i := range c.m {
		for j := range c.n {
			code, magnitude := e.want(amxDot(0, rows[i], cols[j])*c.alpha, i, j, before)
			setCode(want, i*want.LD+j, code)
			amax = fp8.MaxAmax(amax, magnitude)
		}
	}
	p := pool.New(workers)
	defer p.Close()
	for _, kernel := range amxKernels() {
		out := cloneOf(before)
		*e.Amax = 0
		g, err := newAMXGemmWith(kernel, p, a, c.transA, b, c.transB, out)
		require.NoError(t, err)
		g.Run(e)
		for at, code := range allCodes(want) {
			if got := codeAt(out, at); !same(out.DType, code, got) {
				require.Failf(t, "wrong bits", "%s: %s: [%d,%d] is %#x (%g), want %#x (%g)", kernel.name, c, at/out.LD, at%out.LD,
					got, out.DType.Float32(got), code, out.DType.Float32(code))
			}
		}
		require.Equal(t, math.IsNaN(float64(amax)), math.IsNaN(float64(*e.Amax)), "%s: %s: amax", kernel.name, c)
		if amax == amax {
			require.Equal(t, amax, *e.Amax, "%s: %s: amax", kernel.name, c)
		}
	}
}

func TestAMXGemmBits(t *testing.T) {
	shapes := [][3]int{
		{1, 1, 1},
		{1, 1, 0},
		{3, 5, 0},
		{1, 16, 16},
		{2, 17, 3},
		{5, 31, 31},
		{16, 16, 32},
		{17, 33, 33},
		{32, 32, 64},
		{33, 65, 96},
		{47, 129, 65},
		{1, 130, 70},
		{130, 1, 70},
		{129, 20, 40},
		{1030, 3, 9},
		{3, 515, 40},
		{5, 7, 1024},
		{33, 35, 1025},
		{20, 40, 2100},
	}
	r := rand.New(rand.NewPCG(23, 24))
	pick := func(from []fp8.DType) fp8.DType { return from[r.IntN(len(from))] }
	for _, shape := range shapes {
		for trans := range 4 {
			c := gemmCase{
				m: shape[0], n: shape[1], k: shape[2],
				a: pick(exactFormats), b: pick(exactFormats), out: pick(outFormats),
				transA: trans&1 > 0, transB: trans&2 > 0,
				row: r.IntN(2) > 0, col: r.IntN(2) > 0,
				residual: pick([]fp8.DType{fp8.Invalid, fp8.BF16, fp8.F32}),
				alpha:    float32(math.Exp(r.NormFloat64())),
			}
			if c.out.IsQuantized() {
				c.outScale = float32(r.IntN(4)) * 7.5
			} else if c.residual == fp8.Invalid {
				c.accumulate = r.IntN(2) > 0
			}
			checkAMX(t, c, r, 1+r.IntN(3), false)
		}
	}
}

// Every pair of formats in every orientation, with all codes.
func TestAMXGemmFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	formats := append([]fp8.DType{fp8.E2M1}, exactFormats...)
	for _, a := range formats {
		for _, b := range formats {
			for trans := range 4 {
				c := gemmCase{m: 18, n: 34, k: 50, a: a, b: b, out: outFormats[r.IntN(2)], transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1}
				checkAMX(t, c, r, 1, false)
				checkAMX(t, c, r, 1, true)
			}
		}
	}
}

// Packing equals the Go version and the decoded values, for all codes and orientations and
// unaligned addresses, and writes nothing beyond the tiles.
func TestAMXPack(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 28))
	const count, gap = 5, 7
	for _, kernel := range amxKernels() {
		for _, d := range exactFormats {
			for layout := range 4 {
				along, right := layout&1 > 0, layout&2 > 0
				rows, cols := amxDepth, amxWidth
				if along {
					rows, cols = cols, rows
				}
				src := newMatrix(d, rows, count*cols, count*cols+3)
				for i := range allCodes(src) {
					setCode(src, i, r.Uint32())
				}
				src = src.Sub(0, 1) // not aligned
				src.Cols--
				const step = amxTile + gap
				dst, want := make([]uint16, count*step), make([]uint16, count*step)
				for i := range dst {
					dst[i], want[i] = 0x7f7f, 0x7f7f
				}
				n := count - 1
				amxPackGo(want, step, src, along, right, n)
				kernel.pack(dst, step, src, along, right, n)
				require.Equal(t, want, dst, "%s: %s along=%t right=%t", kernel.name, d, along, right)
				for block := range n {
					for i := range amxWidth {
						for l := range amxDepth {
							row, col := l, i
							if along {
								row, col = i, l
							}
							value := valueAt(src, row, block*cols+col, false)
							at := block*step + i*32 + l
							if right {
								at = block*step + l/2*32 + i*2 + l%2
							}
							got := fp8.BF16.Float32(uint32(dst[at]))
							require.True(t, got == value && math.Signbit(float64(got)) == math.Signbit(float64(value)) || got != got && value != value,
								"%s: %s is %g, want %g", kernel.name, d, got, value)
						}
					}
				}
			}
		}
	}
}

// Of FP8 operands, the version without flushing of subnormals gives the same bits.
func TestAMXPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	a, b := make([]uint16, 2*2*amxTile), make([]uint16, 4*2*amxTile)
	for _, m := range [][]uint16{a, b} {
		for i := range m {
			m[i] = bf16TableOf(fp8.E5M2).bf16(uint8(r.Uint32()))
		}
	}
	for i := range a {
		if i/32%4 > 0 && a[i]&0x7f80 == 0x7f80 {
			a[i] = 0x37c0 // most rows without NaN
		}
	}
	x, y := make([]float32, 2*amxAcc), make([]float32, 2*amxAcc)
	const panel = 2 * amxTile
	amxMultiplyGo(2, 2, AMXTiles{Elems: a, Panel: panel}, AMXTiles{Elems: b, Panel: panel}, amxSums{x, amxOut, amxAcc}, false, false)
	amxMultiplyGo(2, 2, AMXTiles{Elems: a, Panel: panel}, AMXTiles{Elems: b, Panel: panel}, amxSums{y, amxOut, amxAcc}, false, true)
	for i := range x {
		require.True(t, same(fp8.F32, math.Float32bits(x[i]), math.Float32bits(y[i])), "%x and %x", x[i], y[i])
	}
}

// A recorded hash: the same bits on every machine. The operands are made from integers
// alone.
func TestAMXBitsAreKept(t *testing.T) {
	const m, n, k = 45, 70, 1100
	a, b, out := newMatrix(fp8.E5M2, m, k, k), newMatrix(fp8.E4M3, n, k, k), newMatrix(fp8.F32, m, n, n)
	seed := uint32(1)
	for _, x := range []memory.Matrix{a, b} {
		for i := range x.Rows * x.Cols {
			seed = seed*1664525 + 1013904223
			x.U8[i] = uint8(seed>>24) & 0xbf // finite
		}
	}
	for _, kernel := range amxKernels() {
		for workers := range 4 {
			p := pool.New(workers)
			g, err := newAMXGemmWith(kernel, p, a, false, b, true, out)
			require.NoError(t, err)
			g.Run(Epilogue{})
			p.Close()
			var bytes []byte
			for _, v := range out.F32[:m*n] {
				bits := math.Float32bits(v)
				bytes = append(bytes, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
			}
			require.Equal(t, uint32(0xcb03adb3), crc32.ChecksumIEEE(bytes), "%s, %d workers", kernel.name, workers)
		}
	}
}

// Signals preserve tiles: garbage collection interrupts every thread, more threads than
// processors share the unit, and no bit changes.
func TestAMXSurvivesInterrupts(t *testing.T) {
	if err := AMXAvailable(); err != nil {
		t.Skip(err)
	}
	r := rand.New(rand.NewPCG(31, 32))
	c := gemmCase{m: 200, n: 300, k: 640, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32, transB: true, alpha: 1}
	a, b, out, e := c.operands(r)
	p := pool.New(3 * runtime.NumCPU())
	defer p.Close()
	g, err := NewAMX(p, a, false, b, true, out)
	require.NoError(t, err)
	g.Run(e)
	want := allCodes(out)

	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			runtime.GC()
		}
	}()
	for range 500 {
		clear(out.F32)
		g.Run(e)
		for i := range c.m {
			for j := range c.n {
				if at := i*out.LD + j; want[at] != codeAt(out, at) {
					require.Failf(t, "wrong bits", "[%d,%d]", i, j)
				}
			}
		}
	}
	stop.Store(true)
	<-done
}

func TestAMXGemmRunAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	p := pool.New(2)
	defer p.Close()
	for _, kernel := range amxKernels() {
		c := gemmCase{m: 70, n: 80, k: 200, a: fp8.E4M3, b: fp8.E5M2, out: fp8.BF16, transB: true, row: true, col: true, residual: fp8.BF16, alpha: 1}
		a, b, o, e := c.operands(r)
		g, err := newAMXGemmWith(kernel, p, a, false, b, true, o)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }), kernel.name)
	}
}

func TestAMXGemmRefuses(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	a, b, out := newMatrix(fp8.F32, 4, 6, 6), newMatrix(fp8.E4M3, 6, 5, 5), newMatrix(fp8.F32, 4, 5, 5)
	_, err := NewAMX(p, a, false, b, false, out)
	require.ErrorContains(t, err, "A is fp32 and B is e4m3: the arithmetic of AMX multiplies floating-point formats that BF16 contains, or integers")
	_, err = NewAMX(p, b, false, b, false, out)
	require.ErrorContains(t, err, "shapes do not match: 6×5 times 6×5")
}

func TestAMXKernels(t *testing.T) {
	list := amxKernels()
	require.Equal(t, &amxGoKernel, list[len(list)-1], "the Go kernel is always available")
	if err := AMXAvailable(); err != nil {
		t.Log(err)
		require.Len(t, list, 1)
	} else {
		require.Len(t, list, 2)
	}
}

// amxCut returns whole tiles, balances the load of large GEMMs, and terminates.
func TestAMXCut(t *testing.T) {
	for _, shape := range [][3]int{{1, 1, 1}, {0, 5, 3}, {5, 0, 3}, {1, 1, 1 << 20}, {1024, 768, 3072}, {256, 1024, 384}, {1, 50257, 768}, {4096, 4096, 4096}} {
		for _, workers := range []int{1, 2, 3, 16, 96} {
			m, n, k := shape[0], shape[1], shape[2]
			mt, nt := amxCut(m, n, k, workers)
			require.Zero(t, mt%amxOut)
			require.Zero(t, nt%amxOut)
			require.LessOrEqual(t, mt, amxMaxM)
			require.LessOrEqual(t, nt, amxMaxN)
			if m*n*k > 4*workers*amxMinWork && m*n > workers*amxAcc {
				tasks := pool.CeilDiv(m, mt) * pool.CeilDiv(n, nt)
				require.True(t, pool.Balanced(tasks, workers), "%v: %d tasks for %d workers", shape, tasks, workers)
			}
		}
	}
}

func BenchmarkAMXGemm(b *testing.B) {
	r := rand.New(rand.NewPCG(35, 36))
	for _, kernel := range amxKernels()[:1] {
		for _, s := range []struct {
			name           string
			m, n, k        int
			transA, transB bool
		}{
			{"fprop1024x3072x768", 1024, 3072, 768, false, true},
			{"dgrad1024x768x3072", 1024, 768, 3072, false, false},
			{"wgrad768x3072x1024", 768, 3072, 1024, true, false},
			{"decode1x768x3072", 1, 768, 3072, false, true},
		} {
			for _, d := range []fp8.DType{fp8.E4M3, fp8.BF16} {
				for _, workers := range []int{1, 2} {
					b.Run(fmt.Sprintf("%s/%s/%s/threads=%d", kernel.name, s.name, d, workers), func(b *testing.B) {
						p := pool.New(workers)
						defer p.Close()
						c := gemmCase{m: s.m, n: s.n, k: s.k, a: d, b: d, out: fp8.BF16, transA: s.transA, transB: s.transB, alpha: 1}
						x, y, out, e := c.operands(r)
						g, err := newAMXGemmWith(kernel, p, x, s.transA, y, s.transB, out)
						require.NoError(b, err)
						e.Amax = nil
						for b.Loop() {
							g.Run(e)
						}
						flops := 2 * float64(s.m) * float64(s.n) * float64(s.k) * float64(b.N)
						b.ReportMetric(flops/b.Elapsed().Seconds()/1e9, "GFLOP/s")
					})
				}
			}
		}
	}
}

// A left operand in rows gives the bits of a packed one.
func TestAMXRowMajor(t *testing.T) {
	const k, cols, ld = 70, 64, 112
	r := rand.New(rand.NewPCG(55, 56))
	random := func(n int) []uint16 {
		x := make([]uint16, n)
		for i := range x {
			x[i] = uint16(fp8.BF16.Nearest(float32(r.NormFloat64()), fp8.Saturate))
		}
		return x
	}
	const whole = 96
	left, right := random(AMXRows*ld), random(whole*cols)
	for i := range AMXRows {
		clear(left[i*ld+k:][:whole-k])
		for j := whole; j < ld; j++ {
			left[i*ld+j] = 0x7fff // NaN
		}
	}
	for _, blocks := range AMXKernels() {
		packed := func(n int) AMXTiles {
			elems, panel := AMXElems(n, k)
			return AMXTiles{Elems: make([]uint16, elems), Panel: panel}
		}
		a, b := packed(AMXRows), packed(cols)
		blocks.Pack(a, left, ld, AMXRows, whole, true, false)
		blocks.Pack(b, right, cols, whole, cols, false, true)
		want, got := make([]float32, AMXRows*cols), make([]float32, AMXRows*cols)
		blocks.Multiply(want, cols, cols, k, a, b, false)
		blocks.Multiply(got, cols, cols, k, AMXRowMajor(left, ld), b, false)
		require.Equal(t, want, got, blocks.Name())
		require.NotZero(t, got[0])
	}
}
