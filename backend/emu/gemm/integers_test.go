package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// integerDot returns the exact dot product of integers, rounded to float32.
func integerDot(a, b []float32) float32 {
	sum := int64(0)
	for l := range a {
		sum += int64(a[l]) * int64(b[l])
	}
	return float32(sum)
}

// testedIntegers maps kernels to the integer kernels that this machine can run with them.
var testedIntegers = map[*Kernel][]*IntegerKernel{&Go: {&goIntegers, &contiguousIntegers}}

// contiguousIntegers multiplies rows of words side by side alone, as AMX does.
var contiguousIntegers = IntegerKernel{
	Name: "contiguous integers in go", size: 4, contiguous: true,
	Multiply: func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		if stepK != 1 {
			panic("words of a row are not side by side")
		}
		multiplyIntegersGo(k, rows, a, step, stepK, b, c, load)
	},
	along: goIntegers.along, down: goIntegers.down,
}

// integerKernels lists the kernels that this machine can run with each of their integer
// kernels, and without one.
func integerKernels() (list []*Kernel) {
	for _, kernel := range Kernels() {
		for _, q := range append(testedIntegers[kernel], nil) {
			with := *kernel
			if with.Integers = q; q != nil {
				with.Name = q.Name
			}
			list = append(list, &with)
		}
	}
	return list
}

// fillIntegers draws the codes of a matrix: any, or large ones with a mean.
func fillIntegers(r *rand.Rand, m memory.Matrix, anyCode bool, spread float32) {
	for i := range m.Rows * m.LD {
		if anyCode {
			setCode(m, i, r.Uint32())
		} else {
			setCode(m, i, m.DType.Nearest(127-spread*r.Float32()*r.Float32(), fp8.Saturate))
		}
	}
}

// Sums of integers are exact: of any codes, and of large ones, which FP32 rounds, over all
// sizes of blocks of k.
func TestIntegerGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	shapes := [][3]int{{1, 1, 1}, {1, 17, 2}, {4, 16, 3}, {6, 32, 16}, {3, 40, 1023}, {25, 35, 1024}, {7, 33, 1025}, {13, 50, 2049}, {5, 17, 5000}}
	for _, shape := range shapes {
		for _, formats := range [][2]fp8.DType{{fp8.INT8, fp8.INT8}, {fp8.INT4, fp8.INT4}, {fp8.INT8, fp8.INT4}, {fp8.INT4.InBytes(), fp8.INT8}} {
			for trans := range 4 {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: formats[0], b: formats[1], out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1.5,
				}
				a, b, out, e := c.operands(r)
				anyCode := r.IntN(2) == 0
				fillIntegers(r, a, anyCode, 100)
				fillIntegers(r, b, anyCode, 200)
				rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
				want := make([]float32, c.m*c.n)
				for i := range want {
					want[i] = integerDot(rows[i/c.n], cols[i%c.n]) * c.alpha
				}
				for _, kernel := range integerKernels() {
					p := pool.New(1 + trans%2)
					g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
					require.NoError(t, err)
					g.Run(e)
					p.Close()
					for at, x := range want {
						if got := out.F32[at/c.n*out.LD+at%c.n]; got != x {
							require.Failf(t, "wrong sum", "%s: %s: [%d,%d] is %g, want %g", kernel.Name, c, at/c.n, at%c.n, got, x)
						}
					}
				}
			}
		}
	}
}

// Block scales that change inside a word, or between words, give the bits of the definition.
func TestIntegerGemmBlockScales(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 44))
	formats := []fp8.DType{fp8.INT8, fp8.INT4, fp8.INT4.InBytes()}
	for _, run := range []int{0, 1, 2, 3, 4, 6, 7, 12, 20, 32, 48, 128, 512} {
		for trans := range 4 {
			a, b := formats[r.IntN(3)], formats[r.IntN(3)]
			c := gemmCase{
				m: 1 + r.IntN(30), n: 1 + r.IntN(70), k: 1 + r.IntN(1500), a: a, b: b, out: fp8.F32,
				transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1,
			}
			block := blockCase{a: backend.ScaleBlock{Rows: 1, Cols: run}, b: backend.ScaleBlock{Rows: run, Cols: 1}, run: run, scales: fp8.F32}
			if trans == 3 {
				block.a = backend.ScaleBlock{Rows: 1, Cols: 2 * run}
			}
			checkBlocks(t, integerKernels(), c, block, r)
		}
	}
}

