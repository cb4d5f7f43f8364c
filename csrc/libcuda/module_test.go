//go:build cuda && cgo && linux

package libcuda

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
	"octet/fp8"
)

// axpy computes y = a·x + y.
const axpy = `
#include "args.cuh"
KERNEL(axpy, Args, 32, 1) {
	const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < a.n)
		a.y[i] = (float)a.a * a.x[i] + a.y[i];
}
extern "C" __global__ void two(Args t, int more) {}
`

var axpySource = Source{Name: "axpy.cu", Text: axpy, Headers: map[string]string{
	"args.cuh": "#pragma once\nstruct Args { float *y; const float *x; double a; long long n; };\n",
}}

// compiler loads NVRTC and sets a temporary cache folder.
func compiler(t *testing.T) *Compiler {
	standin.Load(t, "libnvrtc")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	version := 13000
	if standin.Hardware() > 0 {
		driver, err := ProbeDriver()
		require.NoError(t, err)
		version = driver.Version
	}
	c, err := NewCompiler(version)
	require.NoError(t, err)
	return c
}

// axpyCubin is compiled once for all tests.
var axpyCubin []byte

func axpyModule(t *testing.T, d *Device) *Module {
	if axpyCubin == nil {
		cubin, err := compiler(t).Compile(axpySource, d.Arch())
		require.NoError(t, err)
		axpyCubin = cubin
	}
	m, err := d.LoadModule(axpyCubin)
	require.NoError(t, err)
	return m
}

func module(t *testing.T, d *Device) *Module {
	m := axpyModule(t, d)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func function(t *testing.T, m *Module, name string) *Function {
	f, err := m.Function(name)
	require.NoError(t, err)
	return f
}

func upload(t *testing.T, d *Device, s *Stream, v ...float32) Ptr {
	p := alloc(t, d, 4*len(v))
	require.NoError(t, s.Upload(p, fp8.AppendFloats(nil, v...)))
	return p
}

func download(t *testing.T, s *Stream, p Ptr, n int) []float32 {
	b := make([]byte, 4*n)
	require.NoError(t, s.Download(b, p))
	v := make([]float32, n)
	fp8.F32.Decode(v, b)
	return v
}

func axpyArgs(y, x Ptr, a float64, n int) []uint64 {
	return []uint64{uint64(y), uint64(x), math.Float64bits(a), uint64(n)}
}

func TestLaunch(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	f := function(t, module(t, d), "axpy")
	x, y := upload(t, d, s, 1, 2, 3, 4, 5), upload(t, d, s, 10, 20, 30, 40, 50)
	require.NoError(t, f.Launch(s, [3]int{2, 1, 1}, 32, 0, axpyArgs(y, x, 0.5, 5)))
	require.Equal(t, []float32{10.5, 21, 31.5, 42, 52.5}, download(t, s, y, 5))

	args := axpyArgs(y, x, 0, 5)
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = f.Launch(s, [3]int{1, 1, 1}, 32, 0, args) }))
}

// Threads and blocks run in no order on which a kernel could rely.
func TestLaunchesHaveNoOrder(t *testing.T) {
	standin.Only(t, "the order of a real GPU is not known")
	d := device(t)
	s := stream(t, d)
	source := axpySource
	source.Text = `
#include "args.cuh"
KERNEL(tickets, Args, 32, 1) { a.y[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd((float *)a.x, 1.0f); }
`
	cubin, err := compiler(t).Compile(source, d.Arch())
	require.NoError(t, err)
	m, err := d.LoadModule(cubin)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	f := function(t, m, "tickets")
	const n = 64
	up := make([]float32, n)
	for i := range up {
		up[i] = float32(i)
	}
	down := slices.Clone(up)
	slices.Reverse(down)
	var seen [][]float32
	for range 16 {
		next, tickets := upload(t, d, s, 0), alloc(t, d, 4*n)
		require.NoError(t, f.Launch(s, [3]int{n / 32, 1, 1}, 32, 0, axpyArgs(tickets, next, 0, n)))
		seen = append(seen, download(t, s, tickets, n))
	}
	require.Subset(t, seen, [][]float32{up, down})
	require.Subset(t, [][]float32{up, down}, seen)
}

