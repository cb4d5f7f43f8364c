package gaudi

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// The backend passes a part of the conformance cases on a fake device.
func TestConformanceOfTheDevice(t *testing.T) {
	ran := 0
	for _, d := range []backend.Driver{
		fakeDriver("gaudi2"), fakeDriver("gaudi3"),
	} {
		n := 0
		for c := range conformance.Cases() {
			if n++; n%5 != 0 && !strings.HasPrefix(c.Name, "chain/") && !strings.HasSuffix(c.Name, "/1") {
				continue
			}
			if err := c.Run(t.Context(), d, ""); !errors.Is(err, backend.ErrUnsupported) {
				ran++
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
	require.Greater(t, ran, 100)
}

func floats(x ...float32) []byte { return fp8.AppendFloats(nil, x...) }

// adding returns a program that computes out = a + b + b through a temp, in columns, and
// stores out's amax in a record of a packed vector.
func adding() (v *backend.Vars, p *backend.Program, a, b, out, packed *backend.Tensor) {
	v = backend.NewVars()
	tensor := func(name string) *backend.Tensor { return v.Tensor(backend.Stash, name, fp8.F32, 3, 4) }
	a, b, out = tensor("a"), tensor("b"), tensor("out")
	packed = v.Tensor(backend.Stash, "packed", fp8.F32, 6)
	p = v.Program("adding")
	wide := p.Temp("wide", fp8.F32, 3, 8)
	half := wide.Columns("half", 4, 4)
	p.Block("sum").Add(&backend.Add{A: a, B: b, Out: []backend.Cast{{Out: half}}})
	p.Block("sum").Add(&backend.Add{A: half, B: b, Out: []backend.Cast{{Out: out}}})
	p.Block("record").Add(&backend.Amax{X: out, Out: packed.Slice("record", 2, 1)})
	return v, p, a, b, out, packed
}

// loadAdding loads that program on a device.
func loadAdding(t *testing.T, s synapse) (d *device, x backend.Executable, p *backend.Program, a, b, out, packed *backend.Tensor) {
	t.Helper()
	_, p, a, b, out, packed = adding()
	require.NoError(t, p.Err())
	d, err := newDevice(s, nil, deviceOptions{unit: 1})
	require.NoError(t, err)
	list, err := d.Load(p)
	require.NoError(t, err)
	require.NoError(t, d.Write(packed, floats(1, 2, 3, 4, 5, 6)))
	return d, list[0], p, a, b, out, packed
}

func consecutive(n int, from float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = from + float32(i)
	}
	return x
}

// Packed variables are padded on the device, a run writes only its
// outputs, and an observer sees every operand, including views.
func TestRun(t *testing.T) {
	f := newFake("gaudi2")
	d, x, p, a, b, out, packed := loadAdding(t, f)
	read := func(t0 *backend.Tensor) []byte {
		raw := make([]byte, t0.Bytes())
		require.NoError(t, d.Read(t0, raw))
		return raw
	}
	require.Equal(t, floats(1, 2, 3, 4, 5, 6), read(packed))
	require.False(t, d.layouts[packed].plain())
	require.Equal(t, make([]byte, out.Bytes()), read(out), "variables must start as zeros")
	require.NoError(t, d.Write(packed.Slice("some", 3, 2), floats(40, 50)))
	require.Equal(t, floats(1, 2, 3, 40, 50, 6), read(packed))
	require.Equal(t, floats(3, 40), read(packed.Slice("others", 2, 2)))

	require.NoError(t, d.Write(a, floats(consecutive(12, 0)...)))
	require.NoError(t, d.Write(b, floats(consecutive(12, 100)...)))
	require.NoError(t, x.Run(t.Context()))
	want := make([]float32, 12)
	for i := range want {
		want[i] = 200 + 3*float32(i)
	}
	require.Equal(t, floats(want...), read(out))
	require.Equal(t, floats(1, 2, 233, 40, 50, 6), read(packed), "only one record may change")

	require.Len(t, f.graphs, 2)
	var names []string
	require.NoError(t, x.RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
		names = append(names, n.Path())
		add, ok := n.Op.(*backend.Add)
		if !ok || add.Out[0].Out == out {
			return nil
		}
		half := add.Out[0].Out
		raw, err := m.Read(half)
		require.NoError(t, err)
		require.Equal(t, float32(111+11), math.Float32frombits(binary.LittleEndian.Uint32(raw[44:])))
		require.ErrorContains(t, m.Write(half, raw[4:]), "takes 48 bytes, got 44")
		return m.Write(half, floats(consecutive(12, 7)...))
	}))
	require.Len(t, names, 3)
	require.Equal(t, floats(107, 109, 111), read(out)[:12])
	require.Len(t, f.graphs, 5, "want one unit per op")
	last := time.Duration(0)
	require.NoError(t, x.(backend.Timed).RunTimed(t.Context(), func(_ *backend.Node, start, end time.Duration) {
		require.GreaterOrEqual(t, start, last)
		require.LessOrEqual(t, end-start, time.Millisecond, "want one launch's time on the device")
		last = end
	}))
	stop := errors.New("stop")
	require.ErrorIs(t, x.RunObserved(t.Context(), func(*backend.Node, backend.Memory) error { return stop }), stop)
	require.Len(t, f.graphs, 5, "compiled again")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, x.Run(cancelled), context.Canceled)
	require.ErrorIs(t, x.RunObserved(cancelled, nil), context.Canceled)
	require.NotZero(t, x.(*executable).plan.Bytes)

	require.ErrorContains(t, d.Write(a, floats(1)), "got a buffer of 4")
	require.ErrorContains(t, d.Write(packed.Slice("beyond", 5, 2), floats(1, 2)), "view beyond:fp32[2] reaches outside")
	require.ErrorContains(t, d.Read(packed.Slice("before", -1, 2), floats(1, 2)), "reaches outside")
	require.ErrorContains(t, d.Read(backend.NewVars().Tensor(backend.Stash, "x", fp8.F32, 1), floats(1)), "has no memory")
	_, err := d.Load(backend.NewVars().Program("other"))
	require.ErrorContains(t, err, "not those of the programs loaded before")

	// A later program may use other views of an earlier one's tensors, if their layouts
	// stay the same.
	again := p.Vars().Program("again")
	again.Add(&backend.Amax{X: a, Out: packed.Slice("first", 0, 1)})
	list, err := d.Load(again)
	require.NoError(t, err)
	require.NoError(t, list[0].Run(t.Context()))
	require.NoError(t, x.Run(t.Context()))
	require.Equal(t, floats(11, 2, 233, 40, 50, 6), read(packed))
	other := p.Vars().Program("other")
	other.Add(&backend.Amax{X: a, Out: out.Slice("corner", 5, 1)})
	_, err = d.Load(other)
	require.ErrorContains(t, err, "load them together")

	require.NoError(t, d.Close())
	require.Empty(t, f.blocks)
	require.Empty(t, f.lists)
	require.Equal(t, 1, f.released)
}

