//go:build cuda && cgo && linux

package libcuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"octet/csrc/standin"
)

// rank is one GPU of several.
type rank struct {
	*Device
	*Comm
	s *Stream
}

func ranks(t *testing.T, n int) (list []rank) {
	standin.Only(t, "NCCL hangs where the stand-in returns an error")
	standin.Load(t, "libcuda")
	standin.Load(t, "libnccl")
	standin.Set(t, "STANDIN_GPUS", fmt.Sprint(n))
	var devices []*Device
	for i := range n {
		d, err := Open(i)
		require.NoError(t, err)
		devices = append(devices, d)
	}
	comms := connect(t, devices...)
	for i, d := range devices {
		s, err := d.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() {
			if err := s.Close(); code(err) != 719 { // the stand-in's error for ranks that differ
				require.NoError(t, err)
			}
			require.NoError(t, d.Close())
		})
		list = append(list, rank{d, comms[i], s})
	}
	return list
}

// connect returns the communicators of devices.
func connect(t *testing.T, devices ...*Device) []*Comm {
	t.Helper()
	id, err := UniqueID(devices[0].Version)
	require.NoError(t, err)
	comms := make([]*Comm, len(devices))
	var g errgroup.Group
	for i, d := range devices {
		g.Go(func() (err error) {
			comms[i], err = NewComm(d, id, i, len(devices))
			return err
		})
	}
	require.NoError(t, g.Wait())
	return comms
}

// together runs f for all ranks concurrently.
func together(list []rank, f func(i int, r rank) error) error {
	var g errgroup.Group
	for i, r := range list {
		g.Go(func() error { return f(i, r) })
	}
	return g.Wait()
}

// Every collective, called directly and by graphs that are launched twice. Rank 0 does
// not wait for its stream, the others do.
func TestCollectives(t *testing.T) {
	const n = 3
	list := ranks(t, n)
	x, out := make([]Ptr, n), make([]Ptr, n)
	for i, r := range list {
		x[i] = upload(t, r.Device, r.s, float32(i+1), 10*float32(i), -1)
		out[i] = upload(t, r.Device, r.s, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	for name, c := range map[string]struct {
		do   func(i int, r rank) error
		want [n][]float32
	}{
		"sum": {func(i int, r rank) error { return r.AllReduceSum(r.s, out[i], 3) }, [n][]float32{{6, 30, -3}, {6, 30, -3}, {6, 30, -3}}},
		// The bit patterns of positive numbers are ordered like the numbers, and a
		// negative number is a negative int32.
		"max":     {func(i int, r rank) error { return r.AllReduceMax(r.s, out[i], 3) }, [n][]float32{{3, 20, -1}, {3, 20, -1}, {3, 20, -1}}},
		"scatter": {func(i int, r rank) error { return r.ReduceScatterSum(r.s, out[i], x[i], 1) }, [n][]float32{{6}, {30}, {-3}}},
		"gather": {func(i int, r rank) error { return r.AllGather(r.s, out[i], x[i], 8) }, [n][]float32{
			{1, 0, 2, 10, 3, 20}, {1, 0, 2, 10, 3, 20}, {1, 0, 2, 10, 3, 20},
		}},
		"exchange": {func(i int, r rank) error { return r.AllToAll(r.s, out[i], x[i], 4) }, [n][]float32{
			{1, 2, 3}, {0, 10, 20}, {-1, -1, -1},
		}},
	} {
		do := func(i int, r rank) error {
			if err := r.s.Copy(out[i], x[i], 12); err != nil {
				return err
			}
			return c.do(i, r)
		}
		expect := func() {
			t.Helper()
			for i, r := range list {
				require.Equal(t, c.want[i], download(t, r.s, out[i], len(c.want[i])), "%s, rank %d", name, i)
			}
		}
		require.NoError(t, together(list, do), name)
		expect()
		graphs := make([]*Graph, n)
		require.NoError(t, together(list, func(i int, r rank) (err error) {
			graphs[i], err = r.s.Capture(func() error { return do(i, r) })
			return err
		}), name)
		for range 2 {
			for i, r := range list {
				require.NoError(t, r.s.Fill(out[i], 0, 36))
			}
			require.NoError(t, together(list, func(i int, r rank) error {
				if err := graphs[i].Launch(r.s); err != nil || i == 0 {
					return err
				}
				return r.s.Synchronize()
			}), name)
			expect()
		}
		for _, g := range graphs {
			require.NoError(t, g.Close())
		}
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = list[0].AllReduceSum(list[0].s, out[0], 3) }))
	for _, r := range list {
		require.Equal(t, 5, code(r.Destroy()), "rank 0 has pending work")
	}
	require.NoError(t, together(list, func(_ int, r rank) error { return r.Abort() }))
}

