package gemm

import (
	"fmt"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file computes GEMMs in the arithmetic of AMX, the matrix unit of Intel's server
// processors since Sapphire Rapids. Floating-point operands of up to eight bits and BF16 are
// converted to BF16, exactly. F32 operands are not supported. amx_integers_linux_amd64.go
// multiplies integers with AMX, as integers.go defines.
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
// Block scales that multiply elements (scaled.go) do so before: a and b are then scaled
// elements, which are BF16 values. The arithmetic of GEMMs whose block scales multiply sums is
// that of gemm.go.
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
// speed. Blocks are therefore larger than in plan.go: operands are packed seldom, and
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

	// multiply computes some blocks of sums: block t, [32, 32], is the first two panels
	// of a times panels 2t and 2t+1 of b, steps tiles of each, added to the block if load.
	// plain says that no operand and no result can be subnormal and all products are exact.
	multiply func(steps, blocks int, a, b AMXTiles, c amxSums, load, plain bool)

	// pack packs the first count blocks of src, side by side, into tiles, step elements
	// apart. Blocks are 16 rows of 32 elements if k runs along the rows of src (along),
	// else 32 rows of 16; all blocks are whole. right selects the layout of the right
	// operand.
	pack func(dst []uint16, step int, src memory.Matrix, along, right bool, count int)

	// scale multiplies the elements of a tile by their scales and truncates the products to
	// BF16.
	scale func(tile *[amxTile]uint16, scales *tileScales, right bool)

	// finish is Kernel.finish for tiles of up to 32 rows of 32 columns.
	finish func(acc []float32, t *tileOut)
}

// AMXTiles is an operand: panels of 16 rows or columns, Panel elements apart. If LD is 0, the
// operand is packed: the tiles of a panel follow one another along k. A left operand may also be
// row-major, with LD elements from row to row; its memory has whole tiles, and the elements
// after k are zero.
type AMXTiles struct {
	Elems []uint16
	Panel int
	LD    int
}

// AMXRowMajor returns the row-major operand elems.
func AMXRowMajor(elems []uint16, ld int) AMXTiles { return AMXTiles{elems, amxWidth * ld, ld} }

// steps returns the distances, in elements, between a tile's rows and between a panel's tiles.
func (t *AMXTiles) steps() (row, tile int) {
	if t.LD > 0 {
		return t.LD, amxDepth
	}
	return amxDepth, amxTile
}

// amxSums are blocks of accumulators: element (i, j) of block t is x[t·blockStep + i·ld + j].
type amxSums struct {
	x             []float32
	ld, blockStep int
}

// AMXMultiplies reports whether NewAMX multiplies the two formats.
func AMXMultiplies(a, b fp8.DType) bool {
	return pairable(a) && pairable(b) || a.IsInteger() && b.IsInteger()
}

// amxGEMM is a GEMM in AMX's arithmetic.
type amxGEMM struct {
	*GEMM
	kernel *amxKernel
	plain  bool
	kc     int // columns of a block of op(A)
	stage  []amxStage

	lenA, lenB, lenCodes, lenAcc int // scratch, in floats
}

// amxStage is the state of a worker: a block at the edge of an operand, padded with zeros, and
// the scales of a tile.
type amxStage struct {
	u8     [amxTile]uint8
	u16    [amxTile]uint16
	scales tileScales
	codes  []uint8 // of an operand of four bits, one in a byte
}

// NewAMX is New in AMX's arithmetic. It rejects formats that AMXMultiplies excludes. Sums of
// integers are exact, as in New. A call of ScaleBlocks with scales that multiply sums changes
// the arithmetic to that of New.
func NewAMX(p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	if a.DType.IsInteger() && b.DType.IsInteger() {
		return NewWith(amxIntegerKernel(), p, a, transA, b, transB, out)
	}
	return newAMXGemmWith(amxKernels()[0], p, a, transA, b, transB, out)
}

func newAMXGemmWith(kernel *amxKernel, p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	g, err := New(p, a, transA, b, transB, out)
	if err != nil {
		return nil, err
	}
	if !pairable(a.DType) || !pairable(b.DType) {
		return nil, fmt.Errorf("gemm: A is %s and B is %s: the arithmetic of AMX multiplies floating-point formats that BF16 contains, or integers", a.DType, b.DType)
	}
	x := &amxGEMM{
		GEMM: g, kernel: kernel, plain: a.DType.IsQuantized() && b.DType.IsQuantized() && a.DType.Smallest()*b.DType.Smallest() >= smallestNormal,
		kc: even(g.K, amxMaxK, amxDepth), stage: make([]amxStage, p.Size()),
	}
	mt, nt := amxCut(g.M, g.N, g.K, p.Size())
	x.lenA = min(mt, amxBlockM) * x.kc / 2
	x.lenB = nt * x.kc / 2
	x.lenAcc = min(nt, amxSweep*amxOut) * amxOut
	if x.kc < g.K {
		x.lenAcc = mt * nt
	}
	if a.DType.Size() == 0 || b.DType.Size() == 0 { // codes of a row of tiles, one in a byte
		x.lenCodes = max(amxWidth*x.kc, amxDepth*max(min(mt, amxBlockM), nt)) / 4
	}
	p.Reserve(x.lenA + x.lenB + x.lenCodes + x.lenAcc)
	g.plan.mt, g.plan.nt = mt, nt
	g.choice = nil
	g.task, g.amx = x.runTask, true
	return g, nil
}

