package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// encoded returns values, rounded to a format, as a matrix with one scale_inv, or none
// in F32.
func encoded(dtype fp8.DType, values []float32, scaleInv float32) memory.Matrix {
	m := memory.Matrix{DType: dtype, Rows: 1, Cols: len(values), LD: len(values)}
	for _, v := range values {
		switch code := dtype.Nearest(v, fp8.NonSaturating); dtype.Size() {
		case 4:
			m.F32 = append(m.F32, v)
		case 2:
			m.U16 = append(m.U16, uint16(code))
		default:
			m.U8 = append(m.U8, uint8(code))
		}
	}
	if dtype != fp8.F32 {
		m.Scale = []float32{scaleInv}
	}
	return m
}

// noise returns n normally distributed values, always the same.
func noise(n int) []float32 {
	random, x := rand.New(rand.NewPCG(1, uint64(n))), make([]float32, n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

func control(c backend.Control) []int32 { return pool.View[int32](c.AppendTo(nil)) }

// testAdamW returns an update of parameters of these sizes, with states in these formats:
// master, first and second moment.
func testAdamW(formats [3]fp8.DType, sizes ...int) *AdamW {
	a := &AdamW{
		Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1,
		Control: control(backend.Control{Seed: 5, Step: 9, LR: 0.01}),
		Step:    []int32{3}, Skip: []int32{0}, Coef: []float32{0.5}, Amaxes: make([]float32, 3*len(sizes)),
	}
	for i, n := range sizes {
		x := noise(4 * n)
		p := Param{Grad: encoded(fp8.F32, x[:n], 1), Extents: new(Extents)}
		for j, scaleInv := range []float32{0.25, 0.5, 2} {
			values := x[(j+1)*n:][:n]
			for k, v := range values {
				if j == 2 {
					values[k] = v * v
				}
			}
			p.States[j] = State{Matrix: encoded(formats[j], values, scaleInv), Stream: fp8.NameKey(fmt.Sprint(i, j)), Extents: new(Extents)}
		}
		a.Params = append(a.Params, p)
	}
	for i := range a.Amaxes {
		a.Amaxes[i] = 9 // of an earlier run
	}
	return a
}

// gradWithGaps replaces the gradient of a parameter of 5000 elements by one with gaps
// between its rows.
func (p *Param) gradWithGaps() {
	wide := make([]float32, 50*103)
	for i, v := range p.Grad.F32 {
		wide[i/100*103+i%100] = v
	}
	p.Grad, p.Extents = memory.Matrix{DType: fp8.F32, Rows: 50, Cols: 100, LD: 103, F32: wide}, nil
}

// sizes are part of a span, several spans, exactly one.
var sizes = []int{3, 5000, spanElems}

// unlike returns an update of parameters of sizes, the second with gaps in its gradient.
func unlike(master, m1, m2 fp8.DType) *AdamW {
	a := testAdamW([3]fp8.DType{master, m1, m2}, sizes...)
	a.Params[1].gradWithGaps()
	return a
}

// memory returns all that an update writes, as slices.
func (a *AdamW) memory() (all []any) {
	for i := range a.Params {
		for j := range a.Params[i].States {
			s := &a.Params[i].States[j]
			all = append(all, s.F32, s.U16, s.U8, s.Scale)
		}
	}
	return append(all, a.Amaxes)
}

// clone returns a copy of an update that has not been bound. The copy shares the
// gradients and what Bind and runs do not write.
func (a *AdamW) clone() *AdamW {
	b := *a
	b.Amaxes, b.Params = slices.Clone(a.Amaxes), slices.Clone(a.Params)
	for i := range b.Params {
		p := &b.Params[i]
		renew(&p.Extents)
		for j := range p.States {
			s := &p.States[j]
			s.F32, s.U16, s.U8, s.Scale = slices.Clone(s.F32), slices.Clone(s.U16), slices.Clone(s.U8), slices.Clone(s.Scale)
			renew(&s.Extents)
		}
	}
	return &b
}

func renew(e **Extents) {
	if *e != nil {
		*e = new(Extents)
	}
}

// runOn returns a copy of a after one run on a number of threads.
func (a *AdamW) runOn(threads int) *AdamW {
	p := pool.New(threads)
	defer p.Close()
	after := a.clone()
	bound := after.Bind(p)
	for _, scratch := range p.Scratch { // a run must not read what earlier ops left
		for i := range scratch {
			scratch[i] = float32(math.NaN())
		}
	}
	bound()
	return after
}

// runs returns a copy of a after one run, and requires the same bytes on one, two and
// three threads.
func (a *AdamW) runs(t *testing.T) *AdamW {
	want := a.runOn(1)
	for threads := 2; threads <= 3; threads++ {
		require.Equal(t, want.memory(), a.runOn(threads).memory(), "%d threads", threads)
	}
	return want
}

// values decodes a matrix.
func values(m memory.Matrix) (x []float32) {
	for row := range m.Rows {
		one := make([]float32, m.Cols)
		m.Load(one, row, 0)
		x = append(x, one...)
	}
	return x
}

// expect computes the update in float64: the new states of parameter i.
func (a *AdamW) expect(i int) (x [3][]float64) {
	for j := range x {
		for _, v := range values(a.Params[i].States[j].Matrix) {
			x[j] = append(x[j], float64(v))
		}
	}
	p, m, v := x[0], x[1], x[2]
	b1, b2, lr, steps := float64(a.Beta1), float64(a.Beta2), float64(float32(0.01)), 3.0
	for j, grad := range values(a.Params[i].Grad) {
		g := float64(grad) * 0.5
		m[j] = b1*m[j] + (1-b1)*g
		v[j] = b2*v[j] + (1-b2)*g*g
		hat := m[j] / (1 - math.Pow(b1, steps))
		root := math.Sqrt(1 - math.Pow(b2, steps))
		step := hat * root / (math.Sqrt(v[j]) + float64(a.Eps))
		if a.EpsForm == backend.EpsCorrected {
			step = hat / (math.Sqrt(v[j])/root + float64(a.Eps))
		}
		p[j] = p[j]*(1-lr*float64(a.WeightDecay)) - lr*step
	}
	return x
}

func TestAdamWFloat32(t *testing.T) {
	for _, form := range []backend.EpsForm{backend.EpsHat, backend.EpsCorrected} {
		a := unlike(fp8.F32, fp8.F32, fp8.F32)
		a.EpsForm, a.Eps = form, 0.1 // large enough for the two forms to differ
		after := a.runs(t)
		for i := range sizes {
			for j, want := range a.expect(i) {
				var diff, norm float64
				for k, v := range values(after.Params[i].States[j].Matrix) {
					diff += (float64(v) - want[k]) * (float64(v) - want[k])
					norm += want[k] * want[k]
				}
				require.LessOrEqual(t, math.Sqrt(diff), 2e-7*math.Sqrt(norm), "parameter %d, state %d", i, j)
			}
		}
	}
}

// AdamW on codes equals dequantizing the old codes, updating FP32 tensors, and
// quantizing the result element by element.
func TestAdamWScaled(t *testing.T) {
	formats := [][3]fp8.DType{
		{fp8.F16, fp8.E4M3, fp8.E5M2},
		{fp8.F32, fp8.E4M3IEEE, fp8.F16},
		{fp8.F16, fp8.F32, fp8.F32},
	}
	for _, f := range formats {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			t.Run(fmt.Sprint(f, rounding), func(t *testing.T) {
				a := unlike(f[0], f[1], f[2])
				a.Rounding = rounding
				after, rule := a.runs(t), a.ruleFor(float64(float32(0.01)), 0.5, 3)
				for i := range sizes {
					var x [3][]float32
					for j := range x {
						x[j] = values(a.Params[i].States[j].Matrix)
					}
					rule.Update(x[0], x[1], x[2], values(a.Params[i].Grad))
					for j, x := range x {
						s, scale, amax := after.Params[i].States[j], float32(1), float32(0)
						if s.Scale != nil {
							amax = fp8.Amax(x)
							scale, _ = fp8.ScaleFor(amax, s.DType.Max(), false)
							require.Equal(t, 1/scale, s.Scale[0])
						}
						require.Equal(t, amax, after.Amaxes[3*i+j])
						key := fp8.StreamKey(5, 9, s.Stream)
						want := make([]float32, len(x))
						for l, v := range x {
							code := s.DType.Nearest(v*scale, fp8.Saturate)
							if rounding == fp8.Stochastic && s.DType != fp8.F32 {
								code = s.DType.Stochastic(v*scale, fp8.Random(key, uint64(l)), fp8.Saturate)
							}
							want[l] = s.DType.Float32(code) * (1 / scale)
						}
						require.Equal(t, want, values(s.Matrix), "parameter %d, state %d", i, j)
					}
				}
			})
		}
	}
}

func TestAdamWSkips(t *testing.T) {
	a := unlike(fp8.F16, fp8.E4M3, fp8.E5M2)
	a.Skip[0] = 1
	require.Equal(t, a.memory(), a.runs(t).memory())
}

func TestAdamWAllocatesNothing(t *testing.T) {
	for _, m1 := range []fp8.DType{fp8.F32, fp8.F16, fp8.E4M3} {
		p := pool.New(2)
		run := unlike(fp8.F16, m1, fp8.E5M2).Bind(p)
		run()
		require.Zero(t, testing.AllocsPerRun(3, run))
		p.Close()
	}
}

func TestStatsAllocateNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rule := unlike(fp8.F16, fp8.E4M3, fp8.E5M2)
	n := len(rule.Params)
	run := Stats{Rule: *rule, MeanSquares: make([]float32, n), Largest: make([]float32, n), ZeroV: make([]float32, n), Parts: 1}.Bind(p)
	run()
	require.Zero(t, testing.AllocsPerRun(3, run))
}

// A moment of zeros keeps its scale_inv, or gets 1 if that is 0.
func TestAdamWKeepsTheScaleOfZeros(t *testing.T) {
	for old, want := range map[float32]float32{0.125: 0.125, 3: 3, 0: 1} {
		a := testAdamW([3]fp8.DType{fp8.F32, fp8.E4M3, fp8.E5M2}, 4)
		p := &a.Params[0]
		clear(p.Grad.F32)
		clear(p.States[0].F32)
		for j := 1; j < 3; j++ {
			clear(p.States[j].U8)
			p.States[j].Scale[0] = old
		}
		after := a.runs(t).Params[0]
		require.Equal(t, []float32{want}, after.States[1].Scale)
		require.Equal(t, []float32{want}, after.States[2].Scale)
		require.Equal(t, make([]byte, 4), after.States[1].U8)
		require.Equal(t, make([]float32, 4), after.States[0].F32)
	}
}

// Bind leaves its receiver as it is: it can be bound again.
func TestAdamWBindsTwice(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	a := testAdamW([3]fp8.DType{fp8.F16, fp8.E4M3, fp8.E5M2}, 3000)
	first := *a
	a.Bind(p)
	require.Equal(t, first, *a)
}
