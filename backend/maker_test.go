package backend_test

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// maker declares variables on the fly: f is F32, b BF16, i I32, q E4M3 with a
// scale, h F16.
type maker struct {
	vars *backend.Vars
	n    int
}

func (m *maker) tensor(d fp8.DType, shape ...int) *backend.Tensor {
	m.n++
	return m.vars.Tensor(backend.Stash, fmt.Sprintf("t%d", m.n), d, shape...)
}

func (m *maker) f(shape ...int) *backend.Tensor { return m.tensor(fp8.F32, shape...) }
func (m *maker) b(shape ...int) *backend.Tensor { return m.tensor(fp8.BF16, shape...) }
func (m *maker) h(shape ...int) *backend.Tensor { return m.tensor(fp8.F16, shape...) }
func (m *maker) i(shape ...int) *backend.Tensor { return m.tensor(fp8.I32, shape...) }
func (m *maker) q(shape ...int) *backend.Tensor { return m.of(fp8.E4M3, shape...) }

// of declares a tensor in a quantized format.
func (m *maker) of(d fp8.DType, shape ...int) *backend.Tensor {
	t := m.tensor(d, shape...)
	t.Scale = m.f(1)
	return t
}

// scaled declares F32 with a scale, which few ops read.
func (m *maker) scaled(shape ...int) *backend.Tensor {
	t := m.f(shape...)
	t.Scale = m.f(1)
	return t
}

// blocked declares E4M3 with block scales.
func (m *maker) blocked(block backend.ScaleBlock, rows, cols int) *backend.Tensor {
	t := m.tensor(fp8.E4M3, rows, cols)
	t.Scale, t.Block = m.f(block.ScaleShape(rows, cols)), block
	return t
}

func (m *maker) control() *backend.Tensor { return m.i(backend.ControlWords) }

func to(t *backend.Tensor) []backend.Cast { return []backend.Cast{{Out: t}} }

func (m *maker) adamW() *backend.AdamW {
	one := func(t *backend.Tensor) []*backend.Tensor { return []*backend.Tensor{t} }
	return &backend.AdamW{
		Grad: one(m.f(6)), Master: one(m.f(6)), M1: one(m.f(6)), M2: one(m.f(6)),
		MasterScale: one(nil), M1Scale: one(nil), M2Scale: one(nil),
		Control: m.control(), Step: m.i(1), Coef: m.f(1), Skip: m.i(1), Amaxes: m.f(3),
		Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
	}
}

func (m *maker) smoothScale(margin int) *backend.SmoothScale {
	return &backend.SmoothScale{SmoothMax: m.f(3), ChannelMax: m.f(3), WeightMax: m.f(3), C: m.f(3), InvC: m.f(3), Margin: margin}
}

// byBlock returns a cast that computes block scales.
func (m *maker) byBlock(block backend.ScaleBlock, rows, cols int) backend.Cast {
	out := m.blocked(block, rows, cols)
	return backend.Cast{Out: out, ScaleInv: out.Scale, Limit: 448}
}

// spoiled returns a Quantize of t1 to t2 with per-row scales t3, in which f breaks a rule.
func spoiled(f func(m *maker, c *backend.Cast)) func(m *maker) backend.Op {
	return func(m *maker) backend.Op {
		x, c := m.f(2, 3), m.byBlock(backend.PerRow, 2, 3)
		f(m, &c)
		return &backend.Quantize{X: x, Out: []backend.Cast{c}}
	}
}
