package ops

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	_ "octet/backend/emu"
	_ "octet/backend/ref"
	"octet/fp8"
)

// backends are the backends that run loops. With -tags cuda, cuda_test.go adds cuda.
var backends = []string{"emu", "emu:h100", "emu:gaudi2"}

// Backends compute what Reference defines, in every format and rounding.
func TestProduct(t *testing.T) {
	for _, name := range append(backends, "ref") {
		driver, device, err := backend.Find(name)
		require.NoError(t, err)
		for c := range conformance.Of("product", 0, func(b *conformance.Bench) backend.Op {
			return &Product{A: b.Input("a", b.Rows, b.Cols), B: b.Input("b", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
		}) {
			t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), driver, device)) })
		}
	}
}

// mlp is h = x ⊙ x in FP8, y = h·wᵀ in FP32.
type mlp struct {
	vars       *backend.Vars
	p          *backend.Program
	x, w, h, y *backend.Tensor
}

func record(d fp8.DType) *mlp {
	v := backend.NewVars()
	m := &mlp{
		vars: v, p: v.Program("forward"), x: v.Tensor(backend.Input, "x", fp8.F32, 16, 32),
		w: v.Tensor(backend.Param, "w", d, 16, 32), h: v.Tensor(backend.Stash, "h", d, 16, 32),
		y: v.Tensor(backend.Output, "y", fp8.F32, 16, 16),
	}
	one := v.Tensor(backend.Input, "one", fp8.F32, 1)
	m.w.Scale, m.h.Scale = one, one
	m.p.Add(&Product{A: m.x, B: m.x, Out: []backend.Cast{{Out: m.h}}})
	m.p.Add(&backend.MatMul{A: m.h, B: m.w, TransB: true, Out: m.y})
	return m
}

// run runs p on the named backend and returns the values of out.
func (m *mlp) run(t *testing.T, name string, out *backend.Tensor) []float32 {
	d, err := backend.Open(name, backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	run, err := backend.Load(d, m.p)
	require.NoError(t, err)
	write := func(to *backend.Tensor, value func(i int) float64) {
		var raw []byte
		for i := range to.Elems() {
			code := to.DType.Nearest(float32(value(i)), fp8.Saturate)
			raw = append(raw, binary.LittleEndian.AppendUint32(nil, code)[:to.DType.Size()]...)
		}
		require.NoError(t, d.Write(to, raw))
	}
	write(m.x, func(i int) float64 { return math.Sin(float64(i)) })
	write(m.w, func(i int) float64 { return math.Cos(float64(i)) })
	write(m.w.Scale, func(int) float64 { return 1 })
	require.NoError(t, run[0].Run(t.Context()))
	raw, values := make([]byte, out.Bytes()), make([]float32, out.Elems())
	require.NoError(t, d.Read(out, raw))
	out.DType.Decode(values, raw)
	return values
}

// A custom op runs in a program with other ops.
func TestProgram(t *testing.T) {
	for _, name := range backends {
		driver, device, err := backend.Find(name)
		require.NoError(t, err)
		spec, err := driver.Spec(device)
		require.NoError(t, err)
		m := record(spec.E4M3)
		require.NoError(t, m.p.Err())
		require.Equal(t, "ops.product", m.p.Nodes()[0].Path())
		require.Equal(t, m.run(t, "ref", m.h), m.run(t, name, m.h))
		require.InDeltaSlice(t, m.run(t, "ref", m.y), m.run(t, name, m.y), 1e-3)
	}
}

// An op with a reference alone runs on backend ref. Other backends refuse it by name.
func TestMedian(t *testing.T) {
	m := record(fp8.E4M3)
	out := m.vars.Tensor(backend.Output, "median", fp8.F32, 16, 1)
	m.p.Scope("stats").Add(&Median{X: m.x, Out: out})
	for r, median := range m.run(t, "ref", out) {
		below := 0
		for c := range 32 {
			if float32(math.Sin(float64(32*r+c))) < median {
				below++
			}
		}
		require.Equal(t, 15, below)
	}

	dev, err := backend.Open(backends[0], backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	_, err = backend.Load(dev, m.p)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "stats: ops.median")
}
