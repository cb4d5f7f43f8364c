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

// testedPairs maps kernels to the pair kernels that this machine can run with them.
var testedPairs = map[*Kernel]*PairKernel{&Go: &GoPairs}

// testedKernels lists the kernels that this machine can run, each with and without
// pairs. Plain Go is the last.
func testedKernels() (list []*Kernel) {
	for _, kernel := range Kernels() {
		single := *kernel
		single.Pairs = nil
		if p := testedPairs[kernel]; p != nil {
			with, always := single, *p
			always.reuse = 0
			with.Name, with.Pairs = p.Name, &always
			list = append(list, &with)
		}
		list = append(list, &single)
	}
	return list
}

// guard fills the memory between and around the rows of a matrix. In operands it is NaN,
// so that reads show; in outputs it is a pattern that must not change.
const guard = 0x7f7f7f7f

func newMatrix(d fp8.DType, rows, cols, ld int) memory.Matrix {
	if d.Size() == 0 { // two elements share a byte
		ld += ld % 2
	}
	m := memory.Matrix{DType: d, Rows: rows, Cols: cols, LD: ld}
	n := rows*ld + 3
	switch d.Size() {
	case 4:
		m.F32 = make([]float32, n)
	case 2:
		m.U16 = make([]uint16, n)
	default:
		m.U8 = make([]uint8, d.Bytes(n))
	}
	for i := range n {
		setCode(m, i, guard|0x400000)
	}
	return m
}

// setCode and codeAt access an element's code by its index in memory.
func setCode(m memory.Matrix, at int, code uint32) {
	switch m.DType.Size() {
	case 4:
		m.F32[at] = math.Float32frombits(code)
	case 2:
		m.U16[at] = uint16(code)
	case 1:
		m.U8[at] = uint8(code)
	default:
		shift := at % 2 * 4
		m.U8[at/2] = m.U8[at/2]&^(0xf<<shift) | uint8(code)&0xf<<shift
	}
}

func codeAt(m memory.Matrix, at int) uint32 {
	switch m.DType.Size() {
	case 4:
		return math.Float32bits(m.F32[at])
	case 2:
		return uint32(m.U16[at])
	}
	return uint32(m.Code(at))
}

func valueAt(m memory.Matrix, i, j int, trans bool) float32 {
	if trans {
		i, j = j, i
	}
	return m.DType.Float32(codeAt(m, i*m.LD+j))
}

func cloneOf(m memory.Matrix) memory.Matrix {
	m.F32 = append([]float32(nil), m.F32...)
	m.U16 = append([]uint16(nil), m.U16...)
	m.U8 = append([]uint8(nil), m.U8...)
	return m
}

func randomMatrix(r *rand.Rand, d fp8.DType, rows, cols, ld int) memory.Matrix {
	m := newMatrix(d, rows, cols, ld)
	for i := range rows {
		for j := range cols {
			setCode(m, i*m.LD+j, d.Nearest(float32(r.NormFloat64()), fp8.Saturate))
		}
	}
	return m
}

func randomScales(r *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(math.Exp(r.NormFloat64()))
	}
	return s
}

// rowsOf returns op(m) in FP32, one slice per row, or per column if byColumn.
func rowsOf(m memory.Matrix, trans, byColumn bool) [][]float32 {
	rows, cols := orient(m, trans != byColumn)
	v := make([][]float32, rows)
	for i := range v {
		v[i] = make([]float32, cols)
		for j := range v[i] {
			v[i][j] = valueAt(m, i, j, trans != byColumn)
		}
	}
	return v
}

// chain returns the dot product that gemm.go defines.
func chain(a, b []float32) (acc float32) {
	for l := range a {
		acc += float32(a[l] * b[l])
	}
	return acc
}

// exactDot returns the dot product in float64, and the sum of the magnitudes of its terms.
func exactDot(a, b []float32) (sum, size float64) {
	for l := range a {
		x := float64(a[l]) * float64(b[l])
		sum += x
		size += math.Abs(x)
	}
	return sum, size
}

// same reports whether codes are equal; all NaNs are equal.
func same(d fp8.DType, a, b uint32) bool {
	x, y := d.Float32(a), d.Float32(b)
	return a == b || x != x && y != y
}

type gemmCase struct {
	m, n, k        int
	a, b, out      fp8.DType
	transA, transB bool
	row, col       bool
	residual       fp8.DType
	accumulate     bool
	alpha          float32 // product of the operands' scales
	outScale       float32
}