// Idle ranks can destroy their communicators.
func TestDestroy(t *testing.T) {
	list := ranks(t, 2)
	require.NoError(t, together(list, func(_ int, r rank) error {
		x, err := r.Alloc(64)
		if err != nil {
			return err
		}
		return errors.Join(r.AllReduceSum(r.s, x, 2), r.s.Synchronize(), r.Free(x))
	}))
	require.NoError(t, together(list, func(_ int, r rank) error { return r.Destroy() }))
	require.Equal(t, 5, code(list[0].Err()), "the communicator is destroyed")
}

// A stream waits for a missing rank until Abort, which leaves undefined results.
func TestAbort(t *testing.T) {
	list := ranks(t, 2)
	r := list[0]
	x := upload(t, r.Device, r.s, 1, 2)
	require.NoError(t, r.AllReduceSum(r.s, x, 2))
	idle, err := r.s.Idle()
	require.NoError(t, err)
	require.False(t, idle)
	waited := make(chan error)
	go func() { waited <- r.s.Synchronize() }()
	select {
	case <-waited:
		t.Fatal("rank 0's collective completed without rank 1")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, together(list, func(_ int, r rank) error { return r.Abort() }))
	require.NoError(t, <-waited)
	require.NotEqual(t, []float32{1, 2}, download(t, r.s, x, 2))
	require.Equal(t, 4, code(r.AllReduceSum(r.s, x, 2)), "NCCL would read freed memory")
}

// The stand-in detects mistakes that would hang or corrupt results on GPUs.
func TestRanksThatDiffer(t *testing.T) {
	for name, other := range map[string]func(r rank, x Ptr) error{
		"sizes":      func(r rank, x Ptr) error { return r.AllReduceSum(r.s, x, 1) },
		"reductions": func(r rank, x Ptr) error { return r.AllReduceMax(r.s, x, 2) },
		"operations": func(r rank, x Ptr) error { return r.AllGather(r.s, x, x, 2) },
		"captured": func(r rank, x Ptr) error {
			g, err := r.s.Capture(func() error { return r.AllReduceSum(r.s, x, 2) })
			if err != nil {
				return err
			}
			return g.Launch(r.s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := ranks(t, 2)
			var x [2]Ptr
			for i, r := range list {
				p, err := r.Alloc(64) // a lost device cannot free it
				require.NoError(t, err)
				x[i] = p
			}
			require.NoError(t, list[0].AllReduceSum(list[0].s, x[0], 2))
			require.NoError(t, other(list[1], x[1]))
			require.Equal(t, 719, code(list[0].s.Synchronize()))
			require.Equal(t, 719, code(list[1].s.Synchronize()))
		})
	}
}

// Memory and streams belong to one GPU.
func TestMemoryOfAnotherDevice(t *testing.T) {
	list := ranks(t, 2)
	a, b := list[0], list[1]
	x, y := alloc(t, a.Device, 64), alloc(t, b.Device, 64)
	require.Equal(t, 4, code(a.AllReduceSum(a.s, y, 4)))
	require.Equal(t, 4, code(a.AllGather(a.s, x, x, 64)), "beyond the end")
	require.Equal(t, 1, code(a.AllReduceSum(b.s, x, 4)))
	require.Equal(t, 1, code(a.Free(y)))
}

