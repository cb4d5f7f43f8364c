package ref

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// custom calls a function as its Reference.
type custom struct {
	backend.Custom
	X *backend.Tensor `op:"in"`
	Y *backend.Tensor `op:"out"`
}

var reference func(o *custom, a backend.Arguments)

func (o *custom) Check(*backend.Check)          {}
func (o *custom) Reference(a backend.Arguments) { reference(o, a) }

func TestReferenceUsesItsOperandsAlone(t *testing.T) {
	vars := backend.NewVars()
	x, y := vars.Tensor(backend.Input, "x", fp8.E4M3, 4), vars.Tensor(backend.Output, "y", fp8.BF16, 4)
	other := vars.Tensor(backend.Output, "other", fp8.F32, 4)
	x.Scale = vars.Tensor(backend.Input, "scale", fp8.F32, 1)
	p := vars.Program("p")
	p.Add(&custom{X: x, Y: y})
	b := Open(nil, Rounded)
	run, err := backend.Load(b, p)
	require.NoError(t, err)
	require.NoError(t, b.SetValues(x, []float64{1, 2, -3, 4}))
	require.NoError(t, b.SetValues(x.Scale, []float64{0.5}))

	for message, f := range map[string]func(o *custom, a backend.Arguments){
		"custom: Reference reads other:fp32[4], which is not an operand":  func(_ *custom, a backend.Arguments) { a.Read(other) },
		"custom: Reference reads y:bf16[4], which is not an operand":      func(o *custom, a backend.Arguments) { a.Read(o.Y) },
		"custom: Reference writes x:e4m3[4], which is not an operand":     func(o *custom, a backend.Arguments) { a.Store(o.X, make([]float64, 4)) },
		"custom: Reference writes other:fp32[4], which is not an operand": func(_ *custom, a backend.Arguments) { a.Cast([]backend.Cast{{Out: other}}, make([]float64, 4), 4) },
		"custom: Reference stores 3 values in y:bf16[4]":                  func(o *custom, a backend.Arguments) { a.Store(o.Y, make([]float64, 3)) },
	} {
		reference = f
		require.ErrorContains(t, run[0].Run(t.Context()), message)
	}

	reference = func(o *custom, a backend.Arguments) {
		values := a.Read(o.X)
		values[0] += 0x1p-12 // rounded away in BF16
		a.Store(o.Y, values)
	}
	require.NoError(t, run[0].Run(t.Context()))
	got, err := b.Values(y)
	require.NoError(t, err)
	require.Equal(t, []float64{0.5, 1, -1.5, 2}, got)
}
