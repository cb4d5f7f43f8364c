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

// encode rounds values to a format and returns their bytes; decode is the inverse.
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

// bench is a device with everything that a GEMM needs.
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

// matrix returns a random matrix of rows × cols with a gap after every row, and the
// values of its codes, without the scale.
func (b *bench) matrix(d fp8.DType, rows, cols int, scale float32) (Matrix, []float32) {
	ld := cols + 16
	v := make([]float32, rows*ld)
	for i := range v {
		v[i] = float32(b.random.NormFloat64())
	}
	data := encode(d, v)
	m := Matrix{DType: d, LD: ld, Data: alloc(b.T, b.d, len(data))}
	require.NoError(b, b.s.Upload(m.Data, data))
	if d.IsQuantized() && scale != 0 {
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
	p, err := b.lt.NewMatMul(g)
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

// shape returns the rows and columns of an operand as stored.
func shape(rows, cols int, transposed bool) (int, int) {
	if transposed {
		return cols, rows
	}
	return rows, cols
}

// Every supported combination of formats against float64 sums of the same codes, within
// the rounding errors of D and of FP32 sums.
func TestGEMMs(t *testing.T) {
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
			if f.a.IsQuantized() && (transA || !transB) {
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
				if f.d.IsQuantized() {
					g.AmaxD = upload(t, b.d, b.s, -1)
				}
				require.NoError(t, b.run(g))
				got := b.read(D, m)

				alpha, amax := 0.75, 0.0
				if f.a.IsQuantized() {
					alpha *= 0.5 * 0.25
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
						v := alpha*sum + float64(g.Beta)*float64(cv[i*D.LD+j])
						amax = max(amax, math.Abs(v))
						scale := 1.0
						if f.d.IsQuantized() {
							scale = 4
						}
						step := math.Abs(v)*math.Exp2(-float64(mantissa[f.d]+1)) + tiny[f.d]/scale
						require.InDelta(t, v, float64(got[i*D.LD+j])/scale, 1.001*step+magnitude*sums(f.a), "%d, %d", i, j)
					}
					require.Equal(t, before[i*D.LD+n:(i+1)*D.LD], got[i*D.LD+n:(i+1)*D.LD], "the gap after row %d", i)
				}
				if f.d.IsQuantized() {
					require.InEpsilon(t, amax, download(t, b.s, g.AmaxD, 1)[0], 1e-5+10*sums(f.a))
				}
			})
		}
	}
}

// sums is the maximum error of a sum of 48 products, relative to the sum of their
// magnitudes: FP32 rounding, and on tensor cores the truncation that aligns products
// before they are added. Hopper adds 32 FP8 products at once, with 13 bits below the
// largest exponent: at most 33 times 2^-13 of the largest product in each of two steps.
// That is less than 2^-8 of the sum of magnitudes if the largest product is less than
// half of it. For 16-bit formats it keeps about 24 bits.
func sums(d fp8.DType) float64 {
	switch {
	case standin.Hardware() == 0:
		return 1e-6
	case d.IsQuantized():
		return 0x1p-8
	}
	return 0x1p-18
}

// mantissa is the stored bits of a significand; tiny is half the distance between the
// smallest values.
var (
	mantissa = map[fp8.DType]int{fp8.F32: 23, fp8.BF16: 7, fp8.F16: 10, fp8.E4M3: 3, fp8.E5M2: 2}
	tiny     = map[fp8.DType]float64{fp8.F32: 0, fp8.BF16: 0, fp8.F16: 0x1p-25, fp8.E4M3: 0x1p-10, fp8.E5M2: 0x1p-17}
)

