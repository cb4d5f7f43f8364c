package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

var (
	exactFormats = []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2, fp8.BF16}
	outFormats   = []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}
)

// Random operands and epilogues in every orientation. Shapes are of size one, odd, and
// near the sizes of tiles and blocks.
func TestGemmBits(t *testing.T) {
	shapes := [][3]int{
		{1, 1, 1},
		{1, 1, 0},
		{3, 5, 0},
		{1, 16, 16},
		{2, 17, 3},
		{5, 31, 15},
		{4, 32, 17},
		{6, 33, 1},
		{13, 64, 33},
		{14, 65, 40},
		{15, 15, 47},
		{28, 96, 64},
		{29, 7, 100},
		{1, 130, 70},
		{70, 1, 130},
		{43, 50, 511},
		{17, 33, 512},
		{17, 35, 513},
		{9, 40, 1100},
		{169, 20, 20},
		{20, 515, 9},
		{171, 70, 520},
	}
	r := rand.New(rand.NewPCG(1, 2))
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
			checkGemm(t, c, r, 1+r.IntN(3), 0)
		}
	}
}

// Every pair of operand formats with every step of the epilogue.
func TestGemmFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, a := range exactFormats {
		for _, b := range exactFormats {
			for _, out := range outFormats {
				for _, residual := range []fp8.DType{fp8.Invalid, fp8.BF16, fp8.F32} {
					c := gemmCase{m: 16, n: 49, k: 21, a: a, b: b, out: out, transB: true, residual: residual, alpha: 0.3}
					c.row, c.col = residual != fp8.BF16, residual != fp8.F32
					c.accumulate = residual == fp8.Invalid && !out.IsQuantized()
					checkGemm(t, c, r, 1, 0)
				}
			}
		}
	}
}

// codeFormats are a format of each kind that has no kernel of its own.
var codeFormats = func() []fp8.DType {
	list := []fp8.DType{fp8.E2M1, fp8.E2M3, fp8.E3M2}
	for _, name := range []string{"e2m4", "e3m4", "e4m3b11", "e4m3fin", "e4m3fnuz", "e6m1", "e5m2p3109", "e1m2"} {
		d, err := fp8.ParseDType(name)
		if err != nil {
			panic(err)
		}
		list = append(list, d)
	}
	return list
}()

// Every floating-point format of up to eight bits, in both operands and in every
// orientation.
func TestGemmAnyFormat(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i, a := range codeFormats {
		for trans := range 4 {
			for _, shape := range [][3]int{{2, 18, 70}, {40, 66, 600}, {170, 32, 34}} {
				b := append([]fp8.DType{a, fp8.BF16, fp8.E4M3, fp8.F32}, codeFormats...)[(i+3*trans)%(4+len(codeFormats))]
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: a, b: b, out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 0.7,
				}
				tolerance := 0.0
				if b == fp8.F32 {
					c.alpha, tolerance = 1, 1e-6
				}
				checkGemm(t, c, r, 2, tolerance)
				for _, c.b = range []fp8.DType{a, fp8.E4M3} { // the second streams B if A has few rows
					c.alpha = 0.7
					checkGemm(t, c, r, 1, 0)
				}
			}
		}
	}
}

// F32 operands, whose products are inexact, compared with float64.
func TestGemmF32(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, shape := range [][3]int{{1, 1, 1}, {15, 33, 17}, {31, 40, 500}, {3, 70, 64}} {
		for trans := range 4 {
			for _, b := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3} {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: fp8.F32, b: b, out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1,
				}
				checkGemm(t, c, r, 2, 1e-6)
			}
		}
	}
}

