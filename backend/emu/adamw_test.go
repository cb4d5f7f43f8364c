package emu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// adamSizes are the sizes of tensors: part of a span, several spans, exactly one.
var adamSizes = []int{3, 5000, adamSpan}

// adamTrial declares an AdamW over tensors of adamSizes with the given formats.
func adamTrial(t *testing.T, master, m1, m2 fp8.DType, skip float32) (*trial, *backend.AdamW) {
	tr := newTrial(t)
	op := &backend.AdamW{
		Control: tr.control(backend.Control{Seed: 5, Step: 9, LR: 0.01}),
		Step:    tr.tensor("step", fp8.I32, []float32{3}, 1),
		Coef:    tr.tensor("coef", fp8.F32, []float32{0.5}, 1),
		Skip:    tr.tensor("skip", fp8.I32, []float32{skip}, 1),
		Amaxes:  tr.tensor("scratch", fp8.F32, []float32{9}, 3*len(adamSizes)),
		Beta1:   0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1,
	}
	for i, n := range adamSizes {
		stored := func(name string, dtype fp8.DType, values []float32, scaleInv float32) *backend.Tensor {
			x := tr.tensor(fmt.Sprint(name, i), dtype, values, n)
			if dtype != fp8.F32 {
				tr.scaled(x, scaleInv)
			}
			return x
		}
		grad := tr.noise(n)
		if i == 1 {
			wide := tr.tensor("wide", fp8.F32, tr.noise(50*103), 50, 103)
			op.Grad = append(op.Grad, &backend.Tensor{
				Name: "grad1", DType: fp8.F32, Shape: []int{50, 100}, Class: wide.Class, Base: wide, Offset: 2, LD: 103,
			})
		} else {
			op.Grad = append(op.Grad, tr.tensor(fmt.Sprint("grad", i), fp8.F32, grad, n))
		}
		squares := tr.noise(n)
		for j, x := range squares {
			squares[j] = x * x
		}
		op.Master = append(op.Master, stored("master", master, tr.noise(n), 0.25))
		op.M1 = append(op.M1, stored("m1.", m1, tr.noise(n), 0.5))
		op.M2 = append(op.M2, stored("m2.", m2, squares, 2))
		op.MasterScale = append(op.MasterScale, op.Master[i].Scale)
		op.M1Scale = append(op.M1Scale, op.M1[i].Scale)
		op.M2Scale = append(op.M2Scale, op.M2[i].Scale)
	}
	return tr, op
}

// expect computes AdamW in float64: the new master and moments of tensor i.
func expect(op *backend.AdamW, d *device, i int) (x [3][]float64) {
	x = [3][]float64{d.values(op.Master[i]), d.values(op.M1[i]), d.values(op.M2[i])}
	p, m, v := x[0], x[1], x[2]
	b1, b2, lr, steps := float64(op.Beta1), float64(op.Beta2), float64(float32(0.01)), 3.0
	for j, g := range d.values(op.Grad[i]) {
		g *= 0.5
		m[j] = b1*m[j] + (1-b1)*g
		v[j] = b2*v[j] + (1-b2)*g*g
		hat := m[j] / (1 - math.Pow(b1, steps))
		root := math.Sqrt(1 - math.Pow(b2, steps))
		step := hat * root / (math.Sqrt(v[j]) + float64(op.Eps))
		if op.EpsForm == backend.EpsCorrected {
			step = hat / (math.Sqrt(v[j])/root + float64(op.Eps))
		}
		p[j] = p[j]*(1-lr*float64(op.WeightDecay)) - lr*step
	}
	return x
}

