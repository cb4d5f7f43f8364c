//go:build cuda && cgo && linux

package libcuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
	"octet/fp8"
)

func blas(t *testing.T, d *Device) *Lt {
	standin.Load(t, "libcublaslt")
	l, err := d.NewLt()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// encode rounds numbers to a format, as they lie in memory; decode reads them.
func encode(d fp8.DType, v []float32) (b []byte) {
	for _, x := range v {
		code := d.Nearest(x, fp8.Saturate)
		switch d.Size() {
		case 1:
			b = append(b, byte(code))
		case 2:
			b = binary.LittleEndian.AppendUint16(b, uint16(code))
		default:
			b = binary.LittleEndian.AppendUint32(b, code)
		}
	}
	return b
}

func decode(d fp8.DType, b []byte) []float32 {
	v := make([]float32, len(b)/d.Size())
	d.Decode(v, b)
	return v
}

// bench is a device with what a product needs.
type bench struct {
	*testing.T
	d         *Device
	s         *Stream
	lt        *Lt
	workspace Ptr
	random    *rand.Rand
}

const workspaceBytes = 8 << 20

func newBench(t *testing.T) *bench {
	d := device(t)
	return &bench{t, d, stream(t, d), blas(t, d), alloc(t, d, workspaceBytes), rand.New(rand.NewPCG(1, 2))}
}

// matrix makes a random one of rows × cols with a gap behind every row, and
// returns what its codes stand for, without the scale.
func (b *bench) matrix(d fp8.DType, rows, cols int, scale float32) (Matrix, []float32) {
	ld := cols + 16
	v := make([]float32, rows*ld)
	for i := range v {
		v[i] = float32(b.random.NormFloat64())
	}
	data := encode(d, v)
	m := Matrix{DType: d, LD: ld, Data: alloc(b.T, b.d, len(data))}
	require.NoError(b, b.s.Upload(m.Data, data))
	if d.IsFP8() && scale != 0 {
		m.Scale = upload(b.T, b.d, b.s, scale)
	}
	return m, decode(d, data)
}

func (b *bench) read(m Matrix, rows int) []float32 {
	data := make([]byte, rows*m.LD*m.DType.Size())
	require.NoError(b, b.s.Download(data, m.Data))
	return decode(m.DType, data)
}

func (b *bench) run(g Gemm) error {
	p, err := b.lt.NewProduct(g)
	if err != nil {
		return err
	}
	defer p.Close()
	algos, err := p.Algos(workspaceBytes, 8)
	if err != nil {
		return err
	}
	if err := p.Run(b.s, &algos[0], b.workspace, workspaceBytes); err != nil {
		return err
	}
	return b.s.Synchronize()
}

// shape returns the rows and columns of an operand as it is stored.
func shape(rows, cols int, transposed bool) (int, int) {
	if transposed {
		return cols, rows
	}
	return rows, cols
}

// Every allowed combination of formats against sums in float64 of the same
// codes, to what one rounding to D costs, and FP32 sums.
func TestProducts(t *testing.T) {
	b := newBench(t)
	type formats struct{ a, b, c, d fp8.DType }
	var all []formats
	for _, wide := range []fp8.DType{fp8.BF16, fp8.F16, fp8.F32} {
		all = append(all, formats{wide, wide, wide, wide})
		for _, pair := range [][2]fp8.DType{{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}} {
			all = append(all, formats{pair[0], pair[1], wide, wide})
		}
	}
	for _, half := range []fp8.DType{fp8.BF16, fp8.F16} {
		all = append(all,
			formats{fp8.E4M3, fp8.E4M3, half, fp8.E4M3}, formats{fp8.E4M3, fp8.E5M2, half, fp8.E4M3},
			formats{fp8.E4M3, fp8.E5M2, half, fp8.E5M2}, formats{fp8.E5M2, fp8.E4M3, half, fp8.E5M2})
	}
	all = append(all, formats{fp8.BF16, fp8.BF16, fp8.F32, fp8.F32})
	const m, n, k = 16, 32, 48
	for _, f := range all {
		for variant := range 8 {
			transA, transB, withC := variant&1 != 0, variant&2 != 0, variant&4 != 0
			if f.a.IsFP8() && (transA || !transB) {
				continue
			}
			t.Run(fmt.Sprintf("%v·%v+%v=%v %d", f.a, f.b, f.c, f.d, variant), func(t *testing.T) {
				b := *b
				b.T = t
				rows, cols := shape(m, k, transA)
				A, av := b.matrix(f.a, rows, cols, 0.5)
				rows, cols = shape(k, n, transB)
				B, bv := b.matrix(f.b, rows, cols, 0.25)
				D, before := b.matrix(f.d, m, n, 4)
				g := Gemm{M: m, N: n, K: k, TransA: transA, TransB: transB, A: A, B: B, D: D, Alpha: 0.75}
				cv := make([]float32, len(before))
				if withC {
					g.C, cv = b.matrix(f.c, m, n, 0)
					g.Beta = -2
				}
				if f.d.IsFP8() {
					g.AmaxD = upload(t, b.d, b.s, -1)
				}
				require.NoError(t, b.run(g))
				got := b.read(D, m)

				factor, most := 0.75, 0.0
				if f.a.IsFP8() {
					factor *= 0.5 * 0.25
				}
				for i := range m {
					for j := range n {
						sum, magnitude := 0.0, 0.0
						for l := range k {
							x, y := av[i*A.LD+l], 0.0
							if transA {
								x = av[l*A.LD+i]
							}
							if transB {
								y = float64(bv[j*B.LD+l])
							} else {
								y = float64(bv[l*B.LD+j])
							}
							sum += float64(x) * y
							magnitude += math.Abs(float64(x) * y)
						}
						v := factor*sum + float64(g.Beta)*float64(cv[i*D.LD+j])
						most = max(most, math.Abs(v))
						scale := 1.0
						if f.d.IsFP8() {
							scale = 4
						}
						step := math.Abs(v)*math.Exp2(-float64(mantissa[f.d]+1)) + tiny[f.d]/scale
						require.InDelta(t, v, float64(got[i*D.LD+j])/scale, 1.001*step+magnitude*sums(f.a), "%d, %d", i, j)
					}
					require.Equal(t, before[i*D.LD+n:(i+1)*D.LD], got[i*D.LD+n:(i+1)*D.LD], "the gap behind row %d", i)
				}
				if f.d.IsFP8() {
					require.InEpsilon(t, most, download(t, b.s, g.AmaxD, 1)[0], 1e-5+10*sums(f.a))
				}
			})
		}
	}
}

// sums is by what part of its products' magnitudes a sum of 48 may be off: what FP32
// costs, and on tensor cores what is cut off where products are aligned before they are
// added. Hopper adds 32 products of FP8 at once, with 13 bits behind the exponent of the
// largest: 33 times 2^-13 of that one in each of two steps is less than 2^-8 of all, as
// long as it is less than half of them. In 16-bit formats it keeps some 24 bits.
func sums(d fp8.DType) float64 {
	switch {
	case standin.Hardware() == 0:
		return 1e-6
	case d.IsFP8():
		return 0x1p-8
	}
	return 0x1p-18
}

// mantissa is the stored bits of a significand; tiny half the distance of the
// smallest numbers.
var (
	mantissa = map[fp8.DType]int{fp8.F32: 23, fp8.BF16: 7, fp8.F16: 10, fp8.E4M3: 3, fp8.E5M2: 2}
	tiny     = map[fp8.DType]float64{fp8.F32: 0, fp8.BF16: 0, fp8.F16: 0x1p-25, fp8.E4M3: 0x1p-10, fp8.E5M2: 0x1p-17}
)

// C may be D: gradients accumulate.
func TestProductAccumulates(t *testing.T) {
	b := newBench(t)
	A, av := b.matrix(fp8.E4M3, 16, 16, 1)
	B, bv := b.matrix(fp8.E4M3, 16, 16, 1)
	D, before := b.matrix(fp8.F32, 16, 16, 0)
	require.NoError(t, b.run(Gemm{M: 16, N: 16, K: 16, TransB: true, A: A, B: B, C: D, D: D, Alpha: 1, Beta: 1}))
	got := b.read(D, 16)
	sum := float64(before[0])
	for l := range 16 {
		sum += float64(av[l]) * float64(bv[l])
	}
	require.InDelta(t, sum, got[0], 1e-5)
}

// What NVIDIA's documentation excludes is refused, with the status that it
// names.
func TestProductsThatAreRefused(t *testing.T) {
	standin.Only(t, "a library may do more than its documentation says")
	b := newBench(t)
	A, _ := b.matrix(fp8.E4M3, 32, 32, 1)
	A5, _ := b.matrix(fp8.E5M2, 32, 32, 1)
	H, _ := b.matrix(fp8.BF16, 32, 32, 0)
	F, _ := b.matrix(fp8.F32, 32, 32, 0)
	scale := upload(t, b.d, b.s, 1)
	with := func(m Matrix, change func(*Matrix)) Matrix {
		change(&m)
		return m
	}
	good := Gemm{M: 32, N: 32, K: 32, TransB: true, A: A, B: A, D: H, Alpha: 1}
	require.NoError(t, b.run(good))
	for what, c := range map[string]struct {
		status int
		change func(*Gemm)
	}{
		"NN":                       {15, func(g *Gemm) { g.TransB = false }},
		"TT":                       {15, func(g *Gemm) { g.TransA = true }},
		"E5M2 twice":               {15, func(g *Gemm) { g.A, g.B = A5, A5 }},
		"FP8 by BF16":              {15, func(g *Gemm) { g.B = H }},
		"BF16 by FP32":             {15, func(g *Gemm) { g.A, g.B = H, F }},
		"E5M2 out of E4M3":         {15, func(g *Gemm) { g.D = A5 }},
		"BF16 to FP8":              {15, func(g *Gemm) { g.A, g.B, g.D = H, H, A }},
		"K of 24":                  {15, func(g *Gemm) { g.K = 24 }},
		"N of 4 in BF16":           {15, func(g *Gemm) { g.N = 4 }},
		"N of 8 in BF16":           {15, func(g *Gemm) { g.N = 8 }}, // 16 bytes, and no multiple of 16
		"N of 20 in FP32":          {15, func(g *Gemm) { g.N, g.D = 20, F }},
		"a scale at an odd place":  {7, func(g *Gemm) { g.A.Scale += 2 }},
		"LD of 40":                 {15, func(g *Gemm) { g.A.LD = 40 }},
		"LD shorter than a row":    {7, func(g *Gemm) { g.A.LD = 16 }},
		"address of A":             {15, func(g *Gemm) { g.A.Data += 8 }},
		"address of D":             {15, func(g *Gemm) { g.D.Data += 2 }},
		"scale of BF16 D":          {15, func(g *Gemm) { g.D.Scale = scale }},
		"amax of BF16 D":           {15, func(g *Gemm) { g.AmaxD = scale }},
		"scales of BF16":           {15, func(g *Gemm) { g.A, g.B = with(H, func(m *Matrix) { m.Scale = scale }), H }},
		"C of another format":      {15, func(g *Gemm) { g.C, g.Beta = F, 1 }},
		"FP32 C of FP8 D":          {15, func(g *Gemm) { g.C, g.D, g.Beta = F, A, 1 }},
		"C is D, with another gap": {7, func(g *Gemm) { g.C, g.Beta = with(H, func(m *Matrix) { m.LD = 32 }), 1 }},
	} {
		g := good
		c.change(&g)
		require.Equal(t, c.status, code(b.run(g)), what)
	}
	t.Run("before Ada", func(t *testing.T) {
		standin.Set(t, "STANDIN_CAPABILITY", "80")
		require.Equal(t, 15, code(b.run(good)))
	})
	t.Run("Blackwell lifts TN", func(t *testing.T) {
		standin.Set(t, "STANDIN_CAPABILITY", "100")
		g := good
		g.TransA, g.TransB = true, false
		require.NoError(t, b.run(g))
	})

	g := good
	g.A.DType = fp8.E4M3IEEE
	require.EqualError(t, b.run(g), "32×32×32 product e4m3ieee·e4m3ᵀ in bf16: cuBLASLt has no format e4m3ieee for A")
	g = good
	g.Beta = 1
	require.EqualError(t, b.run(g), "32×32×32 product e4m3·e4m3ᵀ in bf16: Beta is 1 and there is no C")
	g = good
	g.K = 24
	require.EqualError(t, b.run(g), "32×32×24 product e4m3·e4m3ᵀ in bf16: cuBLASLt has no algorithm for it: cublasLtMatmulAlgoGetHeuristic returned 15: the requested functionality is not supported")
}

func TestAlgorithms(t *testing.T) {
	standin.Only(t, "its algorithms are known")
	b := newBench(t)
	A, _ := b.matrix(fp8.E4M3, 32, 32, 1)
	D, _ := b.matrix(fp8.BF16, 32, 32, 0)
	p, err := b.lt.NewProduct(Gemm{M: 32, N: 32, K: 32, TransB: true, A: A, B: A, D: D, Alpha: 1, FastAccum: true})
	require.NoError(t, err)
	defer p.Close()

	all, err := p.Algos(workspaceBytes, 100)
	require.NoError(t, err)
	var splits []int
	for _, a := range all {
		splits = append(splits, a.Splits)
		require.NoError(t, p.Run(b.s, &a, b.workspace, a.Workspace))
	}
	require.Equal(t, []int{1, 1}, splits, "the stand-in has one between them that splits")
	split := p.Gemm
	split.SplitK = true
	unbound, err := b.lt.NewProduct(split)
	require.NoError(t, err)
	defer unbound.Close()
	three, err := unbound.Algos(workspaceBytes, 100)
	require.NoError(t, err)
	require.Len(t, three, 3)
	require.Greater(t, three[1].Splits, 1)
	two, err := p.Algos(workspaceBytes, 2)
	require.NoError(t, err)
	require.Equal(t, all, two, "there is no room lost to it")
	one, err := p.Algos(0, 1)
	require.NoError(t, err)
	require.Equal(t, 0, one[0].Workspace)
	require.NoError(t, p.Run(b.s, &one[0], 0, 0))

	// What an algorithm is known by brings it back, to another process too.
	for _, a := range all {
		again, err := p.Algo(a.Code())
		require.NoError(t, err)
		require.Equal(t, a, again)
	}
	_, err = p.Algo(Code{9})
	require.Equal(t, 7, code(err))

	// An algorithm relies on addresses as they were; others get others.
	shifted := p.Gemm
	shifted.D.Data += 16
	q, err := b.lt.NewProduct(shifted)
	require.NoError(t, err)
	defer q.Close()
	require.Equal(t, 15, code(q.Run(b.s, &one[0], 0, 0)))
	one16, err := q.Algos(0, 1)
	require.NoError(t, err)
	require.NoError(t, q.Run(b.s, &one16[0], 0, 0))

	require.Equal(t, 7, code(p.Run(b.s, &all[0], b.workspace, all[0].Workspace-1)))
	require.Equal(t, 7, code(p.Run(b.s, &all[0], b.workspace+16, all[0].Workspace)))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = p.Run(b.s, &one[0], 0, 0) }))
	require.NoError(t, b.s.Synchronize())
}

