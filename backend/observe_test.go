package backend_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
)

// execute loads p on the reference backend.
func execute(t *testing.T, p *backend.Program) (*ref.Backend, backend.Executable) {
	b := ref.Open(nil, ref.Rounded)
	list, err := b.Load(p)
	require.NoError(t, err)
	return b, list[0]
}

func TestFindNonFinite(t *testing.T) {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p")
	x, ids, out := m.b(4), m.i(1), m.f(4)
	half := p.Scope("a").Temp("half", fp8.F16, 4)
	half.Scale = m.f(1)
	large, inf := p.Scope("b").Temp("large", fp8.F32, 4), p.Scope("c").Temp("inf", fp8.BF16, 4)
	p.Scope("a").Add(&backend.Quantize{X: x, Out: to(half)}) // F16 with a scale saturates
	p.Scope("b").Add(&backend.Fill{Out: large, Value: math.MaxFloat32})
	p.Scope("c").Add(&backend.Add{A: large, B: x, Out: to(inf)}) // rounds up to infinity in BF16
	p.Scope("d").Add(&backend.Embed{Table: inf, IDs: ids, Out: to(out)})
	b, run := execute(t, p)
	require.NoError(t, b.SetValues(x, []float64{1e9, 0, -2e9, 0}))

	found, err := backend.FindNonFinite(context.Background(), run)
	require.NoError(t, err)
	require.Equal(t, "c: add", found.Node.Path())
	require.EqualError(t, found, "c: add is the first op with a non-finite result:"+
		" A b.large:fp32[4] amax 3.4e+38 rms 3.4e+38; B t1:bf16[4] amax 2e+09 rms 1.12e+09; Out[0].Out c.inf:bf16[4] has 0 NaN and 4 Inf of 4")

	// A parameter is NaN before the run.
	require.NoError(t, b.SetValues(x, []float64{0, math.NaN(), 0, 0}))
	found, err = backend.FindNonFinite(context.Background(), run)
	require.NoError(t, err)
	require.Equal(t, "a: quantize", found.Node.Path())
	require.Equal(t, 1, found.Operands[0].NaN)

	clean := m.vars.Program("clean")
	clean.Add(&backend.Fill{Out: out, Value: 1})
	_, run = execute(t, clean)
	found, err = backend.FindNonFinite(context.Background(), run)
	require.NoError(t, err)
	require.Nil(t, found)

	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = backend.FindNonFinite(cancelled, run)
	require.ErrorIs(t, err, context.Canceled)
}
