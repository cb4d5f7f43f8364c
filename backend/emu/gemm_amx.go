package emu

import (
	"fmt"
	"unsafe"

	"octet/fp8"
)

// This file computes GEMMs in the arithmetic of AMX, the matrix unit of Intel's server
// processors since Sapphire Rapids. FP8 and BF16 operands are converted to BF16, exactly.
// F32 operands are not supported.
//
// # Arithmetic
//
// k is cut into runs of 32, the last one padded with zeros. Each element of A·B is
//
//	acc = +0
//	for each run, ascending:
//		even = +0;  even = fma(a[i,l], b[l,j], even)  for l = 0, 2, … 30 of the run
//		odd  = +0;  odd  = fma(a[i,l], b[l,j], odd)   for l = 1, 3, … 31 of the run
//		acc  = acc + (even + odd)
//
// in FP32, rounded to nearest even, independent of shape, blocking, number of threads
// and machine. Subnormal operands and results are flushed to zeros of their sign; a
// result counts as subnormal if it is below 2^-126 after rounding to 24 bits. That is
// Intel's definition of TDPBF16PS (Software Developer's Manual, volume 2), which ignores
// MXCSR, and matches measurements on the hardware. Products of FP8 values are exact, and
// their sums are never subnormal. Sign and payload of NaN are not specified.
//
// # Method
//
// As in gemm.go, the output is cut into rectangles that share nothing, and a worker packs
// the operands of its rectangle, block by block, into the tiles that the instruction
// takes. A tile is 16×16 pairs of BF16 values that are neighbours in k: [row][pair] of
// the left operand, [pair][column] of the right one. A panel is the tiles of 16 rows, or
// of 16 columns, along k.
const (
	amxDepth = 32                  // columns of op(A) in a tile
	amxWidth = 16                  // rows, or columns, in a tile
	amxTile  = amxDepth * amxWidth // elements of a packed tile
	amxOut   = 2 * amxWidth        // rows and columns of the accumulators that multiply holds
	amxAcc   = amxOut * amxOut     // their elements
	amxSweep = 4                   // maximum of those in one call, which amortizes its setup
)

// Maximum blocks. The unit is some ten times as fast as FP32 FMAs, so packing limits the
// speed. Blocks are therefore larger than in gemm_plan.go: operands are packed seldom, and
// with k up to 1024 accumulators stay in the first-level cache until they are finished.
// A block of B is 1 MB in BF16, a block of A 256 KB; strips of 32 rows of A are
// multiplied by the whole block of B.
const (
	amxMaxK   = 1024          // columns of op(A)
	amxBlockM = 4 * amxOut    // rows of op(A) packed at a time
	amxMaxM   = 8 * amxBlockM // rows and columns of one task
	amxMaxN   = 512
)

// amxMinWork is the minimum number of multiplications of a task: about 3 µs.
const amxMinWork = 1 << 21

// amxKernel is the inner part of AMX's arithmetic. The plain Go kernel defines the results
// of the hardware's.
type amxKernel struct {
	name string

	// multiply computes across tiles of accumulators, side by side: tile t of c,
	// [32, 32], is the two panels of a times panels 2t and 2t+1 of b, added to c if load.
	// A panel has steps tiles. plain says that no operand and no result can be subnormal
	// and all products are exact.
	multiply func(steps, across int, a, b []uint16, c []float32, load, plain bool)

	// pack packs the first count blocks of src, side by side, into tiles, step elements
	// apart. Blocks are 16 rows of 32 elements if k runs along the rows of src (along),
	// else 32 rows of 16; all blocks are whole. right selects the layout of the right
	// operand.
	pack func(dst []uint16, step int, src matrix, along, right bool, count int)

	// finish is gemmKernel.finish for tiles of up to 32 rows of 32 columns.
	finish func(acc []float32, t *tileOut)
}

// amxMultiplies reports whether AMX's arithmetic multiplies the two formats.
func amxMultiplies(a, b fp8.DType) bool {
	narrow := func(d fp8.DType) bool { return d == fp8.BF16 || d.IsFP8() }
	return narrow(a) && narrow(b)
}

// amxGemm is a gemm in AMX's arithmetic.
type amxGemm struct {
	*gemm
	kernel *amxKernel
	plain  bool
	kc     int // columns of a block of op(A)
	stage  []amxStage

	lenA, lenB, lenAcc int // scratch, in floats
}

// amxStage is a block at the edge of an operand, padded with zeros.
type amxStage struct {
	u8  [amxTile]uint8
	u16 [amxTile]uint16
}

// newAMXGemm is newGemm in AMX's arithmetic. It rejects F32 operands.
func newAMXGemm(p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	return newAMXGemmWith(amxKernels()[0], p, a, transA, b, transB, out)
}

func newAMXGemmWith(kernel *amxKernel, p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	g, err := newGemm(p, a, transA, b, transB, out)
	if err != nil {
		return nil, err
	}
	if !amxMultiplies(a.dtype, b.dtype) {
		return nil, fmt.Errorf("gemm: A is %s and B is %s: the arithmetic of AMX multiplies bf16, e4m3, e4m3ieee and e5m2", a.dtype, b.dtype)
	}
	x := &amxGemm{
		gemm: g, kernel: kernel, plain: a.dtype.IsFP8() && b.dtype.IsFP8(),
		kc: even(g.k, amxMaxK, amxDepth), stage: make([]amxStage, p.size()),
	}
	mt, nt := amxCut(g.m, g.n, g.k, p.size())
	x.lenA = min(mt, amxBlockM) * x.kc / 2
	x.lenB = nt * x.kc / 2
	x.lenAcc = min(nt, amxSweep*amxOut) * amxOut
	if x.kc < g.k {
		x.lenAcc = mt * nt
	}
	p.reserve(x.lenA + x.lenB + x.lenAcc)
	g.plan.mt, g.plan.nt = mt, nt
	g.choice = nil
	g.task = x.runTask
	return g, nil
}

