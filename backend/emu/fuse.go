package emu

import (
	"math"
	"unsafe"

	"octet/backend/arith"
	"octet/fp8"
)

// This file is the matrix product in the arithmetic of a device model: package
// arith says what a fused sum is. Only the inner part differs from gemm.go's: what
// decodes, packs, cuts and finishes is the same.
//
// How. The terms of a fused sum are aligned to the largest and cut off, which a
// conversion to integers does: scaled by a power of two so that a unit is the last
// bit to keep, a float32 that becomes an int32 loses what is below, toward zero. A
// term is a product of two FP8 values, exact in FP32 and so when it is scaled;
// integers add up exactly, in any order. The power comes from a maximum of products
// of the operands' own powers of two, which lie behind their values: so there are
// two passes over a group, six vector instructions a product in all, where FP32 has
// one multiply-add.
//
// Block scales inside the sums (arith.Sum.MX) multiply that maximum, and what terms
// are scaled by: once a group, not once a product. Where they are so large or small
// that FP32 may not hold a term or a sum, the plain definition takes a tile over.

// fused is what a gemm in the arithmetic of a device model adds.
type fused struct {
	sum            arith.Sum
	kernel         *fuseKernel
	leastA, leastB float32 // the smallest powers of the operands' formats
	halfA, halfB   int     // floats from the values of a block to its powers
	base           *gemmKernel
	workers        []fusedWorker
}

// fuseKernel is the inner part for one instruction set. The plain Go one is package
// arith's sums.
type fuseKernel struct {
	width int // columns that add makes
	// add makes four rows of sums.
	add func(t *fuseTile)
	// powers sets dst to the powers of two of n numbers, rounded up to sixteen, that
	// are not below least, and to 0 for 0. It returns the largest: infinity if
	// there is a NaN or an infinity among them.
	powers func(dst, src []float32, n int, least float32) (largest float32)
}

// fuseRows is the rows of a tile: a multiple of the four of fuseKernel.add.
const fuseRows = 16

// fusedWorker is what a worker needs for itself.
type fusedWorker struct {
	tile      fuseTile
	special   bool // there was a NaN or an infinity in the operands of this task
	specialB  bool // and in the block of B that the worker keeps
	extreme   bool // there were block scales in this task that need the definition
	old, ieee []float32
	_         [128]byte
}

// fuseTile is four rows of a vector of sums, k products each, group by group, on
// top of c.
type fuseTile struct {
	a, powerA *float32 // row i and product l are at i·step + l·stepK
	b, powerB *float32 // product l and column j at l·stepB + j
	c         *float32 // row i and column j at i·stepB + j: what is added to, and the sums
	step      int      // all three in bytes
	stepK     int
	stepB     int
	k         int
	group     int // products of a fused sum
	chunk     int // so many of its terms fit 32 bits

	scaleA, scaleB *float32 // factors of the rows and of the columns, nil without
	nextA, nextB   int      // bytes to those of the next group

	one      uint64
	units    uint32 // an exponent: less that of the largest power, what terms are multiplied by
	inverse  uint32 // an exponent: less that of what terms are multiplied by, its inverse
	exponent uint32 // the mask of the addend's power, 0 if it does not count
	addend   uint32 // the mask of the addend, 0 if it joins apart
	keep     uint32 // the mask of the bits of a result
	least    float32
	mxcsr    uint32 // the control word of the SSE unit: how results are rounded
	apart    bool   // the addend joins apart

	sum            *arith.Sum
	leastA, leastB float32
}

// fusedGemm is newGemm in the arithmetic of a device model. The operands are FP8.
func fusedGemm(sum arith.Sum) func(p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	return func(p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
		return newFusedGemmWith(fuseKernels()[0], gemmKernels()[0], sum, p, a, transA, b, transB, out)
	}
}

