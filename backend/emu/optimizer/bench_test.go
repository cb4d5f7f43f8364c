package optimizer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"octet/backend"
	"octet/backend/emu/memory"
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
			name     string
			formats  [3]fp8.DType
			rounding fp8.Rounding
			bytes    int // moved per element; for states in F16, by both visits
		}{
			{"f32", [3]fp8.DType{fp8.F32, fp8.F32, fp8.F32}, fp8.Nearest, 28},
			{"f16", [3]fp8.DType{fp8.F16, fp8.F16, fp8.F16}, fp8.Nearest, 10 + 16},
			{"f8", [3]fp8.DType{fp8.F16, fp8.E4M3, fp8.E5M2}, fp8.Nearest, 12},
			{"f8-stochastic", [3]fp8.DType{fp8.F16, fp8.E4M3, fp8.E5M2}, fp8.Stochastic, 12},
		} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dM/%d", c.name, elems>>20, threads), func(b *testing.B) {
					p := pool.New(threads)
					defer p.Close()
					a := benchmarkAdamW(c.formats, benchmarkShapes(elems))
					a.Rounding = c.rounding
					run := a.Bind(p)
					var grads []memory.Matrix
					var extents []*Extents
					for _, x := range a.Params {
						grads, extents = append(grads, x.Grad), append(extents, x.Extents)
					}
					SumSquares(p, grads, extents, a.Amaxes)() // as in a step
					benchmarkBesideCopy(b, p, elems*c.bytes, run)
				})
			}
		}
	}
}

func BenchmarkSumSquares(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			const elems = 64 << 20
			p := pool.New(threads)
			defer p.Close()
			var list []memory.Matrix
			for _, n := range benchmarkShapes(elems) {
				list = append(list, benchmarkMatrix(fp8.F32, n))
			}
			run := SumSquares(p, list, make([]*Extents, len(list)), make([]float32, 1))
			benchmarkBesideCopy(b, p, elems*4, run)
		})
	}
}

func benchmarkAdamW(formats [3]fp8.DType, shapes []int) *AdamW {
	a := &AdamW{
		Control: control(backend.Control{Seed: 1, Step: 10, LR: 1e-3}),
		Step:    []int32{10}, Skip: []int32{0}, Coef: []float32{0.5}, Amaxes: make([]float32, 3*len(shapes)),
		Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1,
	}
	for i, n := range shapes {
		x := Param{Grad: benchmarkMatrix(fp8.F32, n), Extents: new(Extents)}
		for j, dtype := range formats {
			x.States[j] = State{Matrix: benchmarkMatrix(dtype, n), Stream: fp8.NameKey(fmt.Sprint("state", i, j)), Extents: new(Extents)}
		}
		v := &x.States[2] // second moments have no sign
		for k := range v.F32 {
			v.F32[k] = max(v.F32[k], -v.F32[k])
		}
		for k := range v.U16 {
			v.U16[k] &= 0x7fff
		}
		for k := range v.U8 {
			v.U8[k] &= 0x7f
		}
		a.Params = append(a.Params, x)
	}
	return a
}

// benchmarkMatrix returns n normally distributed values, on a cache-line boundary.
func benchmarkMatrix(dtype fp8.DType, n int) memory.Matrix {
	m, x := memory.Matrix{DType: dtype, Rows: 1, Cols: n, LD: n}, encoded(dtype, noise(1<<14), 1)
	raw := pool.Bytes(int64(n * dtype.Size()))
	switch dtype.Size() {
	case 4:
		m.F32 = repeated(pool.View[float32](raw), x.F32)
	case 2:
		m.U16 = repeated(pool.View[uint16](raw), x.U16)
	default:
		m.U8 = repeated(raw, x.U8)
	}
	m.Scale = x.Scale
	return m
}

func repeated[E any](dst, x []E) []E {
	for at := 0; at < len(dst); {
		at += copy(dst[at:], x)
	}
	return dst
}