// Every kernel decodes all codes of the FP8 formats and BF16 in each orientation:
// multiplication by 1 returns the values.
func TestGemmDecodesEveryCode(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, kernel := range testedKernels() {
		for _, d := range exactFormats {
			rows := 1
			if d == fp8.BF16 {
				rows = 256
			}
			for i := range rows {
				for _, how := range []struct {
					trans bool
					one   fp8.DType // format of the other operand: FP8 by FP8 has its own path
				}{{false, fp8.F32}, {true, fp8.F32}, {false, d}, {true, d}} {
					trans := how.trans
					a := newMatrix(d, 256, 1, 1)
					for code := range 256 {
						setCode(a, code, uint32(i<<8|code))
					}
					one := newMatrix(how.one, 1, 1, 1)
					setCode(one, 0, how.one.Nearest(1, fp8.Saturate))
					out := newMatrix(fp8.F32, 256, 1, 1)
					x, y := a, one
					if trans { // a is the second operand: 1×1 times (256×1)ᵀ
						out.Rows, out.Cols, out.LD = 1, 256, 256
						x, y = one, a
					}
					g, err := NewWith(kernel, p, x, false, y, trans, out)
					require.NoError(t, err)
					g.Run(Epilogue{})
					for code := range 256 {
						want := d.Float32(uint32(i<<8|code)) + 0 // the chain starts at +0, so -0 becomes 0
						if got := math.Float32bits(out.F32[code]); !same(fp8.F32, math.Float32bits(want), got) {
							require.Failf(t, "wrong value", "%s: %s code %#x (second operand: %t) is %g, want %g",
								kernel.Name, d, i<<8|code, trans, out.F32[code], want)
						}
					}
				}
			}
		}
	}
}

// Each kernel's epilogue with special values and every kind of rounding. The matrix
// product is zero and the values are the residual.
func TestGemmRounds(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const m, n = 31, 67
	v := newMatrix(fp8.F32, m, n, n)
	inf := float32(math.Inf(1))
	special := []float32{
		0, float32(math.Copysign(0, -1)), inf, -inf, float32(math.NaN()), 448, 464, 465, -464.1, 240, 248, 249,
		57344, 61440, -61439, 0x1p-6, 0x1p-9, 0x1p-10, 0x1.8p-10, 0x1p-14, 0x1p-16, 0x1p-17, 0x1.8p-17, 0x1p-126, 0x1p-149, 0x1.fep127, 0x1.ffp127, 0x1.fffffep127,
	}
	for i := range v.F32 {
		switch {
		case i < 1000:
			v.F32[i] = special[r.IntN(len(special))]
		case i < 1500: // at and next to midpoints of E4M3
			v.F32[i] = math.Float32frombits(math.Float32bits(float32(r.NormFloat64()))&^(1<<19-1) | uint32(r.IntN(3)-1)&(1<<19-1))
		default:
			v.F32[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(40)-25)))
		}
	}
	p := pool.New(1)
	defer p.Close()
	a, b := newMatrix(fp8.E4M3, m, 1, 1), newMatrix(fp8.E4M3, 1, n, n)
	clear(a.U8)
	clear(b.U8)
	for _, kernel := range testedKernels() {
		for _, d := range outFormats {
			for _, scale := range [][]float32{nil, {3}, {0x1p-40}, {0}} {
				out := newMatrix(d, m, n, n+5)
				e := Epilogue{Residual: v, OutScale: scale}
				before := cloneOf(out)
				g, err := NewWith(kernel, p, a, false, b, false, out)
				require.NoError(t, err)
				g.Run(e)
				for i := range m {
					for j := range n {
						want, _ := e.want(0, i, j, before)
						if got := codeAt(out, i*out.LD+j); got != want && !(d == fp8.F32 && same(d, got, want)) {
							require.Failf(t, "wrong code", "%s: %s of %g·%v is %#x, want %#x", kernel.Name, d, v.F32[i*n+j], scale, got, want)
						}
					}
				}
			}
		}
	}
}