func newFusedGemmWith(fuse *fuseKernel, base *gemmKernel, sum arith.Sum, p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	kernel := *base
	kernel.mr, kernel.tall, kernel.block = fuseRows, fuseRows, base.block/fuseRows*fuseRows
	kernel.narrow, kernel.stream, kernel.pairs = true, nil, nil
	g, err := newGemmWith(&kernel, p, a, transA, b, transB, out)
	if err != nil {
		return nil, err
	}
	f := &fused{
		sum: sum, kernel: fuse, base: base, workers: make([]fusedWorker, p.size()),
		leastA: sum.Least(a.dtype), leastB: sum.Least(b.dtype),
	}
	size := roundUp(fuseRows, base.mr) * base.nr
	for i := range f.workers {
		w := &f.workers[i]
		w.tile = newFuseTile(&f.sum)
		w.tile.leastA, w.tile.leastB, w.tile.stepB = f.leastA, f.leastB, 4*base.nr
		w.old, w.ieee = make([]float32, size), make([]float32, size)
	}
	g.fused = f
	unit := depthUnit // no block of k cuts a group
	for unit%sum.Group != 0 {
		unit += depthUnit
	}
	g.plan = planGemm(&kernel, g.m, g.n, g.k, unit, transA, p.size())
	f.makeRoom(&g.plan)
	p.reserve(g.plan.scratch())
	return g, nil
}

// makeRoom lets the powers of a block follow its values.
func (f *fused) makeRoom(p *gemmPlan) {
	f.halfA, f.halfB = roundUp(p.lenA, 16), roundUp(p.lenB, 16)
	p.lenA, p.lenB = 2*f.halfA, 2*f.halfB
}

// newFuseTile fills in what depends on the model alone.
func newFuseTile(s *arith.Sum) fuseTile {
	const all, toZero, toNearest = math.MaxUint32, 0x7f80, 0x1f80
	t := fuseTile{
		sum: s, group: s.Group, chunk: s.Group, one: 1,
		units: uint32(254+s.Bits) << 23, inverse: 254 << 23,
		exponent: 0x7f800000, addend: all, keep: all << (23 - s.Kept), mxcsr: toZero,
		// All terms are above, so that an addend without any loses nothing.
		least: fuseLeast,
	}
	if s.Bits > 24 { // 32 products below 4 and the addend do not fit
		t.chunk = min(t.group, 16)
	}
	if s.Apart {
		t.exponent, t.addend, t.mxcsr, t.apart = 0, 0, toNearest, true
	}
	return t
}

// powersA and powersB follow the decoding of a block.
func (f *fused) powersA(worker int, a []float32, n int) {
	if f.powers(a, f.halfA, n, f.leastA) {
		f.workers[worker].special = true
	}
}

func (f *fused) powersB(worker int, b []float32, depth, panel, cols int) {
	w := &f.workers[worker]
	w.specialB = false
	for c := 0; c < cols; c += f.base.nr {
		if f.powers(b[c/f.base.nr*panel:], f.halfB, depth*f.base.nr, f.leastB) {
			w.specialB = true
		}
	}
}

func (f *fused) powers(x []float32, half, n int, least float32) (special bool) {
	return f.kernel.powers(x[half:], x, n, least) > math.MaxFloat32
}

// begin is called before each task's first block.
func (f *fused) begin(worker int) {
	w := &f.workers[worker]
	w.special, w.extreme = false, false
}

// factors makes the next multiply that of the tile at row i and column j of the output,
// with the factors of so many runs, which are groups, from the first one on.
func (f *fused) factors(worker int, s *runScales, i, rows, j, cols, first, runs int) {
	w := &f.workers[worker]
	w.extreme = w.extreme || f.beyond(s, i, rows, j, cols, first, runs)
	t := &w.tile
	t.scaleA, t.nextA = &s.sa[first*s.ma+i], 4*s.ma
	t.scaleB, t.nextB = &s.sb[first*s.nb+j], 4*s.nb
}

// Terms that are not zero are above fuseLeast, so that the sums of terms of one tile
// are multiples of its last bit, and below 2^92, so that no sum overflows.
const (
	fuseLeast      = 0x1p-100
	mostFuseFactor = 0x1p60
)

// beyond says whether the factors of rows from i and columns from j, of so many runs,
// need the plain definition. NaN does.
func (f *fused) beyond(s *runScales, i, rows, j, cols, first, runs int) bool {
	for r := first; r < first+runs; r++ {
		sa, sb := s.sa[r*s.ma+i:][:rows], s.sb[r*s.nb+j:][:cols]
		lowA, highA := sa[0], sa[0]
		for _, x := range sa[1:] {
			lowA, highA = min(lowA, x), max(highA, x)
		}
		lowB, highB := sb[0], sb[0]
		for _, x := range sb[1:] {
			lowB, highB = min(lowB, x), max(highB, x)
		}
		low := float64(lowA) * float64(lowB) * float64(f.leastA) * float64(f.leastB)
		if !(low >= fuseLeast && float64(highA)*float64(highB) <= mostFuseFactor) {
			return true
		}
	}
	return false
}

