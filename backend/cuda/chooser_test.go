//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/standin"
	"octet/fp8"
)

// A resumed run computes a GEMM with the algorithm that it had, to the last bit, on a
// device that would choose another. Other choices change Spec.Arithmetic, and unusable
// choices are replaced.
func TestChoicesAreReused(t *testing.T) {
	standin.Only(t, "the algorithms of the stand-in are known")
	standIns(t)
	cacheDir(t)
	compute := func(choices []byte) (out []byte, d *device) {
		t.Helper()
		v := backend.NewVars()
		a, b := v.Tensor(backend.Stash, "a", fp8.F32, 32, 512), v.Tensor(backend.Stash, "b", fp8.F32, 32, 512)
		c := v.Tensor(backend.Stash, "c", fp8.F32, 32, 32)
		p := v.Program("product")
		p.Add(&backend.MatMul{A: a, B: b, TransB: true, Out: c})
		opened, err := open("", backend.Options{Choices: choices})
		require.NoError(t, err)
		d = opened.(*device)
		var _ backend.Chooser = d
		require.NotContains(t, d.Spec().Arithmetic, "algorithms", "none yet")
		loaded, err := d.Load(p)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(1, 2))
		random := func(int) float32 { return float32(rng.NormFloat64()) }
		require.NoError(t, d.Write(a, floats(a.Elems(), random)))
		require.NoError(t, d.Write(b, floats(b.Elems(), random)))
		require.NoError(t, loaded[0].Run(t.Context()))
		out = make([]byte, c.Bytes())
		require.NoError(t, d.Read(c, out))
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return out, d
	}
	// The stand-in numbers algorithms in their first word: 1 and 3 sum in opposite
	// orders, 9 does not exist. The third word is the number of splits of k.
	const number, splits = 0, 16
	with := func(text []byte, at int, value byte) []byte {
		c := parseChoices(text, "13.1.2")
		require.Len(t, c.Algorithms, 1)
		for kind, a := range c.Algorithms {
			a[at] = value
			c.Algorithms[kind] = a
		}
		return c.text()
	}
	first, d := compute(nil)
	made, arithmetic := d.Choices(), d.Spec().Arithmetic
	require.Regexp(t, `^sm_90a\+cublaslt13\.1\.2\+nvrtc13\.99\+algorithms-[0-9a-f]{8}$`, arithmetic)

	up, ascending := compute(with(made, number, 1))
	down, descending := compute(with(made, number, 3))
	require.NotEqual(t, up, down, "the order of the sums affects the result")
	require.NotEqual(t, ascending.Spec().Arithmetic, descending.Spec().Arithmetic)
	require.Contains(t, [][]byte{up, down}, first)
	again, _ := compute(ascending.Choices())
	require.Equal(t, up, again)

	for _, bad := range [][]byte{with(made, splits, 4), with(made, number, 9), []byte("{}"), noChoices("12.9").text()} {
		out, d := compute(bad)
		require.Equal(t, first, out, "the algorithm of this machine's cache")
		require.Equal(t, arithmetic, d.Spec().Arithmetic)
	}
	// Choices of an earlier process are kept, even if no loaded program needs them.
	idle, err := open("", backend.Options{Choices: made})
	require.NoError(t, err)
	require.Equal(t, made, idle.(backend.Chooser).Choices())
	require.NoError(t, idle.Close())
}

// An algorithm that cuBLASLt offers but refuses to run is skipped.
func TestAlgorithmsThatDoNotRun(t *testing.T) {
	for _, refused := range []byte{1, 3} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) {
			standIns(t)
			cacheDir(t)
			standin.Set(t, "STANDIN_REFUSED", fmt.Sprint(refused))
			p := gemmProgram()
			d := openOne(t)
			loaded, err := d.Load(p)
			require.NoError(t, err)
			require.Len(t, d.chosen.Algorithms, 1)
			for _, a := range d.chosen.Algorithms {
				require.Equal(t, 4-refused, a[0], "the other one")
			}
			require.NoError(t, loaded[0].Run(t.Context()))
			require.NoError(t, d.synchronize("run"))
		})
	}
}

// gemmProgram returns a program of one GEMM.
func gemmProgram() *backend.Program {
	v := backend.NewVars()
	tensor := func(name string) *backend.Tensor { return v.Tensor(backend.Stash, name, fp8.F32, 32, 32) }
	p := v.Program("product")
	p.Add(&backend.MatMul{A: tensor("a"), B: tensor("b"), TransB: true, Out: tensor("c")})
	return p
}