func TestLaunchesThatAreRefused(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	m := module(t, d)
	f := function(t, m, "axpy")
	args := axpyArgs(0, 0, 0, 0)
	require.EqualError(t, f.Launch(s, [3]int{1, 1, 1}, 32, 0, args[:3]), "kernel axpy needs a struct of 32 bytes, got 3 words")
	err := f.Launch(s, [3]int{1, 1, 1}, 1025, 0, args)
	require.ErrorContains(t, err, "kernel axpy, grid [1 1 1], block 1025, 0 bytes of shared memory: cuLaunchKernel returned 1: ")
	require.Equal(t, 1, code(f.Launch(s, [3]int{1, 0, 1}, 32, 0, args)))
	require.Equal(t, 1, code(f.Launch(s, [3]int{1, 65536, 1}, 32, 0, args)))

	require.Equal(t, 1, code(f.Launch(s, [3]int{1, 1, 1}, 32, 49<<10, args)))
	require.NoError(t, f.AllowShared(100<<10))
	require.NoError(t, f.Launch(s, [3]int{1, 1, 1}, 32, 100<<10, args))
	require.ErrorContains(t, f.AllowShared(228<<10), "kernel axpy with 233472 bytes of shared memory: cuFuncSetAttribute returned 1: ")

	_, err = m.Function("nothing")
	require.ErrorContains(t, err, "kernel nothing: cuModuleGetFunction returned 500: ")
	_, err = m.Function("two")
	require.EqualError(t, err, "kernel two needs exactly one parameter")
}

func TestModulesThatDoNotLoad(t *testing.T) {
	standin.Only(t, "a real driver does not know the length of the code")
	d := device(t)
	_, err := d.LoadModule([]byte("this is not code of any kind, and long enough"))
	require.Equal(t, 200, code(err))
	_, err = d.LoadModule(nil)
	require.Error(t, err)

	cubin, err := compiler(t).Compile(axpySource, "sm_100a")
	require.NoError(t, err)
	_, err = d.LoadModule(cubin)
	require.Equal(t, 209, code(err), "a cubin of another architecture")
}

// An error of a kernel is returned by the next wait, and every later call fails.
func TestDeviceLost(t *testing.T) {
	standin.Set(t, "STANDIN_LOST", "2")
	standin.Load(t, "libcuda")
	standin.Set(t, "STANDIN_LOST_CODE", "719")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	m := axpyModule(t, d)
	f := function(t, m, "axpy")
	args := axpyArgs(0, 0, 0, 0)
	require.NoError(t, f.Launch(s, [3]int{1, 1, 1}, 32, 0, args))
	require.NoError(t, s.Synchronize())
	require.NoError(t, f.Launch(s, [3]int{1, 1, 1}, 32, 0, args))
	for _, err := range []error{s.Synchronize(), f.Launch(s, [3]int{1, 1, 1}, 32, 0, args), s.Close(), m.Close()} {
		require.Equal(t, 719, code(err))
		var e *Error
		require.ErrorAs(t, err, &e)
		require.True(t, e.DeviceLost())
	}
}

// A kernel that writes out of bounds damages a red zone, which Free detects.
func TestRedZones(t *testing.T) {
	standin.Only(t, "a real GPU has no red zones")
	standin.Load(t, "libcuda")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	m := axpyModule(t, d)
	p, err := d.Alloc(16)
	require.NoError(t, err)
	require.NoError(t, function(t, m, "axpy").Launch(s, [3]int{1, 1, 1}, 32, 0, axpyArgs(p, p, 1, 5)))
	require.NoError(t, s.Synchronize())
	require.Equal(t, 700, code(d.Free(p)))
}