// multiply is gemmKernel.multiply.
func (f *fused) multiply(worker, depth, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	w, nr := &f.workers[worker], f.base.nr
	if !load {
		clear(c[:fuseRows*nr])
	}
	w.special = w.special || w.specialB
	if w.special {
		copy(w.old, c[:fuseRows*nr])
	}
	kernel := f.kernel
	if w.extreme {
		kernel = &goFuse
	}
	t := &w.tile
	t.k, t.step, t.stepK = depth, 4*step, 4*stepK
	scaleA, scaleB := t.scaleA, t.scaleB
	for j := 0; j < nr; j += kernel.width {
		t.b, t.powerB = &b[j], &b[f.halfB+j]
		for i := 0; i < rows; i += 4 {
			t.a, t.powerA, t.c = &a[i*step], &a[f.halfA+i*step], &c[i*nr+j]
			if scaleA != nil {
				t.scaleA, t.scaleB = at(scaleA, 4*i), at(scaleB, 4*j)
			}
			kernel.add(t)
		}
	}
	if w.special && !w.extreme {
		f.replaceSpecials(w, depth, rows, a, step, stepK, b, c)
	}
}

// canonicalNaN is the one NaN that NVIDIA's and Gaudi's FP32 units make.
var canonicalNaN = math.Float32frombits(0x7fffffff)

// canonicalNaNs gives the NaNs of sums that joined in FP32 the bits that they have on
// the modelled devices. The host's bits differ: inf − inf is 0xffc00000 on amd64 and
// 0x7fc00000 on arm64.
func canonicalNaNs(sums []float32) {
	if amax := fp8.Amax(sums); amax == amax {
		return
	}
	for i, x := range sums {
		if x != x {
			sums[i] = canonicalNaN
		}
	}
}

// replaceSpecials sets the sums that are no numbers. Sums of FP8 products do not
// overflow, so that IEEE's say which they are.
func (f *fused) replaceSpecials(w *fusedWorker, depth, rows int, a []float32, step, stepK int, b, c []float32) {
	mr, nr := f.base.mr, f.base.nr
	for i := 0; i < rows; i += mr {
		f.base.multiply(depth, min(mr, rows-i), a[i*step:], step, stepK, b, w.ieee[i*nr:], false)
	}
	for i, x := range w.ieee[:rows*nr] {
		if x += w.old[i]; x != x {
			c[i] = canonicalNaN
		} else if !isFinite(x) {
			c[i] = x
		}
	}
}

const goFuseWidth = 4

var goFuse = fuseKernel{width: goFuseWidth, add: fuseGo, powers: powersGo}

// at is the element so many bytes behind x.
func at(x *float32, bytes int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(x), bytes))
}

func fuseGo(t *fuseTile) {
	var a, b [32]float32
	for i := range 4 {
		for j := range goFuseWidth {
			c := at(t.c, i*t.stepB+4*j)
			for l := 0; l < t.k; l += t.group {
				n := min(t.group, t.k-l)
				for r := range n {
					a[r] = *at(t.a, i*t.step+(l+r)*t.stepK)
					b[r] = *at(t.b, (l+r)*t.stepB+4*j)
				}
				scale := 1.0
				if t.scaleA != nil {
					scale = float64(*at(t.scaleA, l/t.group*t.nextA+4*i)) * float64(*at(t.scaleB, l/t.group*t.nextB+4*j))
				}
				*c = t.sum.Fuse(a[:n], b[:n], t.leastA, t.leastB, scale, *c)
			}
		}
	}
}

func powersGo(dst, src []float32, n int, least float32) (largest float32) {
	for i, x := range src[:n] {
		p := math.Float32frombits(math.Float32bits(x) & 0x7f800000)
		if p > 0 {
			p = max(p, least)
		}
		dst[i] = p
		largest = max(largest, p)
	}
	return largest
}