// The kernels of instruction sets give the sums and words of the definition.
func TestIntegerKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(45, 46))
	for _, kernel := range integerKernels() {
		q, nr := kernel.Integers, kernel.NR
		if q == nil {
			continue
		}
		for _, k := range []int{0, 1, 2, 3, 4, 5, 7, 8, 17} { // in words
			rows := 1 + r.IntN(kernel.tall)
			height, depth := pool.RoundUp(rows, kernel.MR), k*q.size
			a, b := newMatrix(fp8.INT8, height, depth, depth), newMatrix(fp8.INT8, depth, nr, nr)
			fillIntegers(r, a, true, 0)
			fillIntegers(r, b, true, 0)
			left, right := make([]float32, height*k+1), make([]float32, k*nr+1)
			for i := range height {
				q.wordsAlong(left[i*k:], a.U8[i*depth:][:depth])
			}
			for l := range k {
				q.wordsDown(right[l*nr:], nr, nr, b.U8[l*q.size*nr:], nr, q.size, nr)
			}
			for i, w := range left[:height*k] {
				require.Equal(t, math.Float32bits(word(a.U8[i*q.size:], 1, q.size, q.size)), math.Float32bits(w), "%s: word %d along", kernel.Name, i)
			}
			for i, w := range right[:k*nr] {
				require.Equal(t, math.Float32bits(word(b.U8[i/nr*q.size*nr+i%nr:], nr, q.size, q.size)), math.Float32bits(w), "%s: word %d down", kernel.Name, i)
			}
			if q.offset != nil {
				q.offset(left[:height*k])
			}
			c := make([]float32, height*nr)
			sums := view[int32](c)
			for i := range sums {
				sums[i] = int32(i)
			}
			for _, load := range []bool{true, false} {
				q.Multiply(k, rows, left, k, 1, right, c, load)
				for i := range rows * nr {
					want := int32(0)
					if load {
						want = int32(i)
					}
					for l := range depth {
						want += int32(int8(a.U8[i/nr*depth+l])) * int32(int8(b.U8[l*nr+i%nr]))
					}
					require.Equal(t, want, sums[i], "%s: %d words, load=%t: [%d,%d]", kernel.Name, k, load, i/nr, i%nr)
				}
			}
		}
	}
}

// The largest K has no overflow; a larger one is refused.
func TestIntegerGemmLargestK(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	const k = backend.MaxIntegerK
	x, out := newMatrix(fp8.INT8, 1, k+1, k+1), newMatrix(fp8.F32, 1, 1, 1)
	for i := range x.U8 {
		x.U8[i] = 127
	}
	x.Cols = k
	for _, kernel := range integerKernels() {
		g, err := NewWith(kernel, p, x, false, x, true, out)
		require.NoError(t, err)
		g.Run(Epilogue{})
		require.Equal(t, float32(k*127*127), out.F32[0], kernel.Name)
	}
	x.Cols++
	_, err := New(p, x, false, x, true, out)
	require.ErrorContains(t, err, "K is 133145: sums of products of integers fit 32 bits up to K = 133144")
	_, err = New(p, x, false, newMatrix(fp8.E4M3, 1, k+1, k+1), true, out)
	require.ErrorContains(t, err, "A is int8 and B is e4m3: an integer format multiplies only integer formats")
}

func TestIntegerGemmAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, kernel := range integerKernels() {
		g, err := NewWith(kernel, p, newMatrix(fp8.INT8, 20, 3000, 3000), false, newMatrix(fp8.INT4, 40, 3000, 3000), true, newMatrix(fp8.BF16, 20, 40, 40))
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(Epilogue{}) }))
		require.NoError(t, g.ScaleBlocks(memory.BlockScales{}, memory.BlockScales{}, 32))
		require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(Epilogue{}) }))
	}
}

// NewAMX multiplies integers too, with the sums of New.
func TestAMXIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(47, 48))
	p := pool.New(2)
	defer p.Close()
	require.True(t, AMXMultiplies(fp8.INT8, fp8.INT4))
	c := gemmCase{m: 50, n: 70, k: 900, a: fp8.INT8, b: fp8.INT4, out: fp8.F32, transA: true, alpha: 0.5}
	a, b, out, e := c.operands(r)
	fillIntegers(r, a, true, 0)
	fillIntegers(r, b, true, 0)
	g, err := NewAMX(p, a, true, b, false, out)
	require.NoError(t, err)
	g.Run(e)
	rows, cols := rowsOf(a, true, false), rowsOf(b, false, true)
	for i := range c.m {
		for j := range c.n {
			require.Equal(t, integerDot(rows[i], cols[j])*0.5, out.F32[i*out.LD+j])
		}
	}
	require.False(t, AMXMultiplies(fp8.INT8, fp8.E4M3))
	_, err = NewAMX(p, a, true, newMatrix(fp8.E4M3, c.k, c.n, c.n), false, out)
	require.ErrorContains(t, err, "an integer format multiplies only integer formats")
}
