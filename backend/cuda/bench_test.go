//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/fp8"
	"octet/internal/bench"
)

var layers = flag.String("layers", "512x256x256", "the layers of BenchmarkGEMMs, MxNxK with commas between: tokens, out, in")

// BenchmarkGEMMs measures the FP8 GEMMs of layers, run by a program and by cuBLASLt
// alone: the same operands in the same memory, one call after the other, by the fastest
// of all algorithms that cuBLASLt offers, including split-k, which Octet excludes. Bursts
// of both alternate, timed by the device; figures are medians.
func BenchmarkGEMMs(b *testing.B) {
	standIns(b)
	for text := range strings.SplitSeq(*layers, ",") {
		l, err := bench.ParseLayer(text)
		require.NoError(b, err)
		for _, pass := range bench.Passes {
			b.Run(fmt.Sprint(l, "/", pass), func(b *testing.B) { benchmarkGEMM(b, l, pass) })
		}
	}
}

// burst is how long a GEMM is repeated between two events.
const burst = 5 * time.Millisecond

func benchmarkGEMM(b *testing.B, l bench.Layer, pass string) {
	d := openOne(b)
	x := loadGEMM(b, d, l, pass)
	require.Len(b, x.calls, 1, "the program is the GEMM alone")
	require.Len(b, x.calls[0], 1)
	ours := func() error { return x.Run(b.Context()) }
	for range 2 { // the second records the graph
		require.NoError(b, ours())
	}

	g := x.calls[0][0].gemm.Gemm
	g.SplitK = true
	matMul, err := d.lt.NewMatMul(g)
	require.NoError(b, err)
	b.Cleanup(matMul.Close)
	algos, err := matMul.Algos(workspaceBytes, 32)
	require.NoError(b, err)
	c := clock{TB: b, device: d}
	for i := range c.events {
		c.events[i], err = d.gpu.NewEvent()
		require.NoError(b, err)
	}
	b.Cleanup(func() { require.NoError(b, closeEvents(c.events[:]...)) })
	run := func(a *libcuda.Algo) func() error {
		return func() error { return matMul.Run(d.stream, a, x.workspace, workspaceBytes) }
	}
	algos = slices.DeleteFunc(algos, func(a libcuda.Algo) bool { return refused(run(&a)()) })
	require.NotEmpty(b, algos)
	best := slices.MinFunc(algos, func(p, q libcuda.Algo) int { return cmp.Compare(c.time(10, run(&p)), c.time(10, run(&q))) })
	alone := run(&best)

	n := int(burst/max(c.time(3, alone), time.Microsecond)) + 1
	var mine, theirs, shares []float64
	for b.Loop() {
		m, t := c.time(n, ours).Seconds(), c.time(n, alone).Seconds()
		mine, theirs, shares = append(mine, m), append(theirs, t), append(shares, t/m)
	}
	flops := 2 * float64(l.Tokens) * float64(l.Out) * float64(l.In)
	b.ReportMetric(flops/median(mine)/1e12, "TFLOP/s")
	b.ReportMetric(flops/median(theirs)/1e12, "cublaslt-TFLOP/s")
	b.ReportMetric(median(shares), "of-cublaslt")
	b.ReportMetric(0, "ns/op") // of a burst of both: meaningless
}

// loadGEMM loads a program of one GEMM of a layer; another program has cast its operands.
func loadGEMM(b *testing.B, d *device, l bench.Layer, pass string) *executable {
	v := backend.NewVars()
	prepare, p := v.Program("prepare"), v.Program("product")
	one := v.Tensor(backend.State, "one", fp8.F32, 1)
	operand := func(name string, format fp8.DType, rows, cols int) *backend.Tensor {
		t := v.Tensor(backend.Stash, name, format, rows, cols)
		t.Scale = one
		prepare.Add(&backend.Quantize{X: v.Tensor(backend.Stash, name+".bf16", fp8.BF16, rows, cols), Out: []backend.Cast{{Out: t}}})
		return t
	}
	out := func(format fp8.DType, rows, cols int) *backend.Tensor {
		return v.Tensor(backend.Output, "out", format, rows, cols)
	}
	p.Add(map[string]func() *backend.MatMul{
		"fprop": func() *backend.MatMul {
			return &backend.MatMul{
				A: operand("x", fp8.E4M3, l.Tokens, l.In), B: operand("w", fp8.E4M3, l.Out, l.In), TransB: true,
				Out: out(fp8.BF16, l.Tokens, l.Out), Accum: backend.Fast,
			}
		},
		"dgrad": func() *backend.MatMul {
			return &backend.MatMul{
				A: operand("dy", fp8.E5M2, l.Tokens, l.Out), B: operand("w", fp8.E4M3, l.Out, l.In),
				Out: out(fp8.BF16, l.Tokens, l.In),
			}
		},
		"wgrad": func() *backend.MatMul {
			return &backend.MatMul{
				A: operand("dy", fp8.E5M2, l.Tokens, l.Out), TransA: true, B: operand("x", fp8.E4M3, l.Tokens, l.In),
				Out: out(fp8.F32, l.Out, l.In),
			}
		},
	}[pass]())
	lowered, err := lower(d.Spec(), []*backend.Program{p, prepare})
	require.NoError(b, err)
	loaded, err := d.Load(lowered...)
	require.NoError(b, err)
	require.NoError(b, d.Write(one, fp8.AppendFloats(nil, 1)))
	for t := range v.All() {
		if t.DType == fp8.BF16 && t.Class == backend.Stash {
			require.NoError(b, d.Write(t, noise(int(t.Bytes()))))
		}
	}
	require.NoError(b, loaded[1].Run(b.Context()))
	return loaded[0].(*executable)
}

// noise returns reproducible random BF16 values: with zeros a GPU runs faster.
func noise(bytes int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	numbers := make([]float32, 1<<20)
	for i := range numbers {
		numbers[i] = float32(rng.NormFloat64())
	}
	pattern := encodeBF16(numbers)
	raw := make([]byte, bytes)
	for n := 0; n < bytes; {
		n += copy(raw[n:], pattern)
	}
	return raw
}

func encodeBF16(x []float32) (raw []byte) {
	for _, v := range x {
		code := fp8.BF16.Nearest(v, fp8.Saturate)
		raw = append(raw, byte(code), byte(code>>8))
	}
	return raw
}

// clock times work on a device.
type clock struct {
	testing.TB
	*device
	events [2]*libcuda.Event
}

// time returns the mean duration of n runs.
func (c *clock) time(n int, work func() error) time.Duration {
	errs := []error{c.stream.Record(c.events[0])}
	for range n {
		errs = append(errs, work())
	}
	errs = append(errs, c.stream.Record(c.events[1]))
	took, err := c.events[1].Since(c.events[0])
	require.NoError(c, errors.Join(append(errs, err)...))
	return took / time.Duration(n)
}

func median(samples []float64) float64 {
	return slices.Sorted(slices.Values(samples))[len(samples)/2]
}
