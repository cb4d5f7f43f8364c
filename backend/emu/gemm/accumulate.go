package gemm

import (
	"errors"

	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
)

// This file sums products of integers in an accumulator of few bits (arith.Accumulator), in
// plain Go: the order of the additions matters where sums saturate.

// accumulated is the state of a GEMM with an accumulator.
type accumulated struct {
	arith.Accumulator
	workers []accumulatedWorker
}

type accumulatedWorker struct {
	a, b       []int32   // rows of op(A) [MR, K] and a column of op(B)
	tile, part []float32 // sums, and those of one run of k
	_          [128]byte
}

// Accumulate makes c the accumulator of the sums of integers. Where block scales change along k,
// each run has a sum of its own. ScaleBlocks must be called before it.
func (g *GEMM) Accumulate(c arith.Accumulator) error {
	if !g.a.DType.IsInteger() {
		return errors.New("gemm: an accumulator of bits adds up products of integers")
	}
	g.accumulated = &accumulated{c, make([]accumulatedWorker, g.pool.Size())}
	size := g.kernel.tall * g.kernel.NR
	for i := range g.accumulated.workers {
		g.accumulated.workers[i] = accumulatedWorker{
			a: make([]int32, g.kernel.MR*g.K), b: make([]int32, g.K),
			tile: make([]float32, size), part: make([]float32, size),
		}
	}
	g.task = g.runAccumulated
	return nil
}

// runAccumulated is runTask with an accumulator.
func (g *GEMM) runAccumulated(worker, task int) {
	p, kern := &g.plan, g.kernel
	w, out := &g.accumulated.workers[worker], &g.workers[worker].out
	down := pool.CeilDiv(g.M, p.mt)
	i0, j0 := task%down*p.mt, task/down*p.nt
	bottom, right := min(g.M, i0+p.mt), min(g.N, j0+p.nt)
	for i := i0; i < bottom; i += kern.MR {
		rows := min(kern.MR, bottom-i)
		for r := range rows {
			integerRow(w.a[r*g.K:][:g.K], g.a, g.transA, i+r, 0)
		}
		for j := j0; j < right; j += kern.NR {
			cols := min(kern.NR, right-j)
			if s := g.scales; s == nil {
				g.accumulate(w, w.tile, rows, j, cols, 0, g.K)
			} else {
				for from := 0; from < g.K; from += s.run {
					g.accumulate(w, w.part, rows, j, cols, from, min(s.run, g.K-from))
					r := from / s.run
					kern.addRun(w.tile, w.part, rows, s.sa[r*s.ma+i:], s.sb[r*s.nb+j:], r == 0)
				}
			}
			out.place(i, j, rows, cols)
			kern.finish(w.tile, out)
		}
	}
}

// accumulate sets tile to the sums over elements [from, from+n) of k of the worker's rows of
// op(A) and of columns [j, j+cols) of op(B).
func (g *GEMM) accumulate(w *accumulatedWorker, tile []float32, rows, j, cols, from, n int) {
	b := w.b[:n]
	for c := range cols {
		integerRow(b, g.b, !g.transB, j+c, from)
		for r := range rows {
			tile[r*g.kernel.NR+c] = float32(g.accumulated.Dot(w.a[r*g.K+from:][:n], b))
		}
	}
}

// integerRow sets dst to the values of row i of x, from column l on; of the transpose of x if
// trans.
func integerRow(dst []int32, x memory.Matrix, trans bool, i, l int) {
	at, next := i*x.LD+l, 1
	if trans {
		at, next = l*x.LD+i, x.LD
	}
	values := x.DType.Table()
	for r := range dst {
		dst[r] = int32(values[x.Code(at)])
		at += next
	}
}
