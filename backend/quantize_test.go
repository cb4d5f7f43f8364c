package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Sources with block scales are of eight bits; a scale of a tensor is FP32.
func TestQuantizeRefusesSources(t *testing.T) {
	for want, edit := range map[string]func(m *maker, x *backend.Tensor){
		"only formats of eight bits have block scales here": func(_ *maker, x *backend.Tensor) { x.Block = backend.PerRow },
		"X.Scale is": func(m *maker, x *backend.Tensor) { x.Scale = m.tensor(fp8.E8M0, 1) },
	} {
		m := &maker{vars: backend.NewVars()}
		x := m.tensor(fp8.F16, 2, 3)
		edit(m, x)
		p := m.vars.Program("p")
		p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: m.f(2, 3)}}})
		require.ErrorContains(t, p.Err(), want)
	}
}
