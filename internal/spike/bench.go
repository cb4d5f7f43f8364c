package spike

import (
	"context"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	_ "octet/backend/emu" // the device of Bench
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Alone returns the recipe with current scales and rounding to nearest for w3's
// gradients, so that recipes differ only in the casts of w3's input and weight. To
// include the recipe's own casts of gradients, call [New] without Alone.
func Alone(r recipe.Recipe) recipe.Recipe {
	nearest := fp8.Nearest
	r.Rows = append([]recipe.Row{{Scope: "*.down_proj", Operand: recipe.Grad, Scaling: recipe.Current, Rounding: &nearest}}, r.Rows...)
	return r
}

// Bench runs a problem on a device, under a recipe.
type Bench struct {
	*Problem
	dev                   backend.Backend
	model                 *nn.Base // one MLP
	w3                    string   // path of its last layer
	control               *backend.Tensor
	prepare, step, update backend.Executable

	steps int
	size  float64 // size of the outlier in the device's weights
}

// New opens a device and runs three steps with an outlier of size 1, which fill the
// histories of delayed scales.
func New(ctx context.Context, p *Problem, r recipe.Recipe) (*Bench, error) {
	r.Rows = append([]recipe.Row{{Scope: "*.up_proj", DType: fp8.BF16}, {Scope: "*.gate_proj", DType: fp8.BF16}}, r.Rows...)
	r.Optimizer = recipe.Optimizer{Master: fp8.F32, M1: fp8.F32, M2: fp8.F32}
	vars := backend.NewVars()
	m, err := nn.NewBase(r, vars)
	if err != nil {
		return nil, err
	}
	mlp := m.MLP("layers.0.mlp", nn.MLPShape{Dim: p.Dim, FFN: p.FFN, Activation: nn.SmoothSwiGLU})
	grad := mlp.OutputGrad(m)
	if err := m.Build(); err != nil {
		return nil, err
	}
	m.DeclareGrads()
	b := &Bench{Problem: p, model: m, w3: m.Linears()[2].Scope}
	b.control = vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	x := vars.Tensor(backend.Input, "x", fp8.F32, p.Tokens, p.Dim)
	dy := vars.Tensor(backend.Input, "dy", fp8.F32, p.Tokens, p.Dim)
	pass := func(name string) *nn.Pass {
		return m.Pass(vars.Program(name), nn.Train, nn.Shape{Batch: 1, Seq: p.Tokens, Control: b.control})
	}
	prepare, step, update := pass("prepare"), pass("micro"), pass("update")
	m.CastWeights(prepare)
	m.ClearMaxima(step)
	cast := func(pass *nn.Pass, x *backend.Tensor, to *nn.Slot) *nn.Value {
		return pass.Store(to, p.Tokens, p.Dim, func(out []backend.Cast) backend.Op {
			return &backend.Quantize{X: x, Out: out}
		})
	}
	_, saved := mlp.Forward(step, cast(step, x, mlp.Input()), nil)
	backward := step.Backward()
	mlp.Backward(backward, saved, cast(backward, dy, grad))
	m.UpdateScales(update.Program, nil)
	m.CastWeights(update)
	if b.dev, err = backend.Open("emu", backend.Options{}); err != nil {
		return nil, err
	}
	if err := b.start(ctx, prepare.Program, step.Program, update.Program, x, dy); err != nil {
		_ = b.Close() // the first error is the one to report
		return nil, err
	}
	return b, nil
}

func (b *Bench) start(ctx context.Context, prepare, step, update *backend.Program, x, dy *backend.Tensor) error {
	loaded, err := backend.Load(b.dev, prepare, step, update)
	if err != nil {
		return err
	}
	b.prepare, b.step, b.update = loaded[0], loaded[1], loaded[2]
	values := map[*backend.Tensor][]float32{x: b.x, dy: b.dy}
	for t, value := range b.model.Constants() {
		values[t] = slices.Repeat([]float32{value}, t.Elems())
	}
	for i, weight := range [][]float32{b.up, b.gate, b.down} {
		values[b.model.Params[i].Master] = weight
	}
	for t, v := range values {
		if err := b.write(t, v); err != nil {
			return err
		}
	}
	for range 3 {
		if err := b.Step(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the device.
func (b *Bench) Close() error { return b.dev.Close() }

func (b *Bench) write(t *backend.Tensor, x []float32) error {
	return b.dev.Write(t, fp8.AppendFloats(nil, x...))
}

// Step runs a step with an outlier of the given size.
func (b *Bench) Step(ctx context.Context, size float64) error {
	return b.run(ctx, size, func() error { return b.step.Run(ctx) })
}

// Measure runs a step as Step does and returns the errors of w3's GEMMs.
func (b *Bench) Measure(ctx context.Context, size float64) (Errors, error) {
	w := watch{w3: b.w3}
	err := b.run(ctx, size, func() error { return b.step.RunObserved(ctx, w.observe) })
	if err == nil && (w.hidden == nil || w.exact == nil || w.wgradInput == nil || w.grad == nil) {
		err = fmt.Errorf("the program lacks SwiGLU or one of the three GEMMs of w3")
	}
	if err != nil {
		return Errors{}, err
	}
	e := b.errors(b.gemms(w.operands), b.exactResults(size, w.exact))
	e.Saturated = w.saturated(b.FFN)
	return e, nil
}

func (b *Bench) run(ctx context.Context, size float64, step func() error) error {
	if size != b.size {
		row := b.outlier(size)
		for _, p := range b.model.Params[:2] { // of up and gate
			if err := b.write(p.Master.RowRange(0, 1), row); err != nil {
				return err
			}
		}
		if err := b.prepare.Run(ctx); err != nil {
			return err
		}
		b.size = size
	}
	control := backend.Control{Step: uint64(b.steps), InvTokens: 1}
	b.steps++
	if err := b.dev.Write(b.control, control.AppendTo(nil)); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	return b.update.Run(ctx)
}

// exactResults returns the results of w3's GEMMs on the uncast activation a, which does
// not depend on the recipe.
func (b *Bench) exactResults(size float64, a []float64) *results {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exact[size] == nil {
		dy, w := widen(b.dy), widen(b.down)
		b.exact[size] = b.gemms(operands{input: a, weight: w, grad: dy, gradWeight: w, wgradGrad: dy, wgradInput: a})
	}
	return b.exact[size]
}

func widen(x []float32) []float64 {
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return wide
}

// watch collects the operands of w3's GEMMs while a step runs.
type watch struct {
	operands
	w3     string          // path of the observed GEMMs
	exact  []float64       // the activation before smoothing and cast
	hidden *backend.Tensor // h as fprop reads it
	scale  []float64       // scale_inv of hidden
}

func (w *watch) observe(n *backend.Node, m backend.Memory) (err error) {
	values := func(t *backend.Tensor) []float64 {
		if t == nil || err != nil {
			return nil
		}
		var x []float64
		x, err = backend.Values(m, t)
		return x
	}
	switch op := n.Op.(type) {
	case *backend.SwiGLU:
		w.exact = values(op.Up)
		for i, g := range values(op.Gate) {
			w.exact[i] *= silu(g)
		}
		w.invC, w.tokenScale = values(op.InvC), values(op.TokenScale)
	case *backend.MatMul:
		switch {
		case n.Scope != w.w3:
		case op.TransB:
			w.input, w.weight, w.rowScale = values(op.A), values(op.B), values(op.RowScale)
			w.hidden, w.scale = op.A, values(op.A.Scale)
		case op.TransA:
			w.wgradGrad, w.wgradInput, w.colScale = values(op.A), values(op.B), values(op.ColScale)
		default:
			w.grad, w.gradWeight = values(op.A), values(op.B)
		}
	default: // other ops are not observed
	}
	return err
}

// saturated returns the fraction of h's elements beyond the range of its format. It is 0
// for block scales, with which nothing saturates.
func (w *watch) saturated(ffn int) float64 {
	if len(w.scale) != 1 || !w.hidden.DType.IsQuantized() {
		return 0
	}
	limit, n := float64(w.hidden.DType.ClipLimit())*w.scale[0], 0
	for i, a := range w.exact {
		if w.invC != nil {
			a *= w.invC[i%ffn]
		}
		if w.tokenScale != nil {
			a /= w.tokenScale[i/ffn]
		}
		if math.Abs(a) > limit {
			n++
		}
	}
	return float64(n) / float64(len(w.exact))
}
