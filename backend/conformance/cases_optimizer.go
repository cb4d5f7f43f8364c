package conformance

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) optimizer() {
	for _, n := range []int{1, 3} {
		s.add(func(b *fixture) {
			op := &backend.SumSquares{Out: b.result("out", fp8.F32, summed(n*200), 1)}
			for i := range n {
				op.X = append(op.X, b.outliers(b.normal(fmt.Sprintf("x%d", i), fp8.F32, 13, 1+i*7), 100))
			}
			b.p.Add(op)
		}, "sumsquares/%d", n)
	}
	s.add(func(b *fixture) {
		b.p.Add(&backend.SumSquares{
			X: []*backend.Tensor{b.gapped("x", fp8.F32, 5, 6), b.normal("y", fp8.F32, 9, 4).RowRange(1, 3)}, Out: b.result("out", fp8.F32, summed(42), 1),
		})
	}, "sumsquares/views")
	for _, scale := range []float64{0, 1e-9, 3} {
		s.add(func(b *fixture) {
			x := b.normal("x", fp8.F32, 13, 30)
			for i := range b.values[x] {
				b.values[x][i] *= scale
			}
			b.p.Add(&backend.SumSquares{X: []*backend.Tensor{x}, Out: b.result("out", fp8.F32, summed(400), 1), InverseNorm: true})
		}, "sumsquares/inversenorm/%v", scale)
	}
	s.stepGate()
	s.lossScales()
	s.adamW()
}

// lossScales adds gates with a loss scale, which growth and a skip change.
func (s *suite) lossScales() {
	for _, g := range []struct {
		name           string
		squares, scale float64
		good           int
	}{
		{"counts", 9e9, 0x1p16, 1},
		{"grows", 9e9, 0x1p16, 2},
		{"skips", inf, 0x1p16, 2},
		{"highest", 1e30, backend.MaxLossScale, 2},
		{"lowest", nan, backend.MinLossScale, 1},
	} {
		for _, clip := range []float32{0, 1} {
			s.add(func(b *fixture) {
				b.p.Add(&backend.StepGate{
					SumSquares: b.scalar("squares", g.squares), Step: b.ints("step", 41), Clip: clip, GrowthSteps: 3,
					GradNorm: b.result("norm", fp8.F32, elementwise, 1), Coef: b.result("coef", fp8.F32, elementwise, 1),
					Skip: b.ints("skip", 7), LossScale: b.scalar("loss_scale", g.scale), GoodSteps: b.ints("good_steps", g.good),
				})
			}, "stepgate/lossscale/%s/clip%v", g.name, clip)
		}
	}
}

func (s *suite) stepGate() {
	gates := []struct {
		name    string
		squares float64
		amax    []float64
		clip    float32
	}{
		{"clipped", 9, []float64{1, 2}, 1},
		{"below", 0.04, []float64{1, 2}, 1},
		{"unclipped", 9, nil, 0},
		{"zero", 0, nil, 1},
		{"tiny", 1e-12, nil, 1e-6},
		{"inf-norm", inf, nil, 1},
		{"inf-amax", 9, []float64{1, inf}, 1},
		{"nan-amax", 9, []float64{nan, 0, 1}, 0.5},
	}
	for _, g := range gates {
		s.add(func(b *fixture) {
			op := &backend.StepGate{
				SumSquares: b.scalar("squares", g.squares), Step: b.ints("step", 41), Clip: g.clip,
				GradNorm: b.result("norm", fp8.F32, elementwise, 1), Coef: b.result("coef", fp8.F32, elementwise, 1),
				Skip: b.ints("skip", 7),
			}
			if g.amax != nil {
				op.Amax = b.given("amax", fp8.F32, g.amax, len(g.amax))
			}
			b.p.Add(op)
		}, "stepgate/%s", g.name)
	}
}

// stateFormats are formats of the master weights, first and second moments.
var stateFormats = [][3]fp8.DType{
	{fp8.F32, fp8.F32, fp8.F32},
	{fp8.F16, fp8.E4M3, fp8.E5M2},
	{fp8.F16, fp8.F16, fp8.F16},
	{fp8.F32, fp8.E4M3IEEE, fp8.E5M2},
	{fp8.BF16, fp8.BF16, fp8.BF16},
}

// linearFormats are formats of a momentum or a master weight.
var linearFormats = []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E5M2, fp8.INT8}

