//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/standin"
	"octet/fp8"
)

// standIns replaces CUDA by stand-ins: a GPU simulated on the CPU, which runs the kernels
// of package kernels unchanged. Its cleanup checks that everything was freed. On a
// machine with GPUs for tests, it uses those (standin.Load).
func standIns(t testing.TB) {
	t.Helper()
	standin.Load(t, "libcuda", "libcublaslt", "libnvrtc", "libnccl")
	t.Cleanup(func() { require.NoError(t, forgetGPUs()) })
}

// forgetGPUs closes what a process otherwise keeps until it exits.
func forgetGPUs() error {
	gpus.Lock()
	defer gpus.Unlock()
	var errs []error
	for _, g := range gpus.open {
		errs = append(errs, g.close())
	}
	clear(gpus.open)
	clear(kinds.known)
	return errors.Join(errs...)
}

func openOne(t testing.TB) *device {
	t.Helper()
	d, err := open("", backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d.(*device)
}

// TestConformance runs the conformance suite through kernels, cuBLASLt and driver. With
// -short it runs every seventh case of each op: compute-sanitizer is tens of times
// slower.
func TestConformance(t *testing.T) {
	standIns(t)
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	minCases, every := 500, 1
	if testing.Short() {
		minCases, every = 100, 7
	}
	seen := map[string]int{} // of each op
	all, passed, declined := 0, 0, 0
	for c := range conformance.Cases() {
		op, _, _ := strings.Cut(c.Name, "/")
		if seen[op]++; seen[op]%every != 1%every {
			continue
		}
		all++
		t.Run(c.Name, func(t *testing.T) {
			err := c.Run(t.Context(), d, "")
			if errors.Is(err, backend.ErrUnsupported) {
				declined++
				t.Skip(err)
			}
			require.NoError(t, err)
			passed++
		})
	}
	t.Logf("%d of %d cases passed, %d declined", passed, all, declined)
	require.Positive(t, passed, "no selected case ran: cuda declines them all, or none has this name")
	if passed+declined == all { // else -run selected some
		require.Greater(t, passed, minCases)
	}
}

// adding returns a program that computes a + 2b by way of a column view of a temp.
func adding(rows, cols int) (v *backend.Vars, p *backend.Program, a, b, out *backend.Tensor) {
	v = backend.NewVars()
	tensor := func(name string) *backend.Tensor { return v.Tensor(backend.Stash, name, fp8.F32, rows, cols) }
	a, b, out = tensor("a"), tensor("b"), tensor("out")
	p = v.Program("adding")
	wide := p.Temp("wide", fp8.F32, rows, 2*cols)
	half := wide.Columns("half", cols, cols)
	p.Add(&backend.Add{A: a, B: b, Out: []backend.Cast{{Out: half}}})
	p.Add(&backend.Add{A: half, B: b, Out: []backend.Cast{{Out: out}}})
	return v, p, a, b, out
}

func floats(n int, f func(i int) float32) []byte {
	x := make([]float32, n)
	for i := range x {
		x[i] = f(i)
	}
	return fp8.AppendFloats(nil, x...)
}

// Copies exceed the staging memory, a run is asynchronous, a graph repeats what the
// second run recorded, and an observer sees views.
func TestRun(t *testing.T) {
	standIns(t)
	const rows, cols = 1100, 1024 // 4.3 MiB
	v, p, a, b, out := adding(rows, cols)
	v.Tensor(backend.Stash, "narrow", fp8.BF16, 16, 16)
	v.Tensor(backend.Stash, "rows", fp8.F32, 16)
	d := openOne(t)
	list, err := d.Load(p)
	require.NoError(t, err)
	require.Equal(t, int64(rows*2*cols*4), list[0].(*executable).plan.Bytes)

	read := make([]byte, out.Bytes())
	require.NoError(t, d.Read(out, read))
	require.Equal(t, make([]byte, len(read)), read, "variables start as zeros")
	expect := func(x float32) {
		t.Helper()
		require.NoError(t, d.Read(out, read))
		require.Equal(t, floats(rows*cols, func(i int) float32 { return x + 3*float32(i) }), read)
	}
	require.NoError(t, d.Write(b, floats(rows*cols, func(i int) float32 { return float32(i) })))
	for n, x := range []float32{5, 6, 7} {
		require.NoError(t, d.Write(a, floats(rows*cols, func(i int) float32 { return x + float32(i) })))
		require.NoError(t, list[0].Run(t.Context()))
		require.Equal(t, n > 0, list[0].(*executable).graph != nil, "only the second run records a graph")
		expect(x)
	}

	// RunTimed computes the same results.
	require.NoError(t, d.Write(a, floats(rows*cols, func(i int) float32 { return 8 + float32(i) })))
	var timed []*backend.Node
	last := time.Duration(0)
	require.NoError(t, list[0].(backend.Timed).RunTimed(t.Context(), func(n *backend.Node, start, end time.Duration) {
		require.Equal(t, last, start)
		require.Greater(t, end, start)
		timed, last = append(timed, n), end
	}))
	require.Equal(t, p.Nodes(), timed)
	expect(8)
	require.NoError(t, d.Write(a, floats(rows*cols, func(i int) float32 { return 7 + float32(i) })))

	seen := 0
	require.NoError(t, list[0].RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
		seen++
		if seen > 1 {
			return nil
		}
		half := n.Op.(*backend.Add).Out[0].Out
		raw, err := m.Read(half)
		require.NoError(t, err)
		require.Equal(t, floats(rows*cols, func(i int) float32 { return 7 + 2*float32(i) }), raw)
		return m.Write(half, floats(rows*cols, func(i int) float32 { return 9 + 2*float32(i) }))
	}))
	require.Equal(t, 2, seen)
	expect(9)
	stop := errors.New("stop")
	require.ErrorIs(t, list[0].RunObserved(t.Context(), func(*backend.Node, backend.Memory) error { return stop }), stop)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, list[0].Run(cancelled), context.Canceled)
	require.ErrorIs(t, list[0].(backend.Timed).RunTimed(cancelled, nil), context.Canceled)

	require.ErrorContains(t, d.Write(a, read[:4]), "got a buffer of 4")
	require.ErrorContains(t, d.Write(a.RowRange(rows, 1), read[:4*cols]), "view a[1100:1101]:fp32[1, 1024] reaches outside")
	require.ErrorContains(t, d.Read(a.RowRange(-1, 1), read[:4*cols]), "reaches outside")
	require.ErrorContains(t, d.Read(backend.NewVars().Tensor(backend.Stash, "x", fp8.F32, 1), read[:4]), "has no memory")
	other := backend.NewVars().Program("other")
	_, err = d.Load(other)
	require.ErrorContains(t, err, "its variables are not those of the programs loaded before")
	wide := v.Lookup("narrow")
	q := v.Program("not lowered")
	q.Add(&backend.MatMul{A: wide, B: wide, RowScale: v.Lookup("rows"), Out: wide})
	_, err = d.Load(q)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "lower the program")
}

