package gemm

import (
	"math"
	"unsafe"

	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file computes GEMMs in the arithmetic of a device model; package arith defines
// its fused sums. Only multiply differs from gemm.go: decoding, packing, blocking and
// epilogues are the same.
//
// The terms of a fused sum are aligned to the largest and truncated. A conversion to
// integers does that: each term is scaled by a power of two that makes the last kept bit
// 1, and converted from float32 to int32 toward zero. A term is a product of two FP8
// values, exact in FP32 before and after scaling, and integers add up exactly in any
// order. The scale comes from the maximum of the products of the operands' own powers of
// two, which are stored after the operands' values in scratch. So there are two passes
// over a group, with six vector instructions per product instead of one FMA.
//
// Block scales inside the sums (arith.Sum.MX) multiply that maximum and the terms' scale,
// once per group. Where they are so large or small that a term or sum may overflow or
// underflow in FP32, the plain definition computes the tile.
//
// fuse_exact.go computes sums whose terms are exact sums (arith.Sum.Exact).

// fused computes a gemm's tiles in the arithmetic of a device model.
type fused struct {
	sum          arith.Sum
	kernel       *fuseKernel
	minA, minB   float32 // arith.Sum.MinPower of the operands
	halfA, halfB int     // distance from a block's values to its powers, in floats
	base         *Kernel
	workers      []fusedWorker
}

// fuseKernel is the inner part for one instruction set. The plain Go kernel calls package
// arith.
type fuseKernel struct {
	width int // columns that add computes
	// add computes four rows of sums.
	add func(t *fuseTile)
	// powers sets dst to the powers of two of the n numbers of src, at least minPower, and
	// to 0 for zeros; n is rounded up to a multiple of sixteen. It returns the largest:
	// infinity if src has NaN or infinity.
	powers func(dst, src []float32, n int, minPower float32) (largest float32)
}

// fuseRows is the number of rows of a tile: a multiple of fuseKernel.add's four.
const fuseRows = 16

// fusedWorker is the state of one worker.
type fusedWorker struct {
	tile      fuseTile
	special   bool // the operands of this task have NaN or infinity
	specialB  bool // so does the block of B that the worker keeps
	extreme   bool // block scales of this task need the definition
	old, ieee []float32
	exact     *exactTile // nil without arith.Sum.Exact
	_         [128]byte
}

// fuseTile adds k products, group by group, to each element of c: four rows of one
// vector.
type fuseTile struct {
	a, powerA *float32 // row i and product l are at i·step + l·stepK
	b, powerB *float32 // product l and column j at l·stepB + j
	c         *float32 // row i and column j at i·stepB + j: the addends, then the sums
	step      int      // all three in bytes
	stepK     int
	stepB     int
	k         int
	group     int // products of a fused sum
	chunk     int // number of its terms whose sum fits 32 bits

	scaleA, scaleB *float32 // scales of the rows and of the columns; nil: none
	nextA, nextB   int      // distance in bytes to the scales of the next group

	one        uint64
	units      uint32 // exponent bits: minus those of the largest power, the scale of the terms
	inverse    uint32 // exponent bits: minus those of the terms' scale, its inverse
	exponent   uint32 // mask of the addend's power; 0 if addendLast
	addend     uint32 // mask of the addend; 0 if addendLast
	keep       uint32 // mask of a result's bits
	minPower   float32
	mxcsr      uint32 // MXCSR: the rounding of results
	addendLast bool   // the addend is added after the truncation of terms

	sum        *arith.Sum
	minA, minB float32
	run        int     // with Exact: products that share the scales of a row and of a column
	minScale   float32 // with Exact: arith.Sum.MinPower of the scales
}

// NewFused is New in the arithmetic of a device model. The operands are FP8.
func NewFused(sum arith.Sum) func(p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	return func(p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
		return newFusedGemmWith(fuseKernels()[0], Kernels()[0], sum, p, a, transA, b, transB, out)
	}
}

func newFusedGemmWith(fuse *fuseKernel, base *Kernel, sum arith.Sum, p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	kernel := *base
	kernel.MR, kernel.tall, kernel.block = fuseRows, fuseRows, base.block/fuseRows*fuseRows
	kernel.narrow, kernel.stream, kernel.Pairs, kernel.Integers = true, nil, nil, nil
	g, err := NewWith(&kernel, p, a, transA, b, transB, out)
	if err != nil {
		return nil, err
	}
	if sum.Exact > 0 {
		if err := checkExact(&sum, a.DType, b.DType); err != nil {
			return nil, err
		}
	}
	f := &fused{
		sum: sum, kernel: fuse, base: base, workers: make([]fusedWorker, p.Size()),
		minA: sum.MinPower(a.DType), minB: sum.MinPower(b.DType),
	}
	size := pool.RoundUp(fuseRows, base.MR) * base.NR
	for i := range f.workers {
		w := &f.workers[i]
		w.tile = newFuseTile(&f.sum)
		w.tile.minA, w.tile.minB, w.tile.stepB = f.minA, f.minB, 4*base.NR
		w.old, w.ieee = make([]float32, size), make([]float32, size)
		if sum.Exact > 0 {
			w.exact = newExactTile(&f.sum, size)
		}
	}
	g.fused = f
	unit := DepthUnit // no block of k cuts a group
	for unit%sum.Group != 0 {
		unit += DepthUnit
	}
	g.plan = planBlocks(&kernel, g.M, g.N, g.K, unit, transA, p.Size())
	f.makeRoom(&g.plan)
	p.Reserve(g.plan.scratch())
	return g, nil
}

// makeRoom reserves scratch for the powers after the values of each block.
func (f *fused) makeRoom(p *blocking) {
	f.halfA, f.halfB = pool.RoundUp(p.lenA, 16), pool.RoundUp(p.lenB, 16)
	p.lenA, p.lenB = 2*f.halfA, 2*f.halfB
}

// newFuseTile returns a tile with the fields that depend only on the model.
func newFuseTile(s *arith.Sum) fuseTile {
	const all, toZero, toNearest = math.MaxUint32, 0x7f80, 0x1f80
	t := fuseTile{
		sum: s, group: s.Group, chunk: s.Group, one: 1,
		units: uint32(254+s.Bits) << 23, inverse: 254 << 23,
		exponent: 0x7f800000, addend: all, keep: all << (23 - s.Kept), mxcsr: toZero,
		// Nonzero terms are at least as large, so this minimum never truncates an addend,
		// also in groups without nonzero terms.
		minPower: minFuseTerm,
	}
	if s.Bits > 24 { // 32 products below 4 and the addend do not fit
		t.chunk = min(t.group, 16)
	}
	if s.AddendLast {
		t.exponent, t.addend, t.mxcsr, t.addendLast = 0, 0, toNearest, true
	}
	return t
}

// powersA and powersB compute the powers of a decoded block.
func (f *fused) powersA(worker int, a []float32, n int) {
	if f.sum.Exact == 0 && f.powers(a, f.halfA, n, f.minA) {
		f.workers[worker].special = true
	}
}

func (f *fused) powersB(worker int, b []float32, depth, panel, cols int) {
	w := &f.workers[worker]
	w.specialB = false
	if f.sum.Exact > 0 {
		return
	}
	for c := 0; c < cols; c += f.base.NR {
		if f.powers(b[c/f.base.NR*panel:], f.halfB, depth*f.base.NR, f.minB) {
			w.specialB = true
		}
	}
}

func (f *fused) powers(x []float32, half, n int, minPower float32) (special bool) {
	return f.kernel.powers(x[half:], x, n, minPower) > math.MaxFloat32
}

// begin is called before each task's first block.
func (f *fused) begin(worker int) {
	w := &f.workers[worker]
	w.special, w.extreme = false, false
}

// scaleInside reports whether the device's sums multiply block scales, one for alongA and
// alongB elements of k, into their terms.
func (f *fused) scaleInside(a, b memory.BlockScales, alongA, alongB int) bool {
	inside := f.sum.Exact > 0 ||
		f.sum.MX && a.DType.IsForScales() && b.DType.IsForScales() && alongA == f.sum.Group && alongB == f.sum.Group
	for i := range f.workers {
		f.workers[i].tile.minScale = f.sum.MinPower(a.DType)
	}
	return inside
}

// isZero reports whether element i of x is 0 or -0.
func isZero(x *memory.Matrix, i int) bool { return x.DType.Table()[x.Code(i)] == 0 }

// setScales sets the scales of the next multiply: of the tile at row i and column j of the
// output and of runs [first, first+runs). Without Exact, runs are groups.
func (f *fused) setScales(worker int, s *runScales, i, rows, j, cols, first, runs int) {
	w := &f.workers[worker]
	w.extreme = w.extreme || f.sum.Exact == 0 && f.beyond(s, i, rows, j, cols, first, runs)
	t := &w.tile
	t.run = s.run
	t.scaleA, t.nextA = &s.sa[first*s.ma+i], 4*s.ma
	t.scaleB, t.nextB = &s.sb[first*s.nb+j], 4*s.nb
}

// Nonzero terms are at least minFuseTerm, so that sums in a tile are multiples of its last
// bit, and below 2^92, so that no sum overflows.
const (
	minFuseTerm  = 0x1p-100
	maxFuseScale = 0x1p60
)

// beyond reports whether scales of the tile at (i, j) in runs [first, first+runs) need the
// plain definition. NaN does.
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
		low := float64(lowA) * float64(lowB) * float64(f.minA) * float64(f.minB)
		if !(low >= minFuseTerm && float64(highA)*float64(highB) <= maxFuseScale) {
			return true
		}
	}
	return false
}