func TestAdamWFloat32(t *testing.T) {
	for _, form := range []backend.EpsForm{backend.EpsHat, backend.EpsCorrected} {
		tr, op := adamTrial(t, fp8.F32, fp8.F32, fp8.F32, 0)
		op.EpsForm, op.Eps = form, 0.1 // large enough for the two forms to differ
		tr.program.Add(op)
		before, _ := tr.load(1)
		d := tr.run()
		for i := range adamSizes {
			want := expect(op, before, i)
			near(t, want[0], d.values(op.Master[i]), 2e-7, "master")
			near(t, want[1], d.values(op.M1[i]), 2e-7, "m1")
			near(t, want[2], d.values(op.M2[i]), 2e-7, "m2")
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
				tr, op := adamTrial(t, f[0], f[1], f[2], 0)
				op.Rounding = rounding
				tr.program.Add(op)
				before, _ := tr.load(1)
				d := tr.run()
				amaxes := d.values(op.Amaxes)
				rule := (&binder{device: d}).adamW(op).ruleFor(0.01, 0.5, 3)
				for i := range adamSizes {
					var x [3][]float32
					stored := [3]*backend.Tensor{op.Master[i], op.M1[i], op.M2[i]}
					for j, s := range stored {
						x[j] = float32s(before.values(s))
					}
					rule.Update(x[0], x[1], x[2], float32s(before.values(op.Grad[i])))
					for j, s := range stored {
						scale, amax := float32(1), float32(0)
						if s.Scale != nil {
							amax = fp8.Amax(x[j])
							scale, _ = fp8.ScaleFor(amax, s.DType.Max(), false)
							require.Equal(t, 1/scale, float32(d.values(s.Scale)[0]), "%s", s)
						}
						require.Equal(t, amax, float32(amaxes[3*i+j]), "%s", s)
						key := fp8.StreamKey(5, 9, fp8.NameKey(s.Name))
						want := make([]float64, len(x[j]))
						for l, v := range x[j] {
							code := s.DType.Nearest(v*scale, fp8.Saturate)
							if rounding == fp8.Stochastic && s.DType != fp8.F32 {
								code = s.DType.Stochastic(v*scale, fp8.Random(key, uint64(l)), fp8.Saturate)
							}
							want[l] = float64(s.DType.Float32(code))
							if s.Scale != nil {
								want[l] *= float64(1 / scale)
							}
						}
						require.Equal(t, want, d.values(s), "%s", s)
					}
				}
			})
		}
	}
}

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

func TestAdamWSkips(t *testing.T) {
	tr, op := adamTrial(t, fp8.F16, fp8.E4M3, fp8.E5M2, 1)
	tr.program.Add(op)
	before, _ := tr.load(1)
	d := tr.run()
	for x := range tr.vars.All() {
		require.Equal(t, before.memory[x], d.memory[x], "%s", x)
	}
}

// A moment of zeros keeps its scale_inv, or gets 1 if that is 0.
func TestAdamWKeepsTheScaleOfZeros(t *testing.T) {
	for old, want := range map[float32]float64{0.125: 0.125, 3: 3, 0: 1} {
		tr := newTrial(t)
		one := func(name string, dtype fp8.DType) *backend.Tensor { return tr.tensor(name, dtype, nil, 4) }
		master, m1, m2 := one("master", fp8.F32), tr.scaled(one("m1", fp8.E4M3), old), tr.scaled(one("m2", fp8.E5M2), old)
		tr.program.Add(&backend.AdamW{
			Grad: []*backend.Tensor{one("grad", fp8.F32)}, Master: []*backend.Tensor{master},
			M1: []*backend.Tensor{m1}, M2: []*backend.Tensor{m2},
			MasterScale: []*backend.Tensor{nil}, M1Scale: []*backend.Tensor{m1.Scale}, M2Scale: []*backend.Tensor{m2.Scale},
			Control: tr.control(backend.Control{LR: 1}), Step: tr.tensor("step", fp8.I32, []float32{1}, 1),
			Coef: tr.tensor("coef", fp8.F32, []float32{1}, 1), Skip: one("skip", fp8.I32).Slice("skip0", 0, 1),
			Amaxes: tr.tensor("scratch", fp8.F32, nil, 3), Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
		})
		d := tr.run()
		require.Equal(t, want, d.values(m1.Scale)[0])
		require.Equal(t, want, d.values(m2.Scale)[0])
		require.Equal(t, make([]float64, 4), d.values(m1))
		require.Equal(t, make([]float64, 4), d.values(master))
	}
}
