package emu

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/fp8"
)

func TestConformance(t *testing.T) { testConformance(t, "emu") }

func TestConformanceOfAMX(t *testing.T) { testConformance(t, "emu:"+modelAMX) }

func testConformance(t *testing.T, name string) {
	driver, device, err := backend.Find(name)
	require.NoError(t, err)
	for c := range conformance.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			require.NoError(t, c.Run(t.Context(), driver, device))
		})
	}
}

// trial is a small program and its initial data.
type trial struct {
	*testing.T
	vars    *backend.Vars
	program *backend.Program
	data    map[*backend.Tensor][]byte
	random  *rand.Rand
	model   string // of the device
}

func newTrial(t *testing.T) *trial {
	vars := backend.NewVars()
	return &trial{
		T: t, vars: vars, program: vars.Program("trial"),
		data:   map[*backend.Tensor][]byte{},
		random: rand.New(rand.NewPCG(1, 2)),
	}
}

// tensor declares a tensor that starts with values, rounded to its format and repeated
// to its length; without values it starts with zeros.
func (tr *trial) tensor(name string, dtype fp8.DType, values []float32, shape ...int) *backend.Tensor {
	t := tr.vars.Tensor(backend.Output, name, dtype, shape...)
	if len(values) == 0 {
		return t
	}
	raw := make([]byte, 0, t.Bytes())
	for i := range t.Elems() {
		v := values[i%len(values)]
		code := uint32(int32(v))
		if dtype != fp8.I32 {
			code = dtype.Nearest(v, fp8.NonSaturating)
		}
		raw = append(raw, binary.LittleEndian.AppendUint32(nil, code)[:dtype.Size()]...)
	}
	tr.data[t] = raw
	return t
}

// noise returns n normally distributed values.
func (tr *trial) noise(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(tr.random.NormFloat64())
	}
	return x
}

// control declares step.control.
func (tr *trial) control(c backend.Control) *backend.Tensor {
	t := tr.vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	tr.data[t] = append(c.AppendTo(nil), make([]byte, 64)...)[:t.Bytes()]
	return t
}

// scaled attaches a scale_inv.
func (tr *trial) scaled(t *backend.Tensor, scaleInv float32) *backend.Tensor {
	t.Scale = tr.tensor(t.Name+".scale_inv", fp8.F32, []float32{scaleInv}, 1)
	return t
}

// load opens a device with the data and loads the program.
func (tr *trial) load(threads int) (*device, backend.Executable) {
	require.NoError(tr, tr.program.Err())
	dev, err := Open(tr.model, backend.Options{Threads: threads})
	require.NoError(tr, err)
	d := dev.(*device)
	tr.Cleanup(func() { require.NoError(tr, d.Close()) })
	x, err := d.Load(tr.program)
	require.NoError(tr, err)
	for t, raw := range tr.data {
		require.NoError(tr, d.Write(t, raw))
	}
	for _, scratch := range d.pool.Scratch { // kernels must not read what earlier ops left
		fillWith(scratch, float32(math.NaN()))
	}
	return d, x[0]
}

// run runs the program on one, two and three threads. It requires the same bytes in all
// tensors, no allocations after the first run, and the same bytes from another run after
// the data is restored.
func (tr *trial) run() *device {
	var first *device
	for threads := 1; threads <= 3; threads++ {
		d, x := tr.load(threads)
		require.NoError(tr, x.Run(tr.Context()))
		if first == nil {
			first = d
			continue
		}
		tr.equal(first, d)
		if !raceEnabled {
			require.Zero(tr, testing.AllocsPerRun(3, func() { _ = x.Run(context.Background()) }), "allocations")
		}
		for t := range tr.vars.All() {
			raw := make([]byte, t.Bytes())
			copy(raw, tr.data[t])
			require.NoError(tr, d.Write(t, raw))
		}
		require.NoError(tr, x.Run(tr.Context()))
		tr.equal(first, d)
	}
	return first
}

func (tr *trial) equal(first, d *device) {
	for t := range tr.vars.All() {
		require.Equal(tr, first.memory[t], d.memory[t], "%s on %d threads", t, d.pool.Size())
	}
}

// values reads a tensor back, dequantized.
func (d *device) values(t *backend.Tensor) []float64 {
	b := &binder{device: d}
	raw, size := b.copyOut(t), t.DType.Size()
	scaleInv := 1.0
	if t.Scale != nil {
		scaleInv = d.values(t.Scale)[0]
	}
	out := make([]float64, t.Elems())
	for i := range out {
		var code [4]byte
		copy(code[:], raw[i*size:(i+1)*size])
		bits := binary.LittleEndian.Uint32(code[:])
		if t.DType == fp8.I32 {
			out[i] = float64(int32(bits))
		} else {
			out[i] = float64(t.DType.Float32(bits)) * scaleInv
		}
	}
	return out
}

// near requires ‖got−want‖ ≤ tolerance·‖want‖.
func near(t *testing.T, want, got []float64, tolerance float64, what string) {
	t.Helper()
	require.Len(t, got, len(want))
	var diff, norm float64
	for i := range want {
		diff += (got[i] - want[i]) * (got[i] - want[i])
		norm += want[i] * want[i]
	}
	require.LessOrEqual(t, math.Sqrt(diff), tolerance*math.Sqrt(norm), what)
}