// NCCL reports errors of its own threads only when queried.
func TestAsynchronousErrors(t *testing.T) {
	list := ranks(t, 2)
	require.NoError(t, list[0].Err())
	standin.Set(t, "STANDIN_NCCL_ERROR", "7")
	require.NoError(t, list[0].Err(), "ncclInProgress is not an error")
	standin.Set(t, "STANDIN_NCCL_ERROR", "6")
	require.EqualError(t, list[0].Err(), "NCCL in the background returned 6: remote process exited or there was a network error")
}

func TestUnfitNCCL(t *testing.T) {
	standin.Only(t, "the test opens a GPU twice")
	d := device(t)
	t.Setenv("OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"))
	_, err := UniqueID(d.Version)
	require.ErrorContains(t, err, "missing.so")
	_, err = NewComm(d, nil, 0, 1)
	require.ErrorContains(t, err, "missing.so")
	_, err = ProbeNCCL(0)
	require.ErrorContains(t, err, "missing.so")

	path := standin.Build(t, "libnccl")
	t.Setenv("OCTET_LIBNCCL", path)
	library, err := ProbeNCCL(0)
	require.NoError(t, err)
	require.Equal(t, Library{path, "2.30.7"}, library)
	_, err = NewComm(d, []byte("short"), 0, 1)
	require.EqualError(t, err, "NCCL's unique id has 5 bytes: expected 128")
	id, err := UniqueID(d.Version)
	require.NoError(t, err)
	var g errgroup.Group
	for rank := range 2 {
		g.Go(func() error {
			_, err := NewComm(d, id, rank, 2)
			return err
		})
	}
	require.Equal(t, 5, code(g.Wait()), "a GPU twice")
	adopted, err := Adopt(uintptr(d.c.context), nil)
	require.NoError(t, err)
	_, err = NewComm(adopted, id, 1, 2)
	require.ErrorContains(t, err, "rank 1 has an adopted context")
	standin.Set(t, "STANDIN_NCCL", "2804")
	_, err = UniqueID(d.Version)
	require.ErrorContains(t, err, "is NCCL 2.8.4: 2.9 or later is needed")
}

// An NCCL for a newer CUDA than the driver's is skipped, and an error if OCTET_LIBNCCL
// names it.
func TestNCCLFollowsTheDriver(t *testing.T) {
	built := standin.Build(t, "libnccl")
	code, err := os.ReadFile(built)
	require.NoError(t, err)
	older := bytes.Replace(code, []byte("+cuda13.0"), []byte("+cuda12.9"), 1)
	require.NotEqual(t, code, older)
	home := emptyMachine(t)
	packages := filepath.Join(home, ".local", "lib", "python3.12", "site-packages", "nvidia")
	newest, other := write(t, string(code), packages, "cu13", "lib", "libnccl.so.2"), write(t, string(older), packages, "nccl", "lib", "libnccl.so.2")
	t.Setenv("OCTET_LIBNCCL", "")
	for driver, want := range map[int]string{0: newest, 13000: newest, 14010: newest, 12080: other, 12000: other} {
		l, err := ProbeNCCL(driver)
		require.NoError(t, err)
		require.Equal(t, want, l.Path, "driver %d", driver)
	}

	t.Setenv("OCTET_LIBNCCL", newest)
	_, err = ProbeNCCL(12080)
	require.EqualError(t, err, newest+" is NCCL for CUDA 13.0, the driver supports CUDA 12.8")
	standin.Load(t, "libcuda")
	standin.Set(t, "STANDIN_CUDA", "12080")
	_, err = UniqueID(device(t).Version)
	require.EqualError(t, err, newest+" is NCCL for CUDA 13.0, the driver supports CUDA 12.8")
}

// pip installs NCCL next to CUDA's libraries.
func TestNCCLNextToCUDA(t *testing.T) {
	root := t.TempDir()
	t.Setenv("CUDA_HOME", filepath.Join(root, "cu13"))
	file := filepath.Join(root, "nccl", "lib", "libnccl.so.2")
	require.NotContains(t, ncclPaths(), file)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	require.Contains(t, ncclPaths(), file)
}