func (c gemmCase) String() string {
	return fmt.Sprintf("%dx%dx%d %s(%t)·%s(%t)→%s row=%t col=%t residual=%s accumulate=%t outScale=%g",
		c.m, c.n, c.k, c.a, c.transA, c.b, c.transB, c.out, c.row, c.col, c.residual, c.accumulate, c.outScale)
}

// operands draws the case's matrices, with random leading dimensions.
func (c gemmCase) operands(r *rand.Rand) (a, b, out memory.Matrix, e Epilogue) {
	stored := func(d fp8.DType, rows, cols int, trans bool) memory.Matrix {
		if trans {
			rows, cols = cols, rows
		}
		return randomMatrix(r, d, rows, cols, cols+r.IntN(3))
	}
	a, b = stored(c.a, c.m, c.k, c.transA), stored(c.b, c.k, c.n, c.transB)
	a.Scale, b.Scale = []float32{c.alpha / 2}, []float32{2}
	out = stored(c.out, c.m, c.n, false)
	e = Epilogue{Accumulate: c.accumulate, Amax: new(float32)}
	if c.outScale != 0 {
		e.OutScale = []float32{c.outScale}
	}
	if c.row {
		e.RowScale = randomScales(r, c.m)
	}
	if c.col {
		e.ColScale = randomScales(r, c.n)
	}
	if c.residual != fp8.Invalid {
		e.Residual = stored(c.residual, c.m, c.n, false)
	}
	return a, b, out, e
}

// want applies e to v, an accumulator times the scales of its operands, and returns the code
// to store, and |v|.
func (e *Epilogue) want(v float32, i, j int, out memory.Matrix) (code uint32, magnitude float32) {
	if e.RowScale != nil {
		v *= e.RowScale[i]
	}
	if e.ColScale != nil {
		v *= e.ColScale[j]
	}
	switch {
	case e.Accumulate:
		v = float32(v) + valueAt(out, i, j, false)
	case e.Residual.DType != fp8.Invalid:
		v = float32(v) + valueAt(e.Residual, i, j, false)
	}
	magnitude = float32(math.Abs(float64(v)))
	switch {
	case !out.DType.IsQuantized():
		return out.DType.Nearest(v, fp8.NonSaturating), magnitude
	case e.OutScale != nil:
		v *= e.OutScale[0]
	}
	return out.DType.Nearest(v, fp8.Saturate), magnitude
}

// checkGemm runs one case with every kernel and compares every element, the amax and the
// memory around the output. tolerance is relative to the sum of the magnitudes of the
// terms; 0 requires the bits of the chain.
func checkGemm(t *testing.T, c gemmCase, r *rand.Rand, workers int, tolerance float64) {
	t.Helper()
	a, b, before, e := c.operands(r)
	rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
	want := cloneOf(before)
	var amax float32
	for i := range c.m {
		for j := range c.n {
			code, magnitude := e.want(chain(rows[i], cols[j])*c.alpha, i, j, before)
			setCode(want, i*want.LD+j, code)
			amax = fp8.MaxAmax(amax, magnitude)
		}
	}
	p := pool.New(workers)
	defer p.Close()
	for _, kernel := range testedKernels() {
		out := cloneOf(before)
		*e.Amax = 0
		g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
		require.NoError(t, err)
		g.Run(e)
		for at, code := range allCodes(want) {
			i, j, got := at/out.LD, at%out.LD, codeAt(out, at)
			switch {
			case i >= c.m || j >= c.n:
				require.Equal(t, codeAt(before, at), got, "%s: %s: wrote outside of the output at [%d,%d]", kernel.Name, c, i, j)
			case tolerance > 0:
				exact, size := exactDot(rows[i], cols[j])
				require.InDelta(t, exact, valueAt(out, i, j, false), tolerance*size, "%s: %s: [%d,%d]", kernel.Name, c, i, j)
			case !same(out.DType, code, got):
				require.Failf(t, "wrong bits", "%s: %s: [%d,%d] is %#x (%g), want %#x (%g)", kernel.Name, c, i, j,
					got, out.DType.Float32(got), code, out.DType.Float32(code))
			}
		}
		if tolerance == 0 {
			require.Equal(t, amax, *e.Amax, "%s: %s: amax", kernel.Name, c)
		}
	}
}

func allCodes(m memory.Matrix) []uint32 {
	codes := make([]uint32, len(m.F32)+len(m.U16)+len(m.U8))
	for i := range codes {
		codes[i] = codeAt(m, i)
	}
	return codes
}