// runTwice runs x and records its graph.
func runTwice(t *testing.T, d *device, x backend.Executable) {
	t.Helper()
	for range 2 {
		require.NoError(t, x.Run(t.Context()))
		require.NoError(t, d.synchronize("run"))
	}
}

// Every algorithm has run before it is recorded in a graph, including those that were not
// timed and those that another process chose.
func TestAlgorithmsRunBeforeTheyAreRecorded(t *testing.T) {
	for name, earlier := range map[string]bool{"of the run": true, "cached": false, "the only one": false} {
		t.Run(name, func(t *testing.T) {
			standIns(t)
			cacheDir(t)
			var choices []byte
			start := func() *device {
				require.NoError(t, forgetGPUs()) // with their loaded kernels
				b, err := open("", backend.Options{Choices: choices})
				require.NoError(t, err)
				p := gemmProgram()
				d := b.(*device)
				loaded, err := d.Load(p)
				require.NoError(t, err)
				runTwice(t, d, loaded[0])
				return d
			}
			if name == "the only one" {
				standin.Set(t, "STANDIN_ALGORITHMS", "1")
			} else {
				first := start()
				require.Len(t, first.cache.Algorithms, 1)
				if earlier {
					choices = first.Choices()
				}
				require.NoError(t, first.Close())
			}
			require.NoError(t, start().Close())
		})
	}
}

// An algorithm that was not timed, for lack of memory, is used but not cached.
func TestUntimedAlgorithmsAreNotCached(t *testing.T) {
	standin.Only(t, "the stand-in's memory can be filled to the byte")
	standIns(t)
	cacheDir(t)
	load := func() *device {
		require.NoError(t, forgetGPUs())
		p := gemmProgram()
		d := openOne(t)
		clear(d.cache.Algorithms)
		loaded, err := d.Load(p)
		require.NoError(t, err)
		require.Len(t, d.chosen.Algorithms, 1)
		runTwice(t, d, loaded[0])
		return d
	}
	first := load()
	require.Len(t, first.cache.Algorithms, 1)
	standin.Set(t, "STANDIN_OOM", fmt.Sprint(first.allocated))
	require.NoError(t, first.Close())
	require.Empty(t, load().cache.Algorithms)
}

// GPUs of a kind share their choices. Otherwise ranks would differ, and a resumed run
// would use other algorithms on some.
func TestGPUsOfAKindAgree(t *testing.T) {
	standIns(t)
	cacheDir(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	start := func(ordinal int, name string) *gpu {
		t.Helper()
		d, err := libcuda.Open(ordinal)
		require.NoError(t, err)
		d.Name = name // the stand-in appends the ordinal
		g, err := newGPU(d)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, g.close()) })
		return g
	}
	first, second, other := start(0, "H100"), start(1, "H100"), start(1, "H200")
	first.cache.set("a", algorithm{3})
	require.Equal(t, algorithm{3}, second.cache.Algorithms["a"])
	require.NotContains(t, other.cache.Algorithms, "a")
}

// A GEMM that cuBLASLt has no algorithm for is ErrUnsupported, and the error names the
// op, its tensors' shapes and cuBLASLt's reason.
func TestGEMMWithoutAnAlgorithm(t *testing.T) {
	standin.Only(t, "a real cuBLASLt always has algorithms")
	for offered, reason := range map[string]string{
		"0":  ": cublasLtMatmulAlgoGetHeuristic returned 15: the requested functionality is not supported",
		"-1": "",
	} {
		t.Run(offered, func(t *testing.T) {
			standIns(t)
			cacheDir(t)
			standin.Set(t, "STANDIN_ALGORITHMS", offered)
			p := gemmProgram()
			d := openOne(t)
			_, err := d.Load(p)
			require.ErrorIs(t, err, backend.ErrUnsupported)
			require.EqualError(t, err, "matmul: unsupported by backend cuda: A is a:fp32[32, 32], B is b:fp32[32, 32] and Out is c:fp32[32, 32]: "+
				"32×32×32 GEMM fp32·fp32ᵀ in fp32: cuBLASLt has no algorithm for it"+reason)
		})
	}
}
