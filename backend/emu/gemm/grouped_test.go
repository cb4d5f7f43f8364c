package gemm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// boundList returns GEMMs of many shapes, formats and arithmetics, one of them without rows.
func boundList(t *testing.T, p *pool.Pool, r *rand.Rand) (list []Bound) {
	h100, err := arith.Lookup("h100")
	require.NoError(t, err)
	fused := NewFused(*h100.SumOf(fp8.Encoding{DType: fp8.E4M3}, fp8.Encoding{DType: fp8.E4M3}))
	add := func(newGEMM func(*pool.Pool, memory.Matrix, bool, memory.Matrix, bool, memory.Matrix) (*GEMM, error), c gemmCase) *GEMM {
		c.alpha = 1
		a, b, out, e := c.operands(r)
		g, err := newGEMM(p, a, c.transA, b, c.transB, out)
		require.NoError(t, err)
		list = append(list, Bound{g, e})
		return g
	}
	for _, kernel := range testedKernels() {
		with := func(p *pool.Pool, a memory.Matrix, ta bool, b memory.Matrix, tb bool, out memory.Matrix) (*GEMM, error) {
			return NewWith(kernel, p, a, ta, b, tb, out)
		}
		add(with, gemmCase{m: 70, n: 200, k: 600, a: fp8.E4M3, b: fp8.E5M2, out: fp8.F32, transB: true, row: true})
		add(with, gemmCase{m: 0, n: 8, k: 16, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32})
		add(with, gemmCase{m: 300, n: 130, k: 90, a: fp8.BF16, b: fp8.BF16, out: fp8.BF16, transA: true, residual: fp8.F32})
		add(with, gemmCase{m: 2, n: 300, k: 256, a: fp8.E4M3, b: fp8.E4M3, out: fp8.E4M3, transB: true, outScale: 3})
		add(with, gemmCase{m: 90, n: 90, k: 1500, a: fp8.F32, b: fp8.F32, out: fp8.F32, accumulate: true})
		add(with, gemmCase{m: 64, n: 70, k: 100, a: fp8.INT8, b: fp8.INT8, out: fp8.F32})
		blocks := add(with, gemmCase{m: 64, n: 100, k: 300, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32, transB: true})
		require.NoError(t, blocks.ScaleBlocks(memory.BlockScales{Rows: 1, Cols: 128, Across: 3, DType: fp8.F32, F32: randomScales(r, 3*64)}, memory.BlockScales{}, 0))
	}
	add(fused, gemmCase{m: 40, n: 50, k: 64, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32})
	promoted := add(fused, gemmCase{m: 40, n: 50, k: 512, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32})
	require.NoError(t, promoted.ScaleBlocks(memory.BlockScales{}, memory.BlockScales{}, 128))
	elements := add(New, gemmCase{m: 64, n: 64, k: 256, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32, transB: true})
	require.NoError(t, elements.ScaleBlocks(randomBlocks(r, elements.a, backend.Block1x32, fp8.E8M0), randomBlocks(r, elements.b, backend.Block1x32, fp8.E8M0), 0))
	narrow := add(New, gemmCase{m: 30, n: 40, k: 50, a: fp8.INT8, b: fp8.INT8, out: fp8.F32})
	require.NoError(t, narrow.Accumulate(arith.Accumulator{Bits: 16}))
	add(New, gemmCase{m: 90, n: 70, k: 80, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32})
	list[len(list)-1].Epilogue.Used = []int32{33}
	add(NewAMX, gemmCase{m: 80, n: 90, k: 100, a: fp8.E4M3, b: fp8.BF16, out: fp8.F32})
	return list
}

// A grouped GEMM gives the bits and the amaxes of separate GEMMs, whichever worker runs which task and
// in whichever order.
func TestGrouped(t *testing.T) {
	threads := []int{1, 1, 2, 3}
	if testing.Short() {
		threads = threads[3:]
	}
	for seed, workers := range threads {
		r := rand.New(rand.NewPCG(uint64(seed), 8))
		p := pool.New(workers)
		list := boundList(t, p, r)
		var before []memory.Matrix
		var want [][]uint32
		var amaxes []float32
		for _, x := range list {
			before = append(before, cloneOf(x.GEMM.out))
			x.GEMM.Run(x.Epilogue)
			want, amaxes = append(want, allCodes(x.GEMM.out)), append(amaxes, *x.Epilogue.Amax)
		}
		g := NewGrouped(p, list)
		for shuffled := range 2 {
			for i, x := range list {
				copy(x.GEMM.out.F32, before[i].F32)
				copy(x.GEMM.out.U16, before[i].U16)
				copy(x.GEMM.out.U8, before[i].U8)
				*x.Epilogue.Amax = 0
			}
			if shuffled == 1 {
				order := r.Perm(g.ends[len(g.ends)-1])
				g.task = func(worker, task int) { g.runTask(worker, order[task]) }
			}
			g.Run()
			for i, x := range list {
				require.Equal(t, want[i], allCodes(x.GEMM.out), "%d workers, GEMM %d: %s %d×%d×%d", workers, i, x.GEMM.kernel.Name, x.GEMM.M, x.GEMM.N, x.GEMM.K)
				require.Equal(t, amaxes[i], *x.Epilogue.Amax)
			}
		}
		require.Zero(t, testing.AllocsPerRun(3, g.Run))
		p.Close()
	}
}

// BenchmarkGrouped compares the GEMMs of all experts in one list of tasks with one after the other,
// in turns: the median time over the median time.
func BenchmarkGrouped(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range []fp8.DType{fp8.E4M3, fp8.BF16} {
		for _, size := range []struct{ experts, rows, dim, ffn int }{{4, 640, 128, 352}, {8, 320, 384, 1024}, {64, 64, 128, 352}, {64, 16, 256, 128}} {
			for _, s := range []struct {
				name           string
				m, n, k        int
				transA, transB bool
			}{
				{"fprop", size.rows, size.ffn, size.dim, false, true},
				{"dgrad", size.rows, size.dim, size.ffn, false, false},
				{"wgrad", size.ffn, size.dim, size.rows, true, false},
			} {
				b.Run(fmt.Sprintf("%s/%d-experts/%dx%dx%d/%s", d, size.experts, size.rows, size.dim, size.ffn, s.name), func(b *testing.B) {
					p := pool.New(2)
					defer p.Close()
					var list []Bound
					for range size.experts {
						c := gemmCase{m: s.m, n: s.n, k: s.k, a: d, b: d, out: fp8.F32, transA: s.transA, transB: s.transB, alpha: 1}
						x, y, out, _ := c.operands(r)
						g, err := New(p, x, s.transA, y, s.transB, out)
						require.NoError(b, err)
						list = append(list, Bound{GEMM: g})
					}
					g := NewGrouped(p, list)
					var separate, grouped []float64
					for b.Loop() {
						start := b.Elapsed()
						for _, x := range list {
							x.GEMM.Run(x.Epilogue)
						}
						middle := b.Elapsed()
						g.Run()
						separate = append(separate, (middle - start).Seconds())
						grouped = append(grouped, (b.Elapsed() - middle).Seconds())
					}
					slices.Sort(separate)
					slices.Sort(grouped)
					b.ReportMetric(grouped[len(grouped)/2]/separate[len(separate)/2], "of-separate")
				})
			}
		}
	}
}
