package emu

import (
	"math"

	"octet/fp8"
)

// gemmKernel is the inner part of the matrix product for one instruction set.
// The plain Go one is the specification of the others.
type gemmKernel struct {
	name   string
	mr, nr int  // shape of a tile
	tall   int  // rows of tiles that multiply and finish take in one call, a multiple of mr
	group  int  // how many rows transpose takes; divides nr
	block  int  // rows of a transposed A that are decoded together: whole slabs, and runs if those are faster
	narrow bool // wants narrowLimits, and block rows of any A decoded together

	// multiply computes the tile c[i,j] = Σ a[i,l]·b[l,j], l ascending, on top
	// of c if load, else of 0. c is [tall, nr], as much as holds rows rows, at most
	// tall, in whole tiles; b is [k, nr]; a[i,l] is at i·step + l·stepK. Only the
	// first rows rows of c matter, but every element of a in these tiles may be read.
	multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// decode writes the rows×cols corner of src as FP32. Row i starts at
	// i·step; each run of nr columns is contiguous, and chunk after the run
	// before it. It may write a whole run where src has only part of one.
	decode func(dst []float32, step, chunk int, src matrix, rows, cols int)

	// transpose writes src[i,l] to dst[l,i]: group rows of length k, ld apart,
	// become k rows, step apart. It may read and write up to a multiple of
	// depthUnit.
	transpose func(dst []float32, step int, src []float32, ld, k int)

	// gather writes src[i,l] to dst[l,i] for codes of eight bits: rows rows of
	// length k, ld apart, become k rows, nr apart. rows is at most nr and k at
	// most gatherDepth; all of the gatherDepth × nr may be written. nil if
	// transpose after decode is as good.
	gather func(dst, src []uint8, ld, rows, k int)

	// stream is multiply on top of c, [streamRows, nr], for at most streamRows
	// rows, all of which may be read, and FP8 codes that gather has made. What
	// it returns, a power of two, is still to be multiplied with c at the end.
	// nil if decode and multiply are as good.
	stream func(k, rows int, a []float32, step int, codes []uint8, d fp8.DType, c []float32) float32

	// pairs multiplies FP8 and BF16 operands whose scales are per tensor, faster. nil
	// if nothing does.
	pairs *pairKernel

	// addScaled sets acc[i,j] = part[i,j]·(sa[i]·sb[j]), added to what it was
	// unless first, each operation rounded: tiles [tall, nr], of which the first
	// rows rows matter. acc may be part. nil if addScaledRows does it.
	addScaled func(acc, part []float32, rows int, sa, sb []float32, first bool)

	// prefetch asks for the memory that finish will touch. nil if there is no
	// such instruction, or if it takes longer than it spares.
	prefetch func(t *tileOut)

	// finish applies the epilogue to a tile of accumulators, which it may
	// overwrite, and stores it.
	finish func(acc []float32, t *tileOut)
}

// label names the kernel, and what it multiplies FP8 and BF16 by, where users look.
func (k *gemmKernel) label() string {
	if k.pairs != nil {
		return k.name + " and " + k.pairs.name
	}
	return k.name
}

// gatherDepth is a cache line: how much of a row gather takes.
const gatherDepth = 64

// streamRows is the number of rows of A up to which a product is bound by the
// reading of B, and streamDepth how many codes of a row are gathered for them.
const (
	streamRows  = 4
	streamDepth = 4 * gatherDepth
)

// tileOut is an epilogue at one tile, rows × cols elements from row i and column
// j of the output on.
type tileOut struct {
	i, j, rows, cols   int
	rowScale, colScale []float32 // of the whole output, nil where there is none
	residual, out      matrix    // whole; residual.dtype is fp8.Invalid where there is none
	alpha, outScale    float32
	wantAmax           bool
	amax               uint32 // over the tiles so far, as bits

	// The format of an FP8 output, as the casts of package fp8 see it: bits of
	// the largest and the smallest normal float32, mantissa bits dropped.
	largest, smallest, drop uint32
}

// begin prepares for a worker's tiles of one run.
func (t *tileOut) begin(e *epilogue, out matrix) {
	*t = tileOut{
		rowScale: e.rowScale, colScale: e.colScale, residual: e.residual, out: out,
		alpha: e.alpha, outScale: factor(e.outScale), wantAmax: e.amax != nil,
	}
	if out.dtype.IsFP8() {
		t.largest = math.Float32bits(out.dtype.Max())
		t.smallest, t.drop = (127-6)<<23, 20
		if out.dtype == fp8.E5M2 {
			t.smallest, t.drop = (127-14)<<23, 21
		}
	}
}