// amxCut returns the rows and columns of a task.
func amxCut(m, n, k, workers int) (mt, nt int) {
	mt, nt = even(m, amxMaxM, amxOut), even(n, amxMaxN, amxOut)
	for !balanced(ceilDiv(m, mt)*ceilDiv(n, nt), workers) && max(mt, nt) > amxOut && mt*nt*max(k, 1) >= 2*amxMinWork {
		if mt >= nt {
			mt = roundUp((mt+1)/2, amxOut)
		} else {
			nt = roundUp((nt+1)/2, amxOut)
		}
	}
	return mt, nt
}

// runTask computes one rectangle of the output.
func (x *amxGemm) runTask(worker, task int) {
	p := &x.plan
	across := ceilDiv(x.n, p.nt)
	i0, j0 := task/across*p.mt, task%across*p.nt
	rows, cols := min(p.mt, x.m-i0), min(p.nt, x.n-j0)

	s := x.pool.scratch[worker]
	a, s := words(s[:x.lenA]), s[x.lenA:]
	b, s := words(s[:x.lenB]), s[x.lenB:]
	acc := s[:x.lenAcc]
	stage := &x.stage[worker]

	out := &x.workers[worker].out

	for l, first := 0, true; first || l < x.k; l, first = l+x.kc, false {
		depth := min(x.kc, x.k-l)
		steps := ceilDiv(depth, amxDepth)
		panel := steps * amxTile
		last := l+depth == x.k
		x.pack(b, stage, x.b, x.transB, true, j0, cols, l, depth)
		c := acc
		for i := 0; i < rows; i += amxOut {
			height := min(amxOut, rows-i)
			if i%amxBlockM == 0 {
				x.pack(a, stage, x.a, !x.transA, false, i0+i, min(amxBlockM, rows-i), l, depth)
			}
			strip := a[i%amxBlockM/amxWidth*panel:]
			for j := 0; j < cols; j += amxSweep * amxOut {
				width := min(amxSweep*amxOut, cols-j)
				across := ceilDiv(width, amxOut)
				x.kernel.multiply(steps, across, strip, b[j/amxWidth*panel:], c, !first, x.plain)
				if last {
					for r := 0; r < width; r += amxOut {
						out.place(i0+i, j0+j+r, height, min(amxOut, width-r))
						x.kernel.finish(c[r*amxOut:], out)
					}
				}
				if x.kc < x.k {
					c = c[across*amxAcc:]
				}
			}
		}
	}
}

// words returns the memory of x as BF16 values, twice as many.
func words(x []float32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

// pack packs elements [at, at+n) × [l, l+depth) of an operand into panels; the second
// range is along k. along says that k runs along the rows of m. If the number of panels
// is odd, the last one's neighbour is not written.
func (x *amxGemm) pack(dst []uint16, stage *amxStage, m matrix, along, right bool, at, n, l, depth int) {
	if depth == 0 {
		return // m may have no memory
	}
	panel := ceilDiv(depth, amxDepth) * amxTile
	wholeN, wholeK := n/amxWidth, depth/amxDepth
	if along {
		for p := range wholeN {
			x.kernel.pack(dst[p*panel:], amxTile, m.at(at+p*amxWidth, l), along, right, wholeK)
		}
	} else {
		for q := range wholeK {
			x.kernel.pack(dst[q*amxTile:], panel, m.at(l+q*amxDepth, at), along, right, wholeN)
		}
	}
	for p := range ceilDiv(n, amxWidth) {
		for q := range ceilDiv(depth, amxDepth) {
			if p < wholeN && q < wholeK {
				continue
			}
			width, length := min(amxWidth, n-p*amxWidth), min(amxDepth, depth-q*amxDepth)
			edge := stage.fill(m, along, at+p*amxWidth, l+q*amxDepth, width, length)
			x.kernel.pack(dst[p*panel+q*amxTile:], amxTile, edge, along, right, 1)
		}
	}
}

// fill copies a partial block and pads it with zeros.
func (s *amxStage) fill(m matrix, along bool, at, l, n, depth int) matrix {
	var src, block matrix
	if along {
		src, block = m.at(at, l), matrix{rows: amxWidth, cols: amxDepth, ld: amxDepth}
	} else {
		src, block = m.at(l, at), matrix{rows: amxDepth, cols: amxWidth, ld: amxWidth}
		n, depth = depth, n
	}
	block.dtype = m.dtype
	if m.dtype == fp8.BF16 {
		block.u16 = s.u16[:]
		clear(block.u16)
		for i := range n {
			copy(block.u16[i*block.ld:], src.u16[i*src.ld:][:depth])
		}
	} else {
		block.u8 = s.u8[:]
		clear(block.u8)
		for i := range n {
			copy(block.u8[i*block.ld:], src.u8[i*src.ld:][:depth])
		}
	}
	return block
}