func (s *suite) adamW() {
	for _, f := range stateFormats {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for _, form := range []backend.EpsForm{backend.EpsHat, backend.EpsCorrected} {
				s.add(func(b *fixture) {
					op := b.newAdamW(f, 1, 5*7, 64)
					op.Rounding, op.EpsForm = rounding, form
					b.random = rounding == fp8.Stochastic
					b.p.Add(op)
				}, "adamw/%s-%s-%s/%s/eps%d", f[0], f[1], f[2], rounding, form)
			}
		}
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 9, 50)
			b.values[op.Skip][0] = 1
			b.p.Add(op)
		}, "adamw/%s-%s-%s/skip", f[0], f[1], f[2])
	}
	// Two rows with a scale for every 24 elements, the last block of a row shorter.
	for _, f := range [][3]fp8.DType{{fp8.F16, fp8.E4M3, fp8.E4M3}, {fp8.F32, fp8.F16, fp8.E5M2}, {fp8.BF16, fp8.F32, fp8.E4M3}} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for _, pow2 := range []bool{false, true} {
				s.add(func(b *fixture) {
					op := b.newAdamW(f, 3, 2*64, 2*50)
					op.Rounding, op.Pow2 = rounding, pow2
					b.random = rounding == fp8.Stochastic
					b.block(op, 24)
					b.p.Add(op)
				}, "adamw/%s-%s-%s/%s/pow2-%v/blocks", f[0], f[1], f[2], rounding, pow2)
			}
		}
	}
	s.adamWExpanded()
	for _, f := range stateFormats {
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 1, 64)
			op.Pow2 = true
			b.p.Add(op)
		}, "adamw/%s-%s-%s/pow2", f[0], f[1], f[2])
	}
	s.adamWFloor()
	s.adamWShard()
	s.adamWZero()
	s.adamWL2()
	s.updateStats()
	s.linearUpdate()
	s.gradientFormats()
}

// adamWExpanded has expanded moments, twice: the second update decodes what the first stored.
// Of the first row's blocks one is 0, and one has a single magnitude beside zeros.
func (s *suite) adamWExpanded() {
	for _, f := range [][3]fp8.DType{{fp8.F32, fp8.E4M3, fp8.E4M3}, {fp8.F16, fp8.E4M3IEEE, fp8.E5M2}, {fp8.F32, fp8.F32, fp8.E4M3}} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			s.add(func(b *fixture) {
				op := b.newAdamW(f, 3, 2*100)
				op.Rounding, op.FloorV = rounding, true
				b.random = rounding == fp8.Stochastic
				b.block(op, 24)
				b.expand(op)
				for _, t := range []*backend.Tensor{op.Grad[0], op.M1[0], op.M2[0]} {
					clear(b.values[t][:48])
				}
				for i := 24; i < 48; i += 3 {
					b.values[op.Grad[0]][i] = 0.5
				}
				b.p.Add(op)
				again := *op
				again.Amaxes = b.result("scratch.again", fp8.F32, anything, 3)
				b.p.Add(&again)
			}, "adamw/expanded/%s-%s-%s/%s", f[0], f[1], f[2], rounding)
		}
	}
}

// A second update divides by the root of the stored second moment. FloorV stores the
// smallest positive value where it would underflow to 0. No gradient is 0: ε alone
// would decide such an update and hide the others.
func (s *suite) adamWFloor() {
	for _, f := range [][3]fp8.DType{
		{fp8.F32, fp8.F32, fp8.F16}, {fp8.F32, fp8.F32, fp8.E4M3}, {fp8.F16, fp8.E4M3, fp8.E5M2},
	} {
		for _, block := range []int{0, 24} {
			s.add(func(b *fixture) {
				op := b.newAdamW(f, 1, 64)
				op.FloorV, op.Eps = true, 1e-12
				clear(b.values[op.M2[0]])
				for i := range b.values[op.Grad[0]] {
					if i%3 > 0 {
						b.values[op.Grad[0]][i] = 1e-6 * float64(i%5+1)
					}
				}
				if block > 0 {
					b.block(op, block)
				}
				b.p.Add(op)
				again := *op
				again.Amaxes = b.result("scratch.again", fp8.F32, anything, 3)
				b.p.Add(&again)
			}, "adamw/floor/%s/block%d", f[2], block)
		}
	}
}

// Ranks that share tensors have equal scales and different random bits.
func (s *suite) adamWShard() {
	for _, f := range stateFormats[1:] {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			s.addRanks(2, func(b *fixture) {
				op := b.newAdamW(f, 3, 5*7, 64)
				op.Rounding, op.Shard = rounding, true
				b.random = rounding == fp8.Stochastic
				b.addShared(op)
			}, "adamw/%s-%s-%s/%s/shard", f[0], f[1], f[2], rounding)
			s.addRanks(2, func(b *fixture) { // ranks 3 and 4 have the parts 1 and 2
				op := b.newAdamW(f, 3, 5*7, 64)
				op.Rounding, op.Shard, op.Split = rounding, true, backend.Group{Size: 3, Stride: 2}
				b.random = rounding == fp8.Stochastic
				b.addShared(op)
			}, "adamw/%s-%s-%s/%s/split", f[0], f[1], f[2], rounding)
		}
	}
}

// addShared adds an update of tensors that ranks share.
func (b *fixture) addShared(op *backend.AdamW) {
	if op.HasAmaxes() {
		first := *op
		first.AmaxOnly, op.AmaxGiven = true, true
		b.p.Add(&first)
		b.p.Add(&backend.AllReduce{X: op.Amaxes, Reduce: backend.ReduceMax})
	}
	b.p.Add(op)
}

