package gemm

import (
	"math"

	"octet/backend/emu/memory"
	"octet/fp8"
)

// Kernel is the GEMM's inner part for one instruction set. The plain Go kernel
// defines the results of the others.
type Kernel struct {
	Name          string
	MR, NR        int  // shape of a tile
	tall          int  // maximum rows of a call of multiply and finish; a multiple of mr
	TransposeRows int  // rows of src that transpose takes; divides nr
	block         int  // rows of a transposed A that are decoded together: a multiple of mr
	narrow        bool // uses narrowLimits, and decodes block rows of any A together

	// Multiply computes c[i,j] = c0 + Σ a[i,l]·b[l,j], l ascending, with c0 the old
	// c[i,j] if load, else 0. c holds whole tiles of nr columns that cover rows rows,
	// at most tall; b is [k, nr]; a[i,l] is at i·step + l·stepK. Only the first rows rows
	// of c are valid, but every element of a in these tiles may be read.
	Multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// multiplyFMA is Multiply with unrounded products, for BF16 values whose products can
	// leave FP32's range. nil if Multiply uses FMA instructions.
	multiplyFMA func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// Decode writes the first rows×cols elements of src as FP32. Row i starts at i·step;
	// each run of nr columns is contiguous, and runs are chunk apart. It may write a
	// whole run where src has part of one.
	Decode func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int)

	// Transpose writes src[i,l] to dst[l,i]: transposeRows rows of length k, ld apart,
	// become k rows, step apart. It may round k up to a multiple of DepthUnit.
	Transpose func(dst []float32, step int, src []float32, ld, k int)

	// gather transposes FP8 codes, src[i,l] to dst[l,i]: rows rows of length k, ld apart,
	// become k rows, nr apart. rows is at most nr and k at most gatherDepth; all
	// gatherDepth × nr codes may be written. nil if transpose after decode is as fast.
	gather func(dst, src []uint8, ld, rows, k int)

	// stream is multiply with load for a c of [streamRows, nr], at most streamRows rows,
	// all of which may be read, and FP8 codes from gather. The caller multiplies the final
	// c by the returned scale, a power of two. nil if decode and multiply are as fast.
	stream func(k, rows int, a []float32, step int, codes []uint8, d fp8.DType, c []float32) float32

	// Pairs is a faster multiply for FP8 and BF16 operands, without scales that multiply
	// sums along k; nil if there is none.
	Pairs *PairKernel

	// Integers is a faster multiply for integers; nil if there is none.
	Integers *IntegerKernel

	// addScaled computes acc[i,j] += part[i,j]·(sa[i]·sb[j]), or = if first, each
	// operation rounded, for the first rows rows of [tall, nr]. acc may be part. nil: use
	// addScaledRows.
	addScaled func(acc, part []float32, rows int, sa, sb []float32, first bool)

	// prefetch prefetches the memory that finish accesses. nil if there is no such
	// instruction or it does not pay.
	prefetch func(t *tileOut)

	// finish applies the epilogue to a tile of accumulators, which it may
	// overwrite, and stores it.
	finish func(acc []float32, t *tileOut)
}

// Label returns the kernel's name for users, with that of its pairs.
func (k *Kernel) Label() string {
	if k.Pairs != nil {
		return k.Name + " and " + k.Pairs.Name
	}
	return k.Name
}

// gatherDepth is the number of codes of a row that gather takes: a cache line.
const gatherDepth = 64

// A GEMM of up to streamRows rows of A is bound by reading B. streamDepth is the number
// of codes of a row that are gathered for it.
const (
	streamRows  = 4
	streamDepth = 4 * gatherDepth
)

// maxNR is at least the NR of any kernel.
const maxNR = 32

// matrix is memory.Matrix under a local name: go_asm.h has the offsets of fields of this
// package's types only.
type matrix memory.Matrix

// tileOut is an epilogue at one tile: rows × cols elements of the output from (i, j) on.
type tileOut struct {
	i, j, rows, cols   int
	rowScale, colScale []float32 // of the whole output; nil: none
	residual, out      matrix    // whole; residual.dtype is fp8.Invalid if there is none
	alpha, outScale    float32
	wantAmax           bool
	amax               uint32 // bits of the maximum over the tiles so far

	// The format of an FP8 output, as the casts of package fp8 use it: float32 bits of its
	// largest and smallest normal value, and the number of mantissa bits dropped.
	largest, smallest, drop uint32
}