func TestGemmAmaxKeepsNaN(t *testing.T) {
	p := pool.New(3)
	defer p.Close()
	for _, kernel := range testedKernels() {
		for _, bad := range []uint32{0x7f, 0x7c, 0xfc} { // NaN and infinities of E5M2
			a, b := newMatrix(fp8.E5M2, 100, 64, 64), newMatrix(fp8.E4M3, 64, 90, 90)
			for i := range a.U8 {
				a.U8[i] = 0x3c
			}
			for i := range b.U8 {
				b.U8[i] = 0x38
			}
			setCode(a, 77*64+5, bad)
			amax := float32(1e30)
			e := Epilogue{Amax: &amax}
			g, err := NewWith(kernel, p, a, false, b, false, newMatrix(fp8.E4M3, 100, 90, 90))
			require.NoError(t, err)
			g.Run(e)
			if bad == 0x7f {
				require.True(t, math.IsNaN(float64(amax)), "%s: %g", kernel.Name, amax)
			} else {
				require.True(t, math.IsInf(float64(amax), 1), "%s: %g", kernel.Name, amax)
			}
			setCode(a, 77*64+5, 0x3c)
			amax = 0
			g.Run(e)
			require.Equal(t, float32(64), amax, kernel.Name)
			amax = 1000
			g.Run(e)
			require.Equal(t, float32(1000), amax, "%s: a larger old amax is kept", kernel.Name)
		}
	}
}

// F32 products are inexact, so any difference in order shows.
func TestGemmThreadsDoNotChangeBits(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	a := randomMatrix(r, fp8.F32, 301, 900, 900)
	b := randomMatrix(r, fp8.F32, 170, 900, 901)
	for _, kernel := range testedKernels() {
		var first []uint32
		for _, workers := range []int{1, 2, 3, 7} {
			p := pool.New(workers)
			out := newMatrix(fp8.F32, 301, 170, 170)
			g, err := NewWith(kernel, p, a, false, b, true, out)
			require.NoError(t, err)
			require.True(t, workers == 1 || g.plan.tasks(g.M, g.N) > 1, "the work is split")
			g.Run(Epilogue{})
			p.Close()
			if first == nil {
				first = allCodes(out)
			}
			require.Equal(t, first, allCodes(out), "%s: %d workers", kernel.Name, workers)
		}
	}
}

// Consecutive tasks of one slab share a packed block of B.
func TestGemmPacksABlockOnce(t *testing.T) {
	const m, n, k = 61, 100, 40
	r := rand.New(rand.NewPCG(15, 16))
	a, b := randomMatrix(r, fp8.E5M2, m, k, k), randomMatrix(r, fp8.E4M3, k, n, n)
	p := pool.New(1)
	defer p.Close()
	for _, kernel := range testedKernels() {
		decoded := 0
		counting := *kernel
		counting.Decode = func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int) {
			if src.DType == b.DType {
				decoded += rows * cols
			}
			kernel.Decode(dst, step, chunk, src, rows, cols)
		}
		if pairs := kernel.Pairs; pairs != nil {
			countingPairs := *pairs
			countingPairs.Decode = func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
				if src.DType == b.DType {
					decoded += rows * cols
				}
				pairs.Decode(dst, step, chunk, src, rows, cols, along)
			}
			counting.Pairs = &countingPairs
		}
		g, err := NewWith(&counting, p, a, false, b, false, newMatrix(fp8.F32, m, n, n))
		require.NoError(t, err)
		g.plan.mt, g.plan.nt = kernel.MR, kernel.NR
		for range 2 {
			decoded = 0
			g.Run(Epilogue{})
			require.Equal(t, k*n, decoded, "%s: elements of B decoded in a run", kernel.Name)
		}
	}
}