// product is a small one, and what runs it.
func (b *bench) product() (p *Product, run func() error) {
	A, _ := b.matrix(fp8.E4M3, 16, 16, 1)
	D, _ := b.matrix(fp8.F32, 16, 16, 0)
	p, err := b.lt.NewProduct(Gemm{M: 16, N: 16, K: 16, TransB: true, A: A, B: A, D: D, Alpha: 1})
	require.NoError(b, err)
	b.Cleanup(p.Close)
	algos, err := p.Algos(workspaceBytes, 1)
	require.NoError(b, err)
	return p, func() error { return p.Run(b.s, &algos[0], b.workspace, workspaceBytes) }
}

// A kernel of a product would be loaded when it first runs.
func TestProductCapturedTooEarly(t *testing.T) {
	standin.Only(t, "whether it loads anything then, a library does not say")
	b := newBench(t)
	_, run := b.product()
	_, err := b.s.Capture(run)
	require.Equal(t, 13, code(err))
	var e *Error
	require.ErrorAs(t, err, &e)
	require.False(t, e.DeviceLost(), "the driver knows of nothing")
}

// Later on it is captured like anything else on a stream.
func TestProductInAGraph(t *testing.T) {
	b := newBench(t)
	p, run := b.product()
	D := p.D
	require.NoError(t, run())
	require.NoError(t, b.s.Fill(D.Data, 0, 4))
	before := b.read(D, 16)
	g, err := b.s.Capture(run)
	require.NoError(t, err)
	require.Equal(t, before, b.read(D, 16))
	require.NoError(t, g.Launch(b.s))
	replayed := b.read(D, 16)
	require.NotEqual(t, before, replayed)
	require.NoError(t, run())
	require.Equal(t, replayed, b.read(D, 16))
	require.NoError(t, g.Close())
}

// Operands outside of the device's memory are found when the product runs.
func TestProductOutOfBounds(t *testing.T) {
	standin.Only(t, "a GPU is lost by it")
	standin.Load(t, "libcuda")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	lt := blas(t, d)
	p, err := d.Alloc(256)
	require.NoError(t, err)
	m := Matrix{DType: fp8.BF16, Data: p, LD: 16}
	product, err := lt.NewProduct(Gemm{M: 16, N: 16, K: 16, A: m, B: m, D: m, Alpha: 1})
	require.NoError(t, err)
	defer product.Close()
	algos, err := product.Algos(0, 1)
	require.NoError(t, err)
	require.NoError(t, product.Run(s, &algos[0], 0, 0))
	require.Equal(t, 700, code(s.Synchronize()))
	err = product.Run(s, &algos[0], 0, 0)
	require.Equal(t, 700, code(err), "cuBLASLt says 13, the driver why")
	require.ErrorContains(t, err, "cublasLtMatmul returned 13")
}
