package emu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// copyElems is the length of the copied arrays, in float64s: 320 MiB each, three times
// the largest third-level cache of the machines used.
const copyElems = 40 << 20

// benchmarkBesideCopy alternates f, which moves the given number of bytes, with a copy
// of large arrays. It reports the median rate of f and its share of the copy bandwidth,
// both counting bytes read and written.
func benchmarkBesideCopy(b *testing.B, p *pool.Pool, bytes int, f func()) {
	from, to := make([]float64, copyElems), make([]float64, copyElems)
	clear(from)
	clear(to)
	const tasks = 64
	copying := func(_, task int) {
		at := task * (copyElems / tasks)
		copy(to[at:][:copyElems/tasks], from[at:][:copyElems/tasks])
	}
	var rates, shares []float64
	f()
	for b.Loop() {
		start := time.Now()
		p.Run(tasks, copying)
		copied := 2 * 8 * copyElems / time.Since(start).Seconds()
		start = time.Now()
		f()
		rate := float64(bytes) / time.Since(start).Seconds()
		rates, shares = append(rates, rate/1e9), append(shares, rate/copied)
	}
	slices.Sort(rates)
	slices.Sort(shares)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rates[len(rates)/2], "GB/s")
	b.ReportMetric(shares[len(shares)/2], "of-copy")
}

// benchmarkShapes returns the sizes of tensors with elems elements in all, uneven like a
// model's parameters: one tensor holds half of the elements.
func benchmarkShapes(elems int) []int {
	unit := elems / 40 &^ 63
	return []int{20 * unit, unit, 3 * unit, 4 * unit, 4 * unit, 3 * unit, 4 * unit, unit}
}

func BenchmarkAdamW(b *testing.B) {
	for _, elems := range []int{14 << 20, 124 << 20} {
		for _, c := range []struct {
			name           string
			master, m1, m2 fp8.DType
			rounding       fp8.Rounding
			bytes          int // moved per element; for states in F16, by both visits
		}{
			{"f32", fp8.F32, fp8.F32, fp8.F32, fp8.Nearest, 28},
			{"f16", fp8.F16, fp8.F16, fp8.F16, fp8.Nearest, 10 + 16},
			{"f8", fp8.F16, fp8.E4M3, fp8.E5M2, fp8.Nearest, 12},
			{"f8-stochastic", fp8.F16, fp8.E4M3, fp8.E5M2, fp8.Stochastic, 12},
		} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dM/%d", c.name, elems>>20, threads), func(b *testing.B) {
					op, d := benchmarkOptimizer(b, elems, threads, [3]fp8.DType{c.master, c.m1, c.m2}, c.rounding)
					bind := &binder{device: d}
					run := bind.adamW(op).bind(d.pool)
					bind.sumSquares(&backend.SumSquares{X: op.Grad, Out: op.Amaxes})() // as in a step
					benchmarkBesideCopy(b, d.pool, elems*c.bytes, run)
				})
			}
		}
	}
}

func BenchmarkSumSquares(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			const elems = 64 << 20
			vars := backend.NewVars()
			op := &backend.SumSquares{Out: vars.Tensor(backend.Output, "out", fp8.F32, 1)}
			for i, n := range benchmarkShapes(elems) {
				op.X = append(op.X, vars.Tensor(backend.Stash, fmt.Sprint("x", i), fp8.F32, n))
			}
			d := benchmarkDevice(b, vars, threads)
			for _, x := range op.X {
				noise(d, x)
			}
			run := (&binder{device: d}).sumSquares(op)
			benchmarkBesideCopy(b, d.pool, elems*4, run)
		})
	}
}

// noise fills a tensor with normally distributed values.
func noise(d *device, x *backend.Tensor) {
	raw := d.memory[x]
	random := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, 0, 1<<16)
	for range cap(block) / x.DType.Size() {
		code := x.DType.Nearest(float32(random.NormFloat64()), fp8.Saturate)
		for i := range x.DType.Size() {
			block = append(block, byte(code>>(8*i)))
		}
	}
	for at := 0; at < len(raw); {
		at += copy(raw[at:], block)
	}
}

func benchmarkDevice(b *testing.B, vars *backend.Vars, threads int) *device {
	list, err := Open("", backend.Options{Threads: threads})
	require.NoError(b, err)
	_, err = list[0].Load(vars.Program("none")) // which allocates the variables
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, list[0].Close()) })
	return list[0].(*device)
}

func benchmarkOptimizer(b *testing.B, elems, threads int, formats [3]fp8.DType, rounding fp8.Rounding) (*backend.AdamW, *device) {
	vars := backend.NewVars()
	one := func(name string, d fp8.DType) *backend.Tensor { return vars.Tensor(backend.State, name, d, 1) }
	op := &backend.AdamW{
		Control: vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords),
		Step:    one("step", fp8.I32), Coef: one("coef", fp8.F32), Skip: one("skip", fp8.I32),
		Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Rounding: rounding,
	}
	for i, n := range benchmarkShapes(elems) {
		op.Grad = append(op.Grad, vars.Tensor(backend.Stash, fmt.Sprint("grad", i), fp8.F32, n))
		for j, list := range [][2]*[]*backend.Tensor{{&op.Master, &op.MasterScale}, {&op.M1, &op.M1Scale}, {&op.M2, &op.M2Scale}} {
			t := vars.Tensor(backend.State, fmt.Sprint("state", i, j), formats[j], n)
			if formats[j] != fp8.F32 {
				t.Scale = one(t.Name+".scale_inv", fp8.F32)
			}
			*list[0], *list[1] = append(*list[0], t), append(*list[1], t.Scale)
		}
	}
	op.Amaxes = vars.Tensor(backend.State, "scratch", fp8.F32, 3*len(op.Grad))
	d := benchmarkDevice(b, vars, threads)
	for i := range op.Grad {
		noise(d, op.Grad[i])
		noise(d, op.Master[i])
		noise(d, op.M1[i])
		noise(d, op.M2[i])
		for k := range d.memory[op.M2[i]] { // second moments have no sign
			if size := op.M2[i].DType.Size(); k%size == size-1 {
				d.memory[op.M2[i]][k] &= 0x7f
			}
		}
		for _, s := range []*backend.Tensor{op.MasterScale[i], op.M1Scale[i], op.M2Scale[i]} {
			if s != nil {
				(&binder{device: d}).f32(s)[0] = 1
			}
		}
	}
	bind := &binder{device: d}
	bind.f32(op.Coef)[0], bind.i32(op.Step)[0] = 0.5, 10
	copy(d.memory[op.Control], backend.Control{Seed: 1, Step: 10, LR: 1e-3}.AppendTo(nil))
	return op, d
}