// A worker that steals tasks needs blocks of B in any order.
func TestGemmTasksInAnyOrder(t *testing.T) {
	const m, n, k = 61, 100, 40
	r := rand.New(rand.NewPCG(17, 18))
	a, b := randomMatrix(r, fp8.BF16, m, k, k), randomMatrix(r, fp8.BF16, n, k, k)
	p := pool.New(1)
	defer p.Close()
	for _, kernel := range testedKernels() {
		out := newMatrix(fp8.F32, m, n, n)
		g, err := NewWith(kernel, p, a, false, b, true, out)
		require.NoError(t, err)
		g.plan.mt, g.plan.nt = kernel.MR, kernel.NR
		g.Run(Epilogue{})
		want := allCodes(out)
		clear(out.F32[:m*n])
		order := r.Perm(g.plan.tasks(m, n))
		inner := g.task
		g.task = func(worker, task int) { inner(worker, order[task]) }
		g.Run(Epilogue{})
		require.Equal(t, want, allCodes(out), kernel.Name)
	}
}

func TestGemmRunAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	p := pool.New(2)
	defer p.Close()
	for _, kernel := range testedKernels() {
		for i, out := range outFormats {
			in := []fp8.DType{fp8.E4M3, fp8.BF16}[i%2]
			c := gemmCase{m: 70, n: 80, k: 600, a: in, b: fp8.E5M2, out: out, transB: true, row: true, col: true, residual: fp8.BF16, alpha: 1}
			a, b, o, e := c.operands(r)
			g, err := NewWith(kernel, p, a, false, b, true, o)
			require.NoError(t, err)
			require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }), "%s: %s", kernel.Name, out)
		}
	}
}

func TestGemmRefuses(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	good := func() (a, b, out memory.Matrix) {
		return newMatrix(fp8.E4M3, 4, 6, 6), newMatrix(fp8.E4M3, 6, 5, 5), newMatrix(fp8.BF16, 4, 5, 5)
	}
	for _, c := range []struct {
		name  string
		spoil func(a, b, out *memory.Matrix)
		want  string
	}{
		{"K", func(_, b, _ *memory.Matrix) { b.Rows = 7; b.U8 = make([]uint8, 35) }, "shapes do not match: 4×6 times 7×5, output 4×5"},
		{"out", func(_, _, o *memory.Matrix) { o.Rows = 3 }, "6×5, output 3×5"},
		{"format", func(a, _, _ *memory.Matrix) { a.DType = fp8.I32 }, "A is " + fp8.I32.String() + "; kernels multiply"},
		{"slice", func(a, _, _ *memory.Matrix) { a.DType = fp8.F32 }, "A is 4×6 with a leading dimension of 6 but has 0 elements of " + fp8.F32.String()},
		{"short", func(_, b, _ *memory.Matrix) { b.U8 = b.U8[:29] }, "B is 6×5 with a leading dimension of 5 but has 29 elements"},
		{"ld", func(_, b, _ *memory.Matrix) { b.LD = 4 }, "B is 6×5 with a leading dimension of 4"},
	} {
		a, b, out := good()
		c.spoil(&a, &b, &out)
		_, err := New(p, a, false, b, false, out)
		require.ErrorContains(t, err, c.want, c.name)
	}

	a, b, out := good()
	g, err := New(p, a, false, b, false, out)
	require.NoError(t, err)
	for _, e := range []Epilogue{
		{RowScale: make([]float32, 3)},
		{ColScale: make([]float32, 4)},
		{Residual: newMatrix(fp8.E4M3, 4, 5, 5)},
		{Residual: newMatrix(fp8.BF16, 5, 4, 4)},
		{Residual: newMatrix(fp8.BF16, 4, 5, 5), Accumulate: true},
	} {
		require.Panics(t, func() { g.Run(e) })
	}
}