func (s *suite) adamWZero() {
	// Zero gradient and moments: an amax of 0 keeps the scale.
	s.add(func(b *fixture) {
		op := b.newAdamW(stateFormats[1], 1, 50)
		clear(b.values[op.Grad[0]])
		clear(b.values[op.M1[0]])
		clear(b.values[op.M2[0]])
		b.p.Add(op)
	}, "adamw/zero")
	// Weight decay alone: small updates need correct rounding of the master weights.
	s.add(func(b *fixture) {
		op := b.newAdamW(stateFormats[1], 1000, 300)
		clear(b.values[op.Grad[0]])
		op.Rounding, b.random = fp8.Stochastic, true
		b.p.Add(op)
	}, "adamw/decay")
}

// adamWL2 has coupled weight decay.
func (s *suite) adamWL2() {
	for _, formats := range stateFormats {
		s.add(func(b *fixture) {
			op := b.newAdamW(formats, 3, 1000, 37)
			op.L2 = 0.3
			b.p.Add(op)
		}, "adamw/l2/%s-%s-%s", formats[0], formats[1], formats[2])
	}
}

// newAdamW declares one parameter tensor per size, with nonzero moments.
func (b *fixture) newAdamW(formats [3]fp8.DType, step int, sizes ...int) *backend.AdamW {
	// Covers √, the quotient and 1 − β^t, which loses some bits in FP32 for t = 1.
	const tolerance = 0x1p-17
	b.step.LR = 0.05
	op := &backend.AdamW{
		Control: b.control(), Step: b.ints("step", step), Coef: b.scalar("coef", 0.75), Skip: b.ints("skip", 0),
		Amaxes: b.result("scratch", fp8.F32, anything, 3*len(sizes)),
		// A large Eps, so that the results of its two forms differ.
		Beta1: 0.9, Beta2: 0.95, Eps: 0.01, WeightDecay: 0.1,
	}
	for i, n := range sizes {
		grad := b.outliers(b.normal(fmt.Sprintf("grad%d", i), fp8.F32, n), 20)
		op.Grad = append(op.Grad, grad)
		declare := func(name string, d fp8.DType, values []float64) (t, scale *backend.Tensor) {
			name = fmt.Sprintf("%s%d", name, i)
			t = b.given(name, d, values, n)
			if d == fp8.F16 {
				t.Scale = b.scalar(name+".scale_inv", 0.07)
			}
			if t.Scale != nil {
				b.tolerance[t.Scale] = tolerance
			}
			b.tolerance[t] = tolerance
			return t, t.Scale
		}
		squares := b.draw(n, 2)
		for j, x := range squares {
			squares[j] = math.Abs(x)
		}
		master, masterScale := declare("master", formats[0], b.draw(n, 1))
		m1, m1Scale := declare("m1", formats[1], b.draw(n, 4))
		m2, m2Scale := declare("m2", formats[2], squares)
		op.Master, op.MasterScale = append(op.Master, master), append(op.MasterScale, masterScale)
		op.M1, op.M1Scale = append(op.M1, m1), append(op.M1Scale, m1Scale)
		op.M2, op.M2Scale = append(op.M2, m2), append(op.M2Scale, m2Scale)
	}
	return op
}

// block reshapes each tensor to two rows and gives the scaled moments one scale for each
// n elements of a row.
func (b *fixture) block(op *backend.AdamW, n int) {
	for i, grad := range op.Grad {
		cols := grad.Elems() / 2
		for _, t := range []*backend.Tensor{grad, op.Master[i], op.M1[i], op.M2[i]} {
			t.Shape, t.LD = []int{2, cols}, cols
		}
		for _, list := range []struct{ t, scale []*backend.Tensor }{{op.M1, op.M1Scale}, {op.M2, op.M2Scale}} {
			t := list.t[i]
			if t.Scale == nil {
				continue
			}
			t.Block = backend.ScaleBlock{Rows: 1, Cols: n}
			rows, blocks := t.Block.ScaleShape(2, cols)
			scale := b.positive(t.Name+".scales_inv", rows, blocks)
			b.tolerance[scale] = b.tolerance[t]
			t.Scale, list.scale[i] = scale, scale
		}
	}
}

// expand makes the blocks of the FP8 moments expanded ones, with k from 1 to 3.
func (b *fixture) expand(op *backend.AdamW) {
	for _, list := range []struct{ t, scale []*backend.Tensor }{{op.M1, op.M1Scale}, {op.M2, op.M2Scale}} {
		t := list.t[0]
		if t.Scale == nil {
			continue
		}
		blocks := t.Scale.Elems()
		values := make([]float64, 0, 3*blocks)
		for i := range blocks {
			values = append(values, 0.01*float64(i+1), 1+0.25*float64(i%9), 0.5+float64(i))
		}
		t.Expand = true
		t.Scale = b.given(t.Name+".expansion", fp8.F32, values, 3*blocks)
		b.tolerance[t.Scale] = b.tolerance[t]
		list.scale[0] = t.Scale
	}
}
