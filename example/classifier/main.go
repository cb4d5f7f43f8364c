// Classifier trains a model that is no Llama, softmax(W2 · gelu(W1 · x)), with layers of
// package nn and the optimizer of package train, and prints the loss of each step:
//
//	go run . fp8-smooth
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

const batch, in, width, classes, steps = 256, 32, 64, 16, 40

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: classifier RECIPE")
	}
	losses, _, err := fit(context.Background(), os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for i, loss := range losses {
		fmt.Printf("step %d: loss %.4f\n", i+1, loss)
	}
}

// classifier is the model. A slot is a tensor that GEMMs read, in the copies that they need.
type classifier struct {
	*nn.Base
	first, second                        *nn.Linear
	input, hidden, firstGrad, secondGrad *nn.Slot
	samples, labels, control, loss       *backend.Tensor
}

func newClassifier(r recipe.Recipe) (*classifier, error) {
	b, err := nn.NewBase(r, backend.NewVars())
	if err != nil {
		return nil, err
	}
	m := &classifier{Base: b, first: b.Linear("first", in, width, 0.2), second: b.Linear("second", width, classes, 0.1)}
	m.input, m.hidden = b.Slot("input", m.first.Inputs()...), b.Slot("hidden", m.second.Inputs()...)
	m.firstGrad, m.secondGrad = b.Slot("first.grad", m.first.Grads()...), b.Slot("second.grad", m.second.Grads()...)
	m.samples = b.Vars.Tensor(backend.Input, "samples", fp8.F32, batch, in)
	m.labels = b.Vars.Tensor(backend.Input, "labels", fp8.I32, batch)
	m.control = b.Vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	m.loss = b.Vars.Tensor(backend.Output, "loss", fp8.F32, 1)
	return m, b.Build()
}

// lossAndGrads records a forward and a backward pass.
func (m *classifier) lossAndGrads(p *nn.Pass) {
	m.ClearMaxima(p)
	cast := func(p *nn.Pass, x *backend.Tensor, to *nn.Slot) *nn.Value {
		return p.Store(to, batch, x.Cols(), func(out []backend.Cast) backend.Op { return &backend.Quantize{X: x, Out: out} })
	}
	x := cast(p, m.samples, m.input)
	up := m.first.Forward(p, x, nil)
	h := p.Store(m.hidden, batch, width, func(out []backend.Cast) backend.Op {
		return &backend.Activation{X: up, Out: out, Kind: backend.GELU}
	})
	logits, wide := m.second.Forward(p, h, nil), p.Temp("logits", fp8.F32, batch, classes)
	p.Add(&backend.Quantize{X: logits, Out: []backend.Cast{{Out: wide}}})
	losses, dLogits := p.Temp("losses", fp8.F32, batch), p.Temp("logits.grad", m.Recipe.Compute, batch, classes)
	p.Add(&backend.CrossEntropy{Logits: wide, Targets: m.labels, Loss: losses, DLogits: dLogits, Control: p.Control, LossScale: p.LossScale, Valid: classes})
	p.Add(&backend.Sum{X: losses, Out: m.loss})

	q := p.Backward()
	dy := cast(q, dLogits, m.secondGrad)
	m.second.Wgrad(q, h, dy, nil)
	dh := q.Temp("hidden.grad", m.Recipe.Compute, batch, width)
	m.second.Dgrad(q, dy, dh, false)
	du := q.Store(m.firstGrad, batch, width, func(out []backend.Cast) backend.Op {
		return &backend.ActivationGrad{DOut: dh, X: up, DX: out, Kind: backend.GELU}
	})
	m.first.Wgrad(q, x, du, nil)
}

// fit trains under a recipe. It returns the mean cross-entropy of each step's samples, in
// nats, and the final weights as bytes.
func fit(ctx context.Context, name string) (losses []float64, weights [][]byte, err error) {
	r, err := recipe.Lookup(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := newClassifier(r)
	if err != nil {
		return nil, nil, err
	}
	config := train.Default().Optimizer
	config.LR = 0.02
	m.DeclareGrads()
	opt := train.NewAdamW(m.Base, config)

	// prepare casts the initial weights, calibrate fills the empty amax histories.
	pass := func(name string, mode nn.Mode) *nn.Pass {
		return m.Pass(m.Vars.Program(name), mode, nn.Shape{Batch: batch, Seq: 1, Control: m.control})
	}
	calibrate, prepare, micro, update := pass("calibrate", nn.Calibrate), pass("prepare", nn.Train), pass("micro", nn.Train), pass("update", nn.Train)
	m.CastWeights(calibrate)
	m.lossAndGrads(calibrate)
	m.UpdateScales(calibrate.Program, nil)
	m.CastWeights(prepare)
	m.lossAndGrads(micro)
	opt.Update(update)

	dev, err := backend.Open("emu", backend.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	loaded, err := backend.Load(dev, calibrate.Program, prepare.Program, micro.Program, update.Program)
	if err != nil {
		return nil, nil, err
	}
	for t, raw := range opt.Initial(1) {
		if err := dev.Write(t, raw); err != nil {
			return nil, nil, err
		}
	}
	data := rand.New(rand.NewPCG(1, 2))
	for step := range steps {
		control := backend.Control{Seed: 1, Step: uint64(step), LR: float32(config.LRAt(step, steps)), InvTokens: 1. / batch}
		samples, labels := draw(data)
		programs := loaded[2:]
		if step == 0 {
			programs = loaded
		}
		loss, err := m.step(ctx, dev, programs, control.AppendTo(nil), samples, labels)
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, loss)
	}
	for _, p := range m.Params {
		raw := make([]byte, p.Master.Bytes())
		if err := dev.Read(p.Master, raw); err != nil {
			return nil, nil, err
		}
		weights = append(weights, raw)
	}
	return losses, weights, nil
}

// step writes a batch, runs programs and returns the mean loss.
func (m *classifier) step(ctx context.Context, dev backend.Backend, programs []backend.Executable, control, samples, labels []byte) (float64, error) {
	err := errors.Join(dev.Write(m.control, control), dev.Write(m.samples, samples), dev.Write(m.labels, labels))
	for _, p := range programs {
		if err == nil {
			err = p.Run(ctx)
		}
	}
	raw := make([]byte, 4)
	if err == nil {
		err = dev.Read(m.loss, raw)
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))) / batch, err
}

// draw returns samples F32 [batch, in] and their labels I32 [batch] as bytes. The label is
// the index of the largest of a sample's first elements.
func draw(r *rand.Rand) (samples, labels []byte) {
	for range batch {
		x, label := make([]float32, in), 0
		for i := range x {
			if x[i] = float32(r.NormFloat64()); i < classes && x[i] > x[label] {
				label = i
			}
		}
		samples = fp8.AppendFloats(samples, x...)
		labels = binary.LittleEndian.AppendUint32(labels, uint32(label))
	}
	return samples, labels
}