// begin prepares t for a worker's tiles of one run.
func (t *tileOut) begin(e *Epilogue, alpha float32, out memory.Matrix) {
	*t = tileOut{
		rowScale: e.RowScale, colScale: e.ColScale, residual: matrix(e.Residual), out: matrix(out),
		alpha: alpha, outScale: 1, wantAmax: e.Amax != nil,
	}
	if e.OutScale != nil {
		t.outScale = e.OutScale[0]
	}
	if f := out.DType.Format(); out.DType.IsQuantized() {
		t.largest = math.Float32bits(out.DType.Max())
		t.smallest, t.drop = uint32(127+1-f.Bias)<<23, uint32(23-f.Mantissa)
	}
}

// place moves t to the tile at row i and column j.
func (t *tileOut) place(i, j, rows, cols int) { t.i, t.j, t.rows, t.cols = i, j, rows, cols }

// Go computes eight accumulators at a time: sixteen registers hold no more beside
// the operands.
var Go = Kernel{
	Name: "go", MR: 4, NR: 16, tall: 4, TransposeRows: 4, block: 96,
	Multiply:    multiplyGo,
	multiplyFMA: multiplyFMAGo,
	Decode:      decodeGo,
	Transpose:   transposeGo,
	finish:      finishGo,
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

// dot2x4 adds the dot products of two rows of a and four columns of b. The conversions
// to float32 forbid the compiler to fuse, which would change the bits of F32 products
// between architectures.
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

// multiplyFMAGo adds in float64, where the product of two BF16 values is exact and the sum so
// precise that it rounds to the same float32 as the exact sum.
func multiplyFMAGo(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	const mr, nr = 4, 16
	for i := range min(rows, mr) {
		row := (*[nr]float32)(c[i*nr:])
		if !load {
			*row = [nr]float32{}
		}
		for l := range k {
			x := float64(a[i*step+l*stepK])
			for j, y := range (*[nr]float32)(b[l*nr:]) {
				row[j] = float32(x*float64(y) + float64(row[j]))
			}
		}
	}
}

func decodeGo(dst []float32, step, chunk int, src memory.Matrix, rows, cols int) {
	const nr = 16
	for i := range rows {
		for j := 0; j < cols; j += nr {
			n, from := min(nr, cols-j), i*src.LD+j
			to := dst[i*step+j/nr*chunk:][:n]
			switch src.DType {
			case fp8.F32:
				copy(to, src.F32[from:])
			case fp8.BF16:
				fp8.DecodeBF16(to, src.U16[from:from+n])
			case fp8.F16:
				fp8.Dequantize16(to, src.U16[from:from+n], 1)
			default:
				fp8.Dequantize8(to, src.U8[from:from+n], src.DType, 1)
			}
		}
	}
}

// class says which decoder of codes a format needs.
type class uint8

const (
	other class = iota
	e4m3        // E4M3 and E4M3IEEE, which differ in the first code that is not finite
	e5m2
)

func classOf(d fp8.DType) class {
	f := d.Format()
	switch {
	case f.Bits != 8 || f.Kind != fp8.Float:
	case f.Exponent == 4 && f.Bias == 7 && (f.Special == fp8.FN || f.Special == fp8.IEEE):
		return e4m3
	case f.Exponent == 5 && f.Bias == 15 && f.Special == fp8.IEEE:
		return e5m2
	}
	return other
}

func transposeGo(dst []float32, step int, src []float32, ld, k int) {
	for l := range k {
		d := (*[4]float32)(dst[l*step:])
		d[0], d[1], d[2], d[3] = src[l], src[ld+l], src[2*ld+l], src[3*ld+l]
	}
}

func finishGo(acc []float32, t *tileOut) { finishRows(acc, 16, t) }

// finishRows applies the epilogue to a tile of nr columns, row by row.
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
		switch r := &t.residual; r.DType {
		case fp8.F32:
			for j, x := range r.F32[(t.i+i)*r.LD+t.j:][:len(v)] {
				v[j] += x
			}
		case fp8.BF16:
			for j, x := range r.U16[(t.i+i)*r.LD+t.j:][:len(v)] {
				v[j] += math.Float32frombits(uint32(x) << 16)
			}
		case fp8.F16:
			var buffer [maxNR]float32
			at := (t.i+i)*r.LD + t.j
			fp8.Dequantize16(buffer[:len(v)], r.U16[at:at+len(v)], 1)
			for j, x := range buffer[:len(v)] {
				v[j] += x
			}
		}
		if t.wantAmax {
			t.amax = max(t.amax, math.Float32bits(fp8.Amax(v)))
		}
		at := (t.i+i)*t.out.LD + t.j
		switch t.out.DType {
		case fp8.F32:
			copy(t.out.F32[at:], v)
		case fp8.BF16:
			fp8.EncodeBF16(t.out.U16[at:at+len(v)], v)
		case fp8.F16:
			fp8.EncodeF16(t.out.U16[at:at+len(v)], v)
		default:
			fp8.Quantize8(t.out.U8[at:at+len(v)], v, t.out.DType, t.outScale, false)
		}
	}
}