// A step allocates no host memory.
func TestRunAllocatesNothing(t *testing.T) {
	_, x, _, a, _, _, _ := loadAdding(t, newFake("gaudi3"))
	e := x.(*executable)
	e.synapse = idle{e.synapse}
	e.device.synapse = e.synapse
	raw := make([]byte, a.Bytes())
	require.Zero(t, testing.AllocsPerRun(10, func() {
		require.NoError(t, errors.Join(e.Write(a, raw), x.Run(t.Context()), e.device.Read(a, raw)))
	}))
}

// idle does nothing for steps.
type idle struct{ synapse }

func (idle) write(libsynapse.Ptr, []byte) error { return nil }
func (idle) read([]byte, libsynapse.Ptr) error  { return nil }
func (idle) run(int, int, int) error            { return nil }

// Errors name the action and the vendor's status.
func TestErrorsOfTheDevice(t *testing.T) {
	memory := &libsynapse.Error{Call: "synDeviceMalloc", Status: 4, Text: "Out of Device memory (OOM)"}
	lost := &libsynapse.Error{Call: "synStreamSynchronize", Status: 31}
	other := &libsynapse.Error{Call: "synLaunch", Status: 30}
	f := newFake("gaudi2")
	d, x, _, a, _, _, _ := loadAdding(t, f)

	f.fail["run"] = other
	err := x.Run(t.Context())
	require.EqualError(t, err, "gaudi: run program adding: synLaunch returned 30 (synFailedSectionValidation)")
	require.NotErrorIs(t, err, backend.ErrDeviceLost)
	delete(f.fail, "run")

	v := backend.NewVars()
	v.Tensor(backend.Param, "w", fp8.F32, 1<<20)
	d2, err := newDevice(f, nil, deviceOptions{unit: 1})
	require.NoError(t, err)
	f.fail["alloc"] = memory
	_, err = d2.Load(v.Program("none"))
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.EqualError(t, err, "gaudi: allocate the variables: out of memory: asked for 4 MiB, 1 GiB of the device's 3 GiB are free ("+
		"synDeviceMalloc returned 4 (synOutOfDeviceMemory): Out of Device memory (OOM)); training needs less with a smaller train.micro_batch or train.recompute=block")
	delete(f.fail, "alloc")

	f.fail["read"], f.fail["synchronize"] = lost, lost
	blocks := len(f.blocks)
	err = d.Read(a, make([]byte, a.Bytes()))
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.EqualError(t, err, "gaudi: copy from the device: device lost: synStreamSynchronize returned 31 (synSynapseTerminated); only a new process gets the device back, start again")
	require.NoError(t, d.Close())
	require.Len(t, f.blocks, blocks, "Close freed memory of a lost device")
}
