package emu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// testedPairs maps kernels to the pair kernels that this machine can run with them.
var testedPairs = map[*gemmKernel]*pairKernel{&goKernel: &goPairs}

// testedKernels lists the kernels that this machine can run, each with and without
// pairs. Plain Go is the last.
func testedKernels() (list []*gemmKernel) {
	for _, kernel := range gemmKernels() {
		single := *kernel
		single.pairs = nil
		if p := testedPairs[kernel]; p != nil {
			with, always := single, *p
			always.reuse = 0
			with.name, with.pairs = p.name, &always
			list = append(list, &with)
		}
		list = append(list, &single)
	}
	return list
}

// guard fills the memory between and around the rows of a matrix. In operands it is NaN,
// so that reads show; in outputs it is a pattern that must not change.
const guard = 0x7f7f7f7f

func newMatrix(d fp8.DType, rows, cols, ld int) matrix {
	m := matrix{dtype: d, rows: rows, cols: cols, ld: ld}
	n := rows*ld + 3
	switch d.Size() {
	case 4:
		m.f32 = make([]float32, n)
	case 2:
		m.u16 = make([]uint16, n)
	default:
		m.u8 = make([]uint8, n)
	}
	for i := range n {
		m.set(i, guard|0x400000)
	}
	return m
}

// set and code access an element's code by its index in memory.
func (m matrix) set(at int, code uint32) {
	switch m.dtype.Size() {
	case 4:
		m.f32[at] = math.Float32frombits(code)
	case 2:
		m.u16[at] = uint16(code)
	default:
		m.u8[at] = uint8(code)
	}
}

func (m matrix) code(at int) uint32 {
	switch m.dtype.Size() {
	case 4:
		return math.Float32bits(m.f32[at])
	case 2:
		return uint32(m.u16[at])
	default:
		return uint32(m.u8[at])
	}
}

func (m matrix) value(i, j int, trans bool) float32 {
	if trans {
		i, j = j, i
	}
	return m.dtype.Float32(m.code(i*m.ld + j))
}

func (m matrix) clone() matrix {
	m.f32 = append([]float32(nil), m.f32...)
	m.u16 = append([]uint16(nil), m.u16...)
	m.u8 = append([]uint8(nil), m.u8...)
	return m
}

func randomMatrix(r *rand.Rand, d fp8.DType, rows, cols, ld int) matrix {
	m := newMatrix(d, rows, cols, ld)
	for i := range rows {
		for j := range cols {
			m.set(i*ld+j, d.Nearest(float32(r.NormFloat64()), fp8.Saturate))
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

// values returns op(m) in FP32, one slice per row, or per column if byColumn.
func (m matrix) values(trans, byColumn bool) [][]float32 {
	rows, cols := orient(m, trans != byColumn)
	v := make([][]float32, rows)
	for i := range v {
		v[i] = make([]float32, cols)
		for j := range v[i] {
			v[i][j] = m.value(i, j, trans != byColumn)
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
	alpha          float32
	outScale       float32
}

func (c gemmCase) String() string {
	return fmt.Sprintf("%dx%dx%d %s(%t)·%s(%t)→%s row=%t col=%t residual=%s accumulate=%t outScale=%g",
		c.m, c.n, c.k, c.a, c.transA, c.b, c.transB, c.out, c.row, c.col, c.residual, c.accumulate, c.outScale)
}

// operands draws the case's matrices, with random leading dimensions.
func (c gemmCase) operands(r *rand.Rand) (a, b, out matrix, e epilogue) {
	stored := func(d fp8.DType, rows, cols int, trans bool) matrix {
		if trans {
			rows, cols = cols, rows
		}
		return randomMatrix(r, d, rows, cols, cols+r.IntN(3))
	}
	a = stored(c.a, c.m, c.k, c.transA)
	b = stored(c.b, c.k, c.n, c.transB)
	out = stored(c.out, c.m, c.n, false)
	e = epilogue{alpha: c.alpha, accumulate: c.accumulate, amax: new(float32)}
	if c.outScale != 0 {
		e.outScale = []float32{c.outScale}
	}
	if c.row {
		e.rowScale = randomScales(r, c.m)
	}
	if c.col {
		e.colScale = randomScales(r, c.n)
	}
	if c.residual != fp8.Invalid {
		e.residual = stored(c.residual, c.m, c.n, false)
	}
	return a, b, out, e
}

// want applies e to acc and returns the code to store, and |v|.
func (e *epilogue) want(acc float32, i, j int, out matrix) (code uint32, magnitude float32) {
	v := acc * e.alpha
	if e.rowScale != nil {
		v *= e.rowScale[i]
	}
	if e.colScale != nil {
		v *= e.colScale[j]
	}
	switch {
	case e.accumulate:
		v = float32(v) + out.value(i, j, false)
	case e.residual.dtype != fp8.Invalid:
		v = float32(v) + e.residual.value(i, j, false)
	}
	magnitude = float32(math.Abs(float64(v)))
	switch {
	case !out.dtype.IsFP8():
		return out.dtype.Nearest(v, fp8.NonSaturating), magnitude
	case e.outScale != nil:
		v *= e.outScale[0]
	}
	return out.dtype.Nearest(v, fp8.Saturate), magnitude
}

// checkGemm runs one case with every kernel and compares every element, the amax and the
// memory around the output. tolerance is relative to the sum of the magnitudes of the
// terms; 0 requires the bits of the chain.
func checkGemm(t *testing.T, c gemmCase, r *rand.Rand, workers int, tolerance float64) {
	t.Helper()
	a, b, before, e := c.operands(r)
	rows, cols := a.values(c.transA, false), b.values(c.transB, true)
	want := before.clone()
	var amax float32
	for i := range c.m {
		for j := range c.n {
			code, magnitude := e.want(chain(rows[i], cols[j]), i, j, before)
			want.set(i*want.ld+j, code)
			amax = fp8.MaxAmax(amax, magnitude)
		}
	}
	p := newPool(workers)
	defer p.close()
	for _, kernel := range testedKernels() {
		out := before.clone()
		*e.amax = 0
		g, err := newGemmWith(kernel, p, a, c.transA, b, c.transB, out)
		require.NoError(t, err)
		g.run(e)
		for at, code := range want.codes() {
			i, j, got := at/out.ld, at%out.ld, out.code(at)
			switch {
			case i >= c.m || j >= c.n:
				require.Equal(t, before.code(at), got, "%s: %s: wrote outside of the output at [%d,%d]", kernel.name, c, i, j)
			case tolerance > 0:
				exact, size := exactDot(rows[i], cols[j])
				require.InDelta(t, exact, out.value(i, j, false), tolerance*size, "%s: %s: [%d,%d]", kernel.name, c, i, j)
			case !same(out.dtype, code, got):
				require.Failf(t, "wrong bits", "%s: %s: [%d,%d] is %#x (%g), want %#x (%g)", kernel.name, c, i, j,
					got, out.dtype.Float32(got), code, out.dtype.Float32(code))
			}
		}
		if tolerance == 0 {
			require.Equal(t, amax, *e.amax, "%s: %s: amax", kernel.name, c)
		}
	}
}

func (m matrix) codes() []uint32 {
	codes := make([]uint32, len(m.f32)+len(m.u16)+len(m.u8))
	for i := range codes {
		codes[i] = m.code(i)
	}
	return codes
}
