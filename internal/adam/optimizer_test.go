// Package adam compares AdamW with its state in small formats to the same update in
// float64, on synthetic gradients. It uses training's AdamW op. The tests hold what
// docs/method.md says of the moments' formats, and print the figures:
//
//	OCTET_LONG=1 go test ./internal/adam -run 'Drop|Spread' -v
package adam

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"octet/backend"
	_ "octet/backend/emu" // opened by New
	"octet/fp8"
	"octet/recipe"
)

// Rule holds the hyperparameters of the update.
type Rule struct{ LR, Beta1, Beta2, Eps, WeightDecay float64 }

// Optimizer is AdamW on one tensor of n elements, on the emulator.
type Optimizer struct {
	n       int
	rule    Rule
	device  backend.Backend
	run     backend.Executable
	op      *backend.AdamW
	control *backend.Tensor
	step    int
}

// New returns an optimizer with moments of 0 and the given weights.
func New(s recipe.Optimizer, r Rule, weights []float32) (*Optimizer, error) {
	o := &Optimizer{n: len(weights), rule: r}
	vars := backend.NewVars()
	o.control = vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	f32 := func(name string, n int) *backend.Tensor { return vars.Tensor(backend.State, name, fp8.F32, n) }
	state := func(name string, d fp8.DType, block int) *backend.Tensor {
		t := vars.Tensor(backend.State, name, d, 1, o.n)
		if recipe.Scaled(d) {
			scales := 1
			if block > 0 {
				t.Block = backend.ScaleBlock{Rows: 1, Cols: block}
				_, scales = t.Block.ScaleShape(1, o.n)
			}
			t.Scale = f32(name+".scale_inv", scales)
		}
		return t
	}
	master, m1, m2 := state("master", s.Master, 0), state("m1", s.M1, s.Block), state("m2", s.M2, s.Block)
	grad := vars.Tensor(backend.Stash, "grad", fp8.F32, 1, o.n)
	o.op = &backend.AdamW{
		Grad: []*backend.Tensor{grad}, Master: []*backend.Tensor{master}, M1: []*backend.Tensor{m1}, M2: []*backend.Tensor{m2},
		MasterScale: []*backend.Tensor{master.Scale}, M1Scale: []*backend.Tensor{m1.Scale}, M2Scale: []*backend.Tensor{m2.Scale},
		Control: o.control, Step: vars.Tensor(backend.State, "step", fp8.I32, 1), Coef: f32("coef", 1),
		Skip: vars.Tensor(backend.State, "skip", fp8.I32, 1), Amaxes: f32("scratch", 3),
		Beta1: float32(r.Beta1), Beta2: float32(r.Beta2), Eps: float32(r.Eps), WeightDecay: float32(r.WeightDecay),
		Rounding: s.Rounding, Pow2: s.Pow2, FloorV: s.FloorV,
	}
	program := vars.Program("update")
	program.Add(o.op)
	dev, err := backend.Open("emu", backend.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	o.device = dev
	loaded, err := backend.Load(o.device, program)
	if err != nil {
		return nil, err
	}
	o.run = loaded[0]
	for _, t := range []*backend.Tensor{master.Scale, m1.Scale, m2.Scale, o.op.Coef} {
		if t == nil {
			continue
		}
		if err := o.device.Write(t, fp8.AppendFloats(nil, slices.Repeat([]float32{1}, t.Elems())...)); err != nil {
			return nil, err
		}
	}
	return o, o.SetWeights(weights)
}

// Close releases the device.
func (o *Optimizer) Close() error { return o.device.Close() }

// SetWeights stores weights in the master's format, rounded to nearest.
func (o *Optimizer) SetWeights(x []float32) error {
	t := o.op.Master[0]
	if t.DType == fp8.F32 {
		return o.device.Write(t, fp8.AppendFloats(nil, x...))
	}
	scale := float32(1)
	if t.Scale != nil {
		scale, _ = fp8.ScaleFor(fp8.Amax(x), t.DType.Max(), o.op.Pow2)
		if err := o.device.Write(t.Scale, fp8.AppendFloats(nil, 1/scale)); err != nil {
			return err
		}
	}
	var raw []byte
	for _, v := range x {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(t.DType.Nearest(v*scale, fp8.Saturate)))
	}
	return o.device.Write(t, raw)
}

// Step updates the weights with a gradient.
func (o *Optimizer) Step(grad []float32) error {
	o.step++
	control := backend.Control{Seed: 1, Step: uint64(o.step), LR: float32(o.rule.LR)}
	step := binary.LittleEndian.AppendUint32(nil, uint32(o.step))
	for _, w := range []struct {
		t   *backend.Tensor
		raw []byte
	}{{o.op.Grad[0], fp8.AppendFloats(nil, grad...)}, {o.control, control.AppendTo(nil)}, {o.op.Step, step}} {
		if err := o.device.Write(w.t, w.raw); err != nil {
			return err
		}
	}
	return o.run.Run(context.Background())
}

// Weights and V return the dequantized master weights and second moment.
func (o *Optimizer) Weights() ([]float64, error) { return o.read(o.op.Master[0]) }
func (o *Optimizer) V() ([]float64, error)       { return o.read(o.op.M2[0]) }

func (o *Optimizer) read(t *backend.Tensor) ([]float64, error) {
	raw := make([]byte, t.Bytes())
	if err := o.device.Read(t, raw); err != nil {
		return nil, err
	}
	scales := []float64{1}
	if t.Scale != nil {
		var err error
		if scales, err = o.read(t.Scale); err != nil {
			return nil, err
		}
	}
	width := t.Elems()
	if t.Block.Cols > 0 {
		width = t.Block.Cols
	}
	stored := make([]float32, t.Elems())
	t.DType.Decode(stored, raw)
	x := make([]float64, len(stored))
	for i, v := range stored {
		x[i] = float64(v) * scales[i/width]
	}
	return x, nil
}

// Reference computes the same update in float64.
type Reference struct {
	Rule
	M, V []float64
	step int
}

// Step takes a gradient and returns the update, which AdamW subtracts from the weights in
// addition to their decay.
func (t *Reference) Step(grad []float32) []float64 {
	if t.M == nil {
		t.M, t.V = make([]float64, len(grad)), make([]float64, len(grad))
	}
	t.step++
	rate := t.LR * math.Sqrt(1-math.Pow(t.Beta2, float64(t.step))) / (1 - math.Pow(t.Beta1, float64(t.step)))
	update := make([]float64, len(grad))
	for i, g := range grad {
		g := float64(g)
		t.M[i] = t.Beta1*t.M[i] + (1-t.Beta1)*g
		t.V[i] = t.Beta2*t.V[i] + (1-t.Beta2)*g*g
		update[i] = rate * t.M[i] / (math.Sqrt(t.V[i]) + t.Eps)
	}
	return update
}
