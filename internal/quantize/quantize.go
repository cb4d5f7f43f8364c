// Package quantize casts matrices on a backend as a training step does, with the ops that
// package nn records, and measures what the casts lost.
package quantize

import (
	"context"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/gemm"
	"octet/nn"
	"octet/recipe"
)

// Result is a matrix after a cast.
type Result struct {
	gemm.Operand
	Name   string
	Cast   recipe.Cast
	Health []float32 // see backend.CastHealth
}

// Cast casts m with scales from its own elements, granularities along its rows. seed
// selects the random bits of stochastic rounding, which depend on the matrix's name, too.
// Cast binds dev, which cannot be bound again.
func Cast(ctx context.Context, dev backend.Backend, m arrays.Matrix, c recipe.Cast, seed uint64) (*Result, error) {
	if !c.DType.IsQuantized() {
		return nil, fmt.Errorf("format %s: expected one of up to eight bits, such as e4m3, e2m1 and int8", c.DType)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.DType.Size() == 0 && m.Cols%2 == 1 {
		return nil, fmt.Errorf("rows of %d elements: a byte holds two codes of %s, so a row needs an even number (append a column of zeros)", m.Cols, c.DType)
	}
	plain, err := recipe.Lookup("fp32")
	if err != nil {
		return nil, err
	}
	vars := backend.NewVars()
	base, err := nn.NewBase(plain, vars)
	if err != nil {
		return nil, err
	}
	across, along := c.Granularity.Block()
	copied := nn.Copy{Cast: c, Block: backend.ScaleBlock{Rows: across, Cols: along}}
	slot := base.Slot(m.Name, copied)
	if err := base.Build(); err != nil {
		return nil, err
	}
	x := vars.Tensor(backend.Input, "input", fp8.F32, m.Rows, m.Cols)
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	pass := base.Pass(vars.Program("quantize"), nn.Train, nn.Shape{Batch: 1, Seq: m.Rows, Control: control})
	pass.Health = base.DeclareHealth()
	pass.Store(slot, m.Rows, m.Cols, func(out []backend.Cast) backend.Op { return &backend.Quantize{X: x, Out: out} })
	loaded, err := backend.Load(dev, pass.Program)
	if err != nil {
		return nil, err
	}
	if err := dev.Write(x, fp8.AppendFloats(nil, m.Values...)); err != nil {
		return nil, err
	}
	if err := dev.Write(control, backend.Control{Seed: seed}.AppendTo(nil)); err != nil {
		return nil, err
	}
	r := &Result{Name: m.Name, Cast: c, Operand: gemm.Operand{DType: c.DType, Rows: m.Rows, Cols: m.Cols, Block: copied.Block}}
	return r, loaded[0].RunObserved(ctx, r.observe)
}

// observe reads the result at the op that measures it, the last one.
func (r *Result) observe(n *backend.Node, m backend.Memory) (err error) {
	o, ok := n.Op.(*backend.CastHealth)
	if !ok {
		return nil
	}
	if r.Codes, err = m.Read(o.Codes); err != nil {
		return err
	}
	scale := o.Codes.Scale
	if r.Scale, err = m.Read(scale); err != nil {
		return err
	}
	r.ScaleDType, r.ScaleRows, r.ScaleCols = scale.DType, scale.Rows(), scale.Cols()
	raw, err := m.Read(o.Out)
	if err != nil {
		return err
	}
	r.Health = make([]float32, backend.HealthFields)
	o.Out.DType.Decode(r.Health, raw)
	if r.Cast.Scale.Outer {
		r.Outer = r.Health[backend.HealthOuter]
	}
	return nil
}

// Tensors returns the codes and scales as tensors to write: NAME, NAME.scale_inv, and
// NAME.outer if there is an outer factor.
func (r *Result) Tensors() []arrays.Tensor {
	list := []arrays.Tensor{
		{Name: r.Name, DType: r.Cast.DType, Shape: []int{r.Rows, r.Cols}, Data: r.Codes, Block: r.Block.String()},
		{Name: r.Name + ".scale_inv", DType: r.ScaleDType, Shape: []int{r.ScaleRows, r.ScaleCols}, Data: r.Scale},
	}
	if r.Cast.Scale.Outer {
		list = append(list, arrays.Tensor{Name: r.Name + ".outer", DType: fp8.F32, Shape: []int{1}, Data: fp8.AppendFloats(nil, r.Outer)})
	}
	return list
}

// Bits returns the bits per element, scales included, with codes and scales stored without
// gaps.
func (r *Result) Bits() float64 {
	bits := r.Rows*r.Cols*r.Cast.DType.Format().Bits + r.ScaleRows*r.ScaleCols*r.ScaleDType.Format().Bits
	if r.Cast.Scale.Outer {
		bits += fp8.F32.Format().Bits
	}
	return float64(bits) / float64(r.Rows*r.Cols)
}