// C may be D, to accumulate gradients.
func TestGEMMAccumulates(t *testing.T) {
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

// GEMMs that NVIDIA's documentation excludes are refused, with the documented status.
func TestRefusedGEMMs(t *testing.T) {
	standin.Only(t, "a real library may support more than its documentation says")
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
		"N of 8 in BF16":           {15, func(g *Gemm) { g.N = 8 }}, // 16 bytes, but not a multiple of 16
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
	require.EqualError(t, b.run(g), "32×32×32 GEMM e4m3ieee·e4m3ᵀ in bf16: cuBLASLt has no format e4m3ieee for A")
	g = good
	g.Beta = 1
	require.EqualError(t, b.run(g), "32×32×32 GEMM e4m3·e4m3ᵀ in bf16: Beta is 1, but there is no C")
	g = good
	g.K = 24
	require.EqualError(t, b.run(g), "32×32×24 GEMM e4m3·e4m3ᵀ in bf16: cuBLASLt has no algorithm for it: cublasLtMatmulAlgoGetHeuristic returned 15: the requested functionality is not supported")
}

func TestAlgorithms(t *testing.T) {
	standin.Only(t, "the algorithms of the stand-in are known")
	b := newBench(t)
	A, _ := b.matrix(fp8.E4M3, 32, 32, 1)
	D, _ := b.matrix(fp8.BF16, 32, 32, 0)
	p, err := b.lt.NewMatMul(Gemm{M: 32, N: 32, K: 32, TransB: true, A: A, B: A, D: D, Alpha: 1, FastAccum: true})
	require.NoError(t, err)
	defer p.Close()

	all, err := p.Algos(workspaceBytes, 100)
	require.NoError(t, err)
	var splits []int
	for _, a := range all {
		splits = append(splits, a.Splits)
		require.NoError(t, p.Run(b.s, &a, b.workspace, a.Workspace))
	}
	require.Equal(t, []int{1, 1}, splits, "the stand-in's split-k algorithm is excluded")
	split := p.Gemm
	split.SplitK = true
	unbound, err := b.lt.NewMatMul(split)
	require.NoError(t, err)
	defer unbound.Close()
	three, err := unbound.Algos(workspaceBytes, 100)
	require.NoError(t, err)
	require.Len(t, three, 3)
	require.Greater(t, three[1].Splits, 1)
	two, err := p.Algos(workspaceBytes, 2)
	require.NoError(t, err)
	require.Equal(t, all, two, "the excluded algorithm does not count towards the limit")
	one, err := p.Algos(0, 1)
	require.NoError(t, err)
	require.Equal(t, 0, one[0].Workspace)
	require.NoError(t, p.Run(b.s, &one[0], 0, 0))

	// The code of an algorithm restores it, also in another process.
	for _, a := range all {
		again, err := p.Algo(a.Code())
		require.NoError(t, err)
		require.Equal(t, a, again)
	}
	_, err = p.Algo(Code{9})
	require.Equal(t, 7, code(err))

	// An algorithm relies on the alignment of addresses; other alignments need other
	// algorithms.
	shifted := p.Gemm
	shifted.D.Data += 16
	q, err := b.lt.NewMatMul(shifted)
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

// gemm returns a small GEMM and a function that runs it.
func (b *bench) gemm() (p *MatMul, run func() error) {
	A, _ := b.matrix(fp8.E4M3, 16, 16, 1)
	D, _ := b.matrix(fp8.F32, 16, 16, 0)
	p, err := b.lt.NewMatMul(Gemm{M: 16, N: 16, K: 16, TransB: true, A: A, B: A, D: D, Alpha: 1})
	require.NoError(b, err)
	b.Cleanup(p.Close)
	algos, err := p.Algos(workspaceBytes, 1)
	require.NoError(b, err)
	return p, func() error { return p.Run(b.s, &algos[0], b.workspace, workspaceBytes) }
}

// cuBLASLt loads the kernel of a GEMM at its first run, which fails in a capture.
func TestGEMMCapturedBeforeItRan(t *testing.T) {
	standin.Only(t, "a real library may have loaded the kernel already")
	b := newBench(t)
	_, run := b.gemm()
	_, err := b.s.Capture(run)
	require.Equal(t, 13, code(err))
	var e *Error
	require.ErrorAs(t, err, &e)
	require.False(t, e.DeviceLost(), "the driver has no error")
}

// After a first run, a GEMM can be captured like other work.
func TestGEMMInAGraph(t *testing.T) {
	b := newBench(t)
	p, run := b.gemm()
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

// Operands outside of the device's memory are detected when the GEMM runs.
func TestGEMMOutOfBounds(t *testing.T) {
	standin.Only(t, "a real GPU would be lost")
	standin.Load(t, "libcuda")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	lt := blas(t, d)
	p, err := d.Alloc(256)
	require.NoError(t, err)
	m := Matrix{DType: fp8.BF16, Data: p, LD: 16}
	matMul, err := lt.NewMatMul(Gemm{M: 16, N: 16, K: 16, A: m, B: m, D: m, Alpha: 1})
	require.NoError(t, err)
	defer matMul.Close()
	algos, err := matMul.Algos(0, 1)
	require.NoError(t, err)
	require.NoError(t, matMul.Run(s, &algos[0], 0, 0))
	require.Equal(t, 700, code(s.Synchronize()))
	err = matMul.Run(s, &algos[0], 0, 0)
	require.Equal(t, 700, code(err), "cuBLASLt returns 13, the driver the reason")
	require.ErrorContains(t, err, "cublasLtMatmul returned 13")
}