// place moves to the tile at row i and column j.
func (t *tileOut) place(i, j, rows, cols int) { t.i, t.j, t.rows, t.cols = i, j, rows, cols }

// goKernel holds eight accumulators at a time: more do not fit sixteen
// registers beside their operands.
var goKernel = gemmKernel{
	name: "go", mr: 4, nr: 16, tall: 4, group: 4, block: 96,
	multiply:  multiplyGo,
	decode:    decodeGo,
	transpose: transposeGo,
	finish:    finishGo,
}

func multiplyGo(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	const mr, nr = 4, 16
	for i := 0; i < min(rows, mr); i += 2 {
		for j := 0; j < nr; j += 4 {
			c0 := (*[4]float32)(c[i*nr+j:])
			c1 := (*[4]float32)(c[(i+1)*nr+j:])
			if !load {
				*c0, *c1 = [4]float32{}, [4]float32{}
			}
			dot2x4(k, a[i*step:], step, stepK, b[j:], c0, c1)
		}
	}
}

// dot2x4 adds the products of two rows of a and four columns of b. The
// conversions to float32 keep a compiler from fusing, which would change the
// bits of F32 products from one architecture to the next.
func dot2x4(k int, a []float32, step, stepK int, b []float32, c0, c1 *[4]float32) {
	const nr = 16
	s00, s01, s02, s03 := c0[0], c0[1], c0[2], c0[3]
	s10, s11, s12, s13 := c1[0], c1[1], c1[2], c1[3]
	at, bt := 0, 0
	for range k {
		x, y := a[at], a[at+step]
		v := (*[4]float32)(b[bt:])
		s00 += float32(x * v[0])
		s01 += float32(x * v[1])
		s02 += float32(x * v[2])
		s03 += float32(x * v[3])
		s10 += float32(y * v[0])
		s11 += float32(y * v[1])
		s12 += float32(y * v[2])
		s13 += float32(y * v[3])
		at += stepK
		bt += nr
	}
	*c0 = [4]float32{s00, s01, s02, s03}
	*c1 = [4]float32{s10, s11, s12, s13}
}

func decodeGo(dst []float32, step, chunk int, src matrix, rows, cols int) {
	const nr = 16
	for i := range rows {
		for j := 0; j < cols; j += nr {
			n, from := min(nr, cols-j), i*src.ld+j
			to := dst[i*step+j/nr*chunk:][:n]
			switch src.dtype {
			case fp8.F32:
				copy(to, src.f32[from:])
			case fp8.BF16:
				fp8.DecodeBF16(to, src.u16[from:from+n])
			default:
				table := src.dtype.Table()
				for l, code := range src.u8[from : from+n] {
					to[l] = table[code]
				}
			}
		}
	}
}

func transposeGo(dst []float32, step int, src []float32, ld, k int) {
	for l := range k {
		d := (*[4]float32)(dst[l*step:])
		d[0], d[1], d[2], d[3] = src[l], src[ld+l], src[2*ld+l], src[3*ld+l]
	}
}

func finishGo(acc []float32, t *tileOut) { finishRows(acc, 16, t) }

// finishRows is the epilogue of a tile of nr columns, row by row.
func finishRows(acc []float32, nr int, t *tileOut) {
	for i := range t.rows {
		v := acc[i*nr:][:t.cols]
		row := float32(1)
		if t.rowScale != nil {
			row = t.rowScale[t.i+i]
		}
		for j := range v {
			v[j] = v[j] * t.alpha * row
		}
		if t.colScale != nil {
			for j, s := range t.colScale[t.j:][:len(v)] {
				v[j] *= s
			}
		}
		switch r := &t.residual; r.dtype {
		case fp8.F32:
			for j, x := range r.f32[(t.i+i)*r.ld+t.j:][:len(v)] {
				v[j] += x
			}
		case fp8.BF16:
			for j, x := range r.u16[(t.i+i)*r.ld+t.j:][:len(v)] {
				v[j] += math.Float32frombits(uint32(x) << 16)
			}
		}
		if t.wantAmax {
			t.amax = max(t.amax, math.Float32bits(fp8.Amax(v)))
		}
		at := (t.i+i)*t.out.ld + t.j
		switch t.out.dtype {
		case fp8.F32:
			copy(t.out.f32[at:], v)
		case fp8.BF16:
			fp8.EncodeBF16(t.out.u16[at:at+len(v)], v)
		default:
			fp8.Quantize8(t.out.u8[at:at+len(v)], v, t.out.dtype, t.outScale, false)
		}
	}
}