func TestGemmPlan(t *testing.T) {
	shapes := [][3]int{{1, 1, 1}, {0, 5, 3}, {5, 0, 3}, {2048, 128, 352}, {128, 352, 2048}, {1, 50257, 768}, {4096, 4096, 4096}, {384, 1024, 1024}, {17, 33, 0}}
	for _, kernel := range testedKernels() {
		require.Zero(t, kernel.block%kernel.MR, "a block of A has whole slabs")
		require.Zero(t, kernel.tall%kernel.MR, "a call computes whole tiles")
		for _, shape := range shapes {
			for _, workers := range []int{1, 2, 3, 16, 96} {
				for _, transA := range []bool{false, true} {
					m, n, k := shape[0], shape[1], shape[2]
					p := planBlocks(kernel, m, n, k, DepthUnit, transA, workers)
					require.Zero(t, p.mc%kernel.MR, "a block of A has whole slabs")
					require.Zero(t, p.nt%kernel.NR, "a block of B has whole panels")
					require.Zero(t, p.kc%DepthUnit)
					require.LessOrEqual(t, p.mc, kernel.block)
					require.LessOrEqual(t, p.nt*p.kc, max(p.kc*kernel.NR, kernel.limits(k).b))
					require.LessOrEqual(t, p.kc, kernel.limits(k).k)
					require.Equal(t, p.kc < k, p.blocked)
					if m*n*k > 4*workers*minTaskWork {
						tiles := pool.CeilDiv(m, kernel.MR) * pool.CeilDiv(n, kernel.NR)
						busiest := pool.CeilDiv(p.tasks(m, n), workers) * p.mt * p.nt / (kernel.MR * kernel.NR)
						require.GreaterOrEqual(t, 4*tiles, 3*busiest*workers, "%v for %d workers: %+v", shape, workers, p)
					}
				}
			}
		}
	}
}

func BenchmarkGemm(b *testing.B) {
	r := rand.New(rand.NewPCG(13, 14))
	shapes := []struct {
		name           string
		m, n, k        int
		transA, transB bool
	}{
		{"1024x1024x1024", 1024, 1024, 1024, false, true},
		{"fprop2048x128x352", 2048, 128, 352, false, true},
		{"dgrad2048x128x352", 2048, 128, 352, false, false},
		{"wgrad128x352x2048", 128, 352, 2048, true, false},
		{"decode1x768x3072", 1, 768, 3072, false, true},
	}
	for _, kernel := range testedKernels() {
		for _, s := range shapes {
			for _, d := range []fp8.DType{fp8.E4M3, fp8.E5M2, fp8.BF16, fp8.F32} {
				for _, workers := range []int{1, 2} {
					b.Run(fmt.Sprintf("%s/%s/%s/threads=%d", kernel.Name, s.name, d, workers), func(b *testing.B) {
						p := pool.New(workers)
						defer p.Close()
						outType := fp8.BF16
						if s.transA || d == fp8.F32 {
							outType = fp8.F32
						}
						c := gemmCase{m: s.m, n: s.n, k: s.k, a: d, b: d, out: outType, transA: s.transA, transB: s.transB, alpha: 1}
						x, y, out, e := c.operands(r)
						g, err := NewWith(kernel, p, x, s.transA, y, s.transB, out)
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

// For every shape tasks are not empty, and blocks fit the planned scratch.
func TestEveryShapeHasAPlan(t *testing.T) {
	for _, kernel := range testedKernels() {
		for _, m := range []int{1, 3, 14, 32, 64, 98, 100, 384, 1024, 4096} {
			for _, n := range []int{1, 32, 48, 96, 256, 384, 1000, 8192} {
				for _, k := range []int{1, 16, 32, 48, 256, 512, 1024, 2048, 5000} {
					for _, workers := range []int{1, 2, 3, 64} {
						for _, transA := range []bool{false, true} {
							p := planBlocks(kernel, m, n, k, DepthUnit, transA, workers)
							require.True(t, p.mt > 0 && p.nt > 0 && p.kc > 0 && p.mc > 0, "%s %dx%dx%d, %d workers: %+v", kernel.Name, m, n, k, workers, p)
							require.Greater(t, p.panel, p.kc*kernel.NR)
							require.GreaterOrEqual(t, p.lenB, min(p.nt, pool.RoundUp(n, kernel.NR))/kernel.NR*p.panel)
							require.GreaterOrEqual(t, p.lenAcc, min(p.mc, kernel.tall)*kernel.NR)
						}
					}
				}
			}
		}
	}
}