// A closed backend returns backend.ErrClosed, and Close is idempotent.
func TestClosed(t *testing.T) {
	standIns(t)
	_, p, a, _, _ := adding(4, 4)
	d := openOne(t)
	list, err := d.Load(p)
	require.NoError(t, err)
	require.NoError(t, list[0].Run(t.Context()))
	require.NoError(t, d.Close())

	raw := make([]byte, a.Bytes())
	_, err = d.Load(p)
	for _, err := range []error{err, list[0].Run(t.Context()), list[0].RunObserved(t.Context(), nil), list[0].(backend.Timed).RunTimed(t.Context(), nil)} {
		require.ErrorIs(t, err, backend.ErrClosed)
	}
	require.Error(t, d.Write(a, raw))
	require.Error(t, d.Read(a, raw))
	require.NoError(t, d.Close())
}

// The meter frees its memory, and returns 0 without memory.
func TestMeter(t *testing.T) {
	standIns(t)
	d := openOne(t)
	var _ backend.Metered = d
	m := d.Meter().(*meter)
	m.dim, m.bytes = 32, 1<<16
	require.Positive(t, m.FLOPs())
	require.Greater(t, m.dim, 32, "a small GEMM is too short to measure")
	require.Positive(t, m.Bytes())
	t.Run("without memory", func(t *testing.T) {
		standin.Set(t, "STANDIN_OOM", "1000")
		require.Zero(t, m.FLOPs())
		require.Zero(t, m.Bytes())
	})
}