// multiply is Kernel.multiply in the arithmetic of the model.
func (f *fused) multiply(worker, depth, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	w, nr := &f.workers[worker], f.base.NR
	if !load {
		clear(c[:fuseRows*nr])
	}
	if f.sum.Exact > 0 {
		f.multiplyExact(w, depth, rows, a, step, stepK, b, c)
		return
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

// canonicalNaN is the only NaN that NVIDIA's and Gaudi's FP32 units produce.
var canonicalNaN = math.Float32frombits(0x7fffffff)

// canonicalNaNs gives NaNs of FP32 additions the bits that they have on the modelled
// devices. The host's bits differ: inf − inf is 0xffc00000 on amd64 and 0x7fc00000 on
// arm64.
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

// replaceSpecials sets the sums that are NaN or infinite. Sums of FP8 products do not
// overflow, so FP32 sums show which those are.
func (f *fused) replaceSpecials(w *fusedWorker, depth, rows int, a []float32, step, stepK int, b, c []float32) {
	mr, nr := f.base.MR, f.base.NR
	for i := 0; i < rows; i += mr {
		f.base.Multiply(depth, min(mr, rows-i), a[i*step:], step, stepK, b, w.ieee[i*nr:], false)
	}
	for i, x := range w.ieee[:rows*nr] {
		if x += w.old[i]; x != x {
			c[i] = canonicalNaN
		} else if math.IsInf(float64(x), 0) {
			c[i] = x
		}
	}
}

const (
	goFuseWidth = 4
	maxGroup    = 64 // arith.Sum.Group
)

var goFuse = fuseKernel{width: goFuseWidth, add: fuseGo, powers: powersGo}

// at returns the element that is bytes bytes after x.
func at(x *float32, bytes int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(x), bytes))
}

func fuseGo(t *fuseTile) {
	var a, b [maxGroup]float32
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
				*c = t.sum.Fuse(a[:n], b[:n], t.minA, t.minB, scale, *c)
			}
		}
	}
}

func powersGo(dst, src []float32, n int, minPower float32) (largest float32) {
	for i, x := range src[:n] {
		p := math.Float32frombits(math.Float32bits(x) & 0x7f800000)
		if p > 0 {
			p = max(p, minPower)
		}
		dst[i] = p
		largest = max(largest, p)
	}
	return largest
}