func TestVariables(t *testing.T) {
	d, err := Open("", backend.Options{Threads: 1})
	require.NoError(t, err)
	defer d.Close()

	vars := backend.NewVars()
	x := vars.Tensor(backend.Param, "x", fp8.BF16, 3, 4)
	require.ErrorContains(t, d.Write(x, make([]byte, 24)), "tensor x:bf16[3, 4] has no memory")
	_, err = d.Load(vars.Program("p"))
	require.NoError(t, err)

	raw := make([]byte, 24)
	require.NoError(t, d.Read(x, raw))
	require.Equal(t, make([]byte, 24), raw, "persistent tensors start at zero")
	for i := range raw {
		raw[i] = byte(i)
	}
	require.NoError(t, d.Write(x, raw))
	row := make([]byte, 8)
	require.NoError(t, d.Read(x.RowRange(1, 1), row))
	require.Equal(t, raw[8:16], row)
	require.NoError(t, d.Write(x.RowRange(2, 1), row))
	require.NoError(t, d.Read(x, raw))
	require.Equal(t, raw[8:16], raw[16:24])

	require.ErrorContains(t, d.Read(x, row), "24 contiguous bytes")
	require.ErrorContains(t, d.Write(x, row), "24 contiguous bytes")
	gap := &backend.Tensor{Name: "gap", DType: fp8.BF16, Shape: []int{3, 2}, Base: x, LD: 4}
	require.ErrorContains(t, d.Read(gap, make([]byte, 12)), "contiguous")
	require.ErrorContains(t, d.Read(x.RowRange(3, 1), row), "view x[3:4]:bf16[1, 4] reaches outside x:bf16[3, 4]")
	require.ErrorContains(t, d.Write(x.RowRange(-1, 1), row), "reaches outside")

	late := vars.Tensor(backend.Stash, "late", fp8.F32, 4)
	p := vars.Program("late")
	p.Add(&backend.Fill{Out: late})
	_, err = d.Load(p)
	require.NoError(t, err)
	require.NoError(t, d.Read(late, make([]byte, 16)))
	require.NoError(t, d.Read(x, raw))
	require.Equal(t, byte(9), raw[9], "the first variables keep their values")
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "second Close")
}

func TestOpenUnknownModel(t *testing.T) {
	_, err := Open("h9000", backend.Options{})
	require.ErrorContains(t, err, `unknown device model "h9000"`)
}

func TestLoadRefuses(t *testing.T) {
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F16, nil, 4, 4)
	x.Block = backend.PerRow
	x.Scale = tr.tensor("x.scale_inv", fp8.F32, nil, 4)
	w := tr.scaled(tr.tensor("w", fp8.E4M3, nil, 4, 4), 1)
	y := tr.tensor("y", fp8.F32, nil, 4, 4)
	z := tr.tensor("z", fp8.F16, nil, 4, 4)
	z.Scale = tr.tensor("z.scale_inv", fp8.E8M0, nil, 1)

	dev, err := Open("gaudi2", backend.Options{Threads: 1})
	require.NoError(t, err)
	d := dev.(*device)
	defer d.Close()
	_, err = d.Load(tr.program)
	require.NoError(t, err)
	refuse := func(what string, op backend.Op) {
		p := tr.vars.Program("refused").Scope("layers.3")
		p.Add(op)
		require.NoError(t, p.Err())
		_, err := d.Load(p)
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.ErrorContains(t, err, "layers.3")
		require.ErrorContains(t, err, "unsupported by backend emu:gaudi2: ")
		require.ErrorContains(t, err, what)
	}
	refuse("block 1x*", &backend.Amax{X: x, Out: tr.tensor("amax", fp8.F32, nil, 1)})
	refuse("e8m0", &backend.Amax{X: z, Out: tr.tensor("amax of z", fp8.F32, nil, 1)})
	refuse("e4m3 tensor fp32 × e4m3 tensor fp32, A is w:e4m3[4, 4] and B is w:e4m3[4, 4]; it multiplies e4m3ieee × e4m3ieee, e5m2 × e5m2", &backend.MatMul{A: w, B: w, Out: y})

	p := backend.NewVars().Program("stranger")
	_, err = d.Load(p)
	require.ErrorContains(t, err, "program stranger: its variables are not those of the programs loaded before")
}

func TestRunObserved(t *testing.T) {
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F32, []float32{1, 2, 3, 4}, 2, 2)
	y := tr.program.Temp("y", fp8.F32, 2, 2)
	z := tr.tensor("z", fp8.F32, nil, 2, 2)
	tr.program.Add(&backend.Add{A: x, B: x, Out: []backend.Cast{{Out: y}}})
	tr.program.Add(&backend.Add{A: y, B: x, Out: []backend.Cast{{Out: z}}})
	_, run := tr.load(2)
	var seen []float32
	err := run.RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
		raw, err := m.Read(n.Op.(*backend.Add).Out[0].Out)
		require.NoError(t, err)
		seen = append(seen, math.Float32frombits(binary.LittleEndian.Uint32(raw[12:])))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []float32{8, 12}, seen)
	err = run.RunObserved(t.Context(), func(*backend.Node, backend.Memory) error {
		return context.Canceled
	})
	require.ErrorIs(t, err, context.Canceled)
}