// The error for each unfit machine is one line and says what to do.
func TestUnfitMachines(t *testing.T) {
	for _, c := range []struct {
		variable, value string
		want            []string
	}{
		{"OCTET_LIBCUDA", "missing.so", []string{"missing.so", fixDriver}},
		{"OCTET_LIBCUBLASLT", "missing.so", []string{"cuBLASLt", "OCTET_LIBCUBLASLT"}},
		{"OCTET_LIBNVRTC", "missing.so", []string{"NVRTC", "OCTET_LIBNVRTC"}},
		{"STANDIN_GPUS", "0", []string{"cuInit returned 100", "CUDA_VISIBLE_DEVICES"}},
		{"STANDIN_STUB", "1", []string{"cuInit returned 34", "LD_LIBRARY_PATH"}},
		{"STANDIN_NVRTC", "89", []string{"NVRTC", "does not support compute capability 9.0", "OCTET_LIBNVRTC"}},
		{"STANDIN_CUDA", "11080", []string{"CUDA 11.8", fixDriver}},
		{"STANDIN_CAPABILITY", "80", []string{"compute capability 8.0", "8.9 or later"}},
	} {
		t.Run(c.variable+"="+c.value, func(t *testing.T) {
			standIns(t)
			if c.value == "missing.so" {
				c.value = filepath.Join(t.TempDir(), c.value)
			}
			standin.Set(t, c.variable, c.value)
			_, err := open("", backend.Options{})
			for _, err := range []error{available(""), err} {
				require.ErrorIs(t, err, backend.ErrNoDevice)
				require.NotContains(t, err.Error(), "\n")
				for _, want := range c.want {
					require.ErrorContains(t, err, want)
				}
			}
		})
	}
}

// An unfit or missing GPU does not affect other GPUs.
func TestUnfitGPUs(t *testing.T) {
	standIns(t)
	_, err := open("1000", backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "there is no GPU 1000, CUDA shows ")
	require.ErrorContains(t, available("x"), "unknown device")

	standin.Set(t, "STANDIN_GPUS", "2")
	standin.Set(t, "STANDIN_OLD", "1")
	require.ErrorContains(t, available(""), "GPU 0")
	require.ErrorContains(t, available("0"), "GPU 0")
	require.NoError(t, available("1"))
	require.ErrorIs(t, available("2"), backend.ErrNoDevice)
}

// The errors for a GPU that the driver lists but does not open.
func TestGPUThatDoesNotOpen(t *testing.T) {
	for status, c := range map[string]struct {
		is   error
		want string
	}{
		"46":  {backend.ErrNoDevice, "backend cuda: no device that can be used: open GPU 0: cuDevicePrimaryCtxRetain returned 46: stand-in error; " + fixes[46] + ", or use --backend emu"},
		"2":   {backend.ErrOutOfMemory, "backend cuda: open GPU 0: out of memory: cuDevicePrimaryCtxRetain returned 2: out of memory; other processes use its memory (nvidia-smi lists them): end them, or choose another GPU, such as cuda:1"},
		"101": {backend.ErrNoDevice, "backend cuda: no device that can be used: open GPU 0: cuDevicePrimaryCtxRetain returned 101: stand-in error; check nvidia-smi and dmesg, or use --backend emu"},
	} {
		t.Run(status, func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_CONTEXT", status)
			_, err := open("", backend.Options{})
			require.ErrorIs(t, err, c.is)
			require.EqualError(t, err, c.want)
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_OOM", "10000000")
	_, p, _, _, _ := adding(1024, 1024)
	d := openOne(t)
	_, err := d.Load(p)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.ErrorContains(t, err, "allocate the variables")
	require.ErrorContains(t, err, "asked for 12 MiB, 9.54 MiB of the device's 80 GiB are free")
	require.NotContains(t, err.Error(), "\n")

	standin.Set(t, "STANDIN_OOM", "20000000")
	_, err = d.Load(p)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.ErrorContains(t, err, "temps (8 MiB)")
}

// A device lost during a run fails the next call that waits, and every later one.
func TestDeviceLost(t *testing.T) {
	standin.Only(t, "only a new process can use a lost GPU again")
	for _, code := range []string{"700", "214", "719", "46"} {
		t.Run(code, func(t *testing.T) {
			standIns(t)
			_, p, a, _, out := adding(4, 4)
			d, err := open("", backend.Options{})
			require.NoError(t, err)
			loaded, err := d.Load(p)
			require.NoError(t, err)
			require.NoError(t, d.Write(a, make([]byte, a.Bytes())))
			standin.Set(t, "STANDIN_LOST", "2")
			standin.Set(t, "STANDIN_LOST_CODE", code)
			err = loaded[0].Run(t.Context())
			if err == nil {
				err = d.Read(out, make([]byte, out.Bytes()))
			}
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.ErrorContains(t, err, "start again")
			require.NotContains(t, err.Error(), "\n")
			require.ErrorIs(t, d.Read(out, make([]byte, out.Bytes())), backend.ErrDeviceLost)
			require.NoError(t, d.Close(), "errors of a lost device are ignored")
			gpus.Lock()
			clear(gpus.open)
			gpus.Unlock()
		})
	}
}