// amxCut returns the rows and columns of a task.
func amxCut(m, n, k, workers int) (mt, nt int) {
	mt, nt = even(m, amxMaxM, amxOut), even(n, amxMaxN, amxOut)
	for !pool.Balanced(pool.CeilDiv(m, mt)*pool.CeilDiv(n, nt), workers) && max(mt, nt) > amxOut && mt*nt*max(k, 1) >= 2*amxMinWork {
		if mt >= nt {
			mt = pool.RoundUp((mt+1)/2, amxOut)
		} else {
			nt = pool.RoundUp((nt+1)/2, amxOut)
		}
	}
	return mt, nt
}

// runTask computes one rectangle of the output.
func (x *amxGEMM) runTask(worker, task int) {
	p := &x.plan
	across := pool.CeilDiv(x.N, p.nt)
	i0, j0 := task/across*p.mt, task%across*p.nt
	rows, cols := min(p.mt, x.M-i0), min(p.nt, x.N-j0)

	s := x.pool.Scratch[worker]
	a, s := view[uint16](s[:x.lenA]), s[x.lenA:]
	b, s := view[uint16](s[:x.lenB]), s[x.lenB:]
	codes, s := s[:x.lenCodes], s[x.lenCodes:]
	acc := s[:x.lenAcc]
	stage := &x.stage[worker]
	stage.codes = view[uint8](codes)
	plain := x.plain && x.scaled == nil

	out := &x.workers[worker].out

	for l, first := 0, true; first || l < x.K; l, first = l+x.kc, false {
		depth := min(x.kc, x.K-l)
		steps := pool.CeilDiv(depth, amxDepth)
		panel := steps * amxTile
		last := l+depth == x.K
		x.pack(b, stage, x.b, x.transB, true, j0, cols, l, depth)
		c := acc
		for i := 0; i < rows; i += amxOut {
			height := min(amxOut, rows-i)
			if i%amxBlockM == 0 {
				x.pack(a, stage, x.a, !x.transA, false, i0+i, min(amxBlockM, rows-i), l, depth)
			}
			strip := AMXTiles{Elems: a[i%amxBlockM/amxWidth*panel:], Panel: panel}
			for j := 0; j < cols; j += amxSweep * amxOut {
				width := min(amxSweep*amxOut, cols-j)
				blocks := pool.CeilDiv(width, amxOut)
				x.kernel.multiply(steps, blocks, strip, AMXTiles{Elems: b[j/amxWidth*panel:], Panel: panel}, amxSums{c, amxOut, amxAcc}, !first, plain)
				if last {
					for r := 0; r < width; r += amxOut {
						out.place(i0+i, j0+j+r, height, min(amxOut, width-r))
						x.kernel.finish(c[r*amxOut:], out)
					}
				}
				if x.kc < x.K {
					c = c[blocks*amxAcc:]
				}
			}
		}
	}
}

// pack packs elements [at, at+n) × [l, l+depth) of an operand into panels; the second
// range is along k. along says that k runs along the rows of m. If the number of panels
// is odd, the last one's neighbour is not written.
//
// It packs one row of tiles of m at a time: the tiles of a panel, if along, else one tile of each
// panel.
func (x *amxGEMM) pack(dst []uint16, stage *amxStage, m memory.Matrix, along, right bool, at, n, l, depth int) {
	if depth == 0 {
		return // m may have no memory
	}
	panel := pool.CeilDiv(depth, amxDepth) * amxTile
	i, j, rows, cols := l, at, depth, n
	tileRows, tileCols := amxDepth, amxWidth // in m
	rowStep, colStep := amxTile, panel       // in dst, from tile to tile
	if along {
		i, j, rows, cols = at, l, n, depth
		tileRows, tileCols = tileCols, tileRows
		rowStep, colStep = colStep, rowStep
	}
	for r := 0; r < rows; r += tileRows {
		tiles, height := dst[r/tileRows*rowStep:], min(tileRows, rows-r)
		src := m.Sub(i+r, j)
		if m.DType.Size() == 0 {
			src = stage.unpack(src, height, cols)
		}
		whole := cols / tileCols
		if height < tileRows {
			whole = 0
		}
		x.kernel.pack(tiles, colStep, src, along, right, whole)
		for c := 0; c < cols; c += tileCols {
			tile, width := tiles[c/tileCols*colStep:][:amxTile], min(tileCols, cols-c)
			if c/tileCols >= whole {
				edge := stage.fill(src.Sub(0, c), tileRows, tileCols, height, width)
				x.kernel.pack(tile, amxTile, edge, along, right, 1)
			}
			switch {
			case x.scaled == nil:
			case along:
				x.scale(tile, stage, along, right, at+r, l+c, height, width)
			default:
				x.scale(tile, stage, along, right, at+c, l+r, width, height)
			}
		}
	}
}

// unpack returns some rows of an operand of four bits with one code in a byte.
func (s *amxStage) unpack(block memory.Matrix, rows, cols int) memory.Matrix {
	bytes := memory.Matrix{DType: block.DType.InBytes(), U8: s.codes, Rows: rows, Cols: cols, LD: cols}
	for i := range rows {
		fp8.Unpack4(bytes.U8[i*cols:][:cols], block.U8[i*block.LD/2:])
	}
	return bytes
}

// fill returns a copy of the first height × width elements of m, padded with zeros to
// rows × cols: the block of a tile.
func (s *amxStage) fill(m memory.Matrix, rows, cols, height, width int) memory.Matrix {
	block := memory.Matrix{DType: m.DType, Rows: rows, Cols: cols, LD: cols}
	if m.DType == fp8.BF16 {
		block.U16 = s.u16[:]
		clear(block.U16)
		for i := range height {
			copy(block.U16[i*cols:], m.U16[i*m.LD:][:width])
		}
	} else {
		block.U8 = s.u8[:]
		clear(block.U8)
		for i := range height {
			copy(block.U8[i*cols:], m.U8[i*m.LD:][:width])
		}
	}
	return block
}
