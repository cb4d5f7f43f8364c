package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestLinearUpdateRefuses(t *testing.T) {
	scaled := func(m *maker, d fp8.DType, n int) *backend.Tensor {
		t := m.tensor(d, n)
		t.Scale = m.f(1)
		return t
	}
	for want, edit := range map[string]func(m *maker, op *backend.LinearUpdate){
		"": func(m *maker, op *backend.LinearUpdate) {
			op.State = scaled(m, fp8.INT8, 6)
			op.StateScale = op.State.Scale
		},
		"X is t6:fp16[6], expected one of":    func(m *maker, op *backend.LinearUpdate) { op.X = m.tensor(fp8.F16, 6) },
		"State is t6:fp32[5], X is t1:fp32[6": func(m *maker, op *backend.LinearUpdate) { op.State = m.f(5) },
		"expected a floating-point format that has NaN, or an integer format": func(m *maker, op *backend.LinearUpdate) {
			op.State = scaled(m, fp8.INT4, 6)
		},
		"F32 and BF16 take no scale, every other format needs one": func(m *maker, op *backend.LinearUpdate) { op.State = m.tensor(fp8.F16, 6) },
		"its scale must be listed as StateScale":                   func(m *maker, op *backend.LinearUpdate) { op.State = scaled(m, fp8.INT8, 6) },
		"is expanded: only AdamW and UpdateStats": func(m *maker, op *backend.LinearUpdate) {
			op.State = m.blocked(backend.ScaleBlock{Rows: 1, Cols: 3}, 1, 6)
			op.State.Scale = m.f(1, 2, fp8.ExpansionElems)
			op.State.Expand, op.StateScale = true, op.State.Scale
		},
		"Next is t6:fp32[5], expected fp32[6]": func(m *maker, op *backend.LinearUpdate) { op.Next = m.f(5) },
		"unknown rounding 7":                   func(m *maker, op *backend.LinearUpdate) { op.Rounding = 7 },
	} {
		m := &maker{vars: backend.NewVars()}
		op := &backend.LinearUpdate{X: m.f(6), State: m.f(6), Control: m.control(), Skip: m.i(1), Coef: m.f(1)}
		edit(m, op)
		p := m.vars.Program("p")
		p.Add(op)
		if want == "" {
			require.NoError(t, p.Err())
		} else {
			require.ErrorContains(t, p.Err(), want)
		}
	}
}
