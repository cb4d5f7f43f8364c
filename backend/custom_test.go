package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// times is Out = Factor·X.
type times struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`

	Factor float32
}

func (o *times) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.That(o.Factor != 0, "Factor is 0")
	c.Casts("Out", o.Out, o.X.Rows(), o.X.Cols())
}

func (o *times) Reference(a backend.Arguments) {
	y := a.Read(o.X)
	for i := range y {
		y[i] *= float64(o.Factor)
	}
	a.Cast(o.Out, y, o.X.Cols())
}

func (o *times) FLOPs() int64 { return int64(o.X.Elems()) }

// looped is an op from x to y with a loop and a formula that tests set.
type looped struct {
	backend.Custom
	X *backend.Tensor `op:"in"`
	Y *backend.Tensor `op:"out"`
}

var testLoop func(o *looped) backend.Loop

func (o *looped) Check(*backend.Check)        {}
func (o *looped) Reference(backend.Arguments) {}
func (o *looped) Loop() backend.Loop          { return testLoop(o) }

// record returns a program with one op of an 8×4 input x and an 8×4 temp y.
func record(op func(x, y *backend.Tensor) backend.Op) *backend.Program {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Input, "x", fp8.F32, 8, 4)
	p := vars.Program("p")
	p.Add(op(x, p.Temp("y", fp8.F32, 8, 4)))
	return p
}

func TestCustomOpInAProgram(t *testing.T) {
	p := record(func(x, y *backend.Tensor) backend.Op { return &times{X: x, Out: to(y), Factor: 3} })
	require.NoError(t, p.Err())
	n := p.Nodes()[0]
	require.Equal(t, "backend_test.times", n.Path())
	require.Equal(t, "backend_test.times", backend.OpKind(n))
	require.Equal(t, "- fwd octet/backend_test.times X=x:fp32[8, 4] Out[0].Out:=y:fp32[8, 4] Factor=3", n.String())
	require.Equal(t, backend.Cost{FLOPs: 32, Bytes: 256}, n.Cost())
}

// Passes over programs treat custom ops like others. In the recomputed and unfused
// program, ops compute the same bits.
func TestPassesOverCustomOps(t *testing.T) {
	vars := backend.NewVars()
	x, scale := vars.Tensor(backend.Input, "x", fp8.F32, 8, 4), vars.Tensor(backend.State, "scale", fp8.F32, 1)
	out := vars.Tensor(backend.Output, "out", fp8.E4M3, 8, 4)
	out.Scale = scale
	p := vars.Program("p")
	y := p.Scope("a").Temp("y", fp8.BF16, 8, 4)
	z := p.Scope("b").Temp("z", fp8.BF16, 8, 4)
	p.Scope("a").Add(&times{X: x, Out: to(y), Factor: 3})
	p.Scope("b").Add(&times{X: y, Out: to(z), Factor: -0.5})
	p.Scope("b").Phase(backend.Backward).Add(&times{X: y, Out: []backend.Cast{{Out: out, Scale: scale}}, Factor: 7})
	require.NoError(t, p.Err())
	recomputed, err := backend.RecomputeForward(p, func(n *backend.Node) string {
		return map[bool]string{true: "all"}[n.Phase == backend.Forward]
	})
	require.NoError(t, err)
	require.Len(t, recomputed.Nodes(), 4)
	unfused, err := backend.Unfuse(recomputed, func(backend.Op) bool { return false })
	require.NoError(t, err)
	require.Len(t, unfused.Nodes(), 5)
	require.Equal(t, float32(7), unfused.Nodes()[3].Op.(*times).Factor)

	for _, program := range []*backend.Program{p, recomputed, unfused} {
		b, run := execute(t, program)
		values := make([]float64, 32)
		for i := range values {
			values[i] = float64(i) - 15.5
		}
		require.NoError(t, b.SetValues(x, values))
		require.NoError(t, b.SetValues(scale, []float64{0.5}))
		require.NoError(t, run.Run(t.Context()))
		got, err := b.Values(out)
		require.NoError(t, err)
		for i, v := range values {
			// 21·v·scale in E4M3; 3·v is exact in BF16.
			require.Equal(t, float64(fp8.E4M3.Float32(fp8.E4M3.Nearest(float32(10.5*v), fp8.Saturate))), got[i])
		}
	}
}

func TestHashIncludesCUDASource(t *testing.T) {
	dump := func(source string) (text, hash string) {
		testLoop = func(o *looped) backend.Loop {
			return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{to(o.Y)}, F: func(_, _ [][]float32) {}, CUDA: source}
		}
		p := record(func(x, y *backend.Tensor) backend.Op { return &looped{X: x, Y: y} })
		require.NoError(t, p.Err())
		return p.Nodes()[0].String(), p.Hash()
	}
	none, h0 := dump("")
	require.NotContains(t, none, "CUDA")
	text, h1 := dump("one")
	require.Contains(t, text, none+" CUDA=7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed")
	_, h2 := dump("two")
	require.NotEqual(t, h0, h1)
	require.NotEqual(t, h1, h2)
}

type noMethods struct{ backend.Custom }

type (
	unexportedField struct {
		backend.Custom
		x *backend.Tensor `op:"in"`
	}
	untaggedField struct {
		backend.Custom
		X *backend.Tensor
	}
	functionField struct {
		backend.Custom
		F func()
	}
	noFlag struct {
		backend.Custom
		X *backend.Tensor `op:"out,inout=Accumulate"`
	}
	pointed struct{ *backend.Custom }
)

func TestInvalidCustomOps(t *testing.T) {
	for message, op := range map[string]backend.Op{
		"without the methods of backend.CustomOp":  &noMethods{},
		"field x is not exported":                  &unexportedField{x: nil},
		"field X has the tag op:\"\", expected in": &untaggedField{},
		"field F is a func()":                      &functionField{},
		"Accumulate is not a boolean field":        &noFlag{},
		"expected a pointer to a struct":           pointed{&backend.Custom{}},
		"field Custom is a *backend.Custom":        &pointed{&backend.Custom{}},
		"operand X is missing":                     &times{},
	} {
		p := backend.NewVars().Program("p")
		p.Add(op)
		require.ErrorContains(t, p.Err(), message)
	}
	p := record(func(x, y *backend.Tensor) backend.Op { return &times{X: x, Out: to(y)} })
	require.EqualError(t, p.Err(), "backend_test.times: Factor is 0")
}

func TestInvalidLoops(t *testing.T) {
	f := func(_, _ [][]float32) {}
	list := func(t ...*backend.Tensor) []*backend.Tensor { return t }
	casts := func(t *backend.Tensor) [][]backend.Cast { return [][]backend.Cast{to(t)} }
	for message, loop := range map[string]func(o *looped) backend.Loop{
		"Loop.F is nil":                func(o *looped) backend.Loop { return backend.Loop{In: list(o.X), Out: casts(o.Y)} },
		"Loop.Out is empty":            func(o *looped) backend.Loop { return backend.Loop{In: list(o.X), F: f} },
		"Loop.Out[0] has no cast":      func(o *looped) backend.Loop { return backend.Loop{Out: [][]backend.Cast{nil}, F: f} },
		"Loop.Out[0][0] is not stored": func(o *looped) backend.Loop { return backend.Loop{Out: casts(nil), F: f} },
		"Loop.In[0] is not an operand": func(o *looped) backend.Loop { return backend.Loop{In: list(o.Y), Out: casts(o.Y), F: f} },
		"expected 8 rows or one": func(o *looped) backend.Loop {
			o.X.Shape = []int{4, 8}
			return backend.Loop{In: list(o.X), Out: casts(o.Y), F: f}
		},
		"expected 4 columns": func(o *looped) backend.Loop {
			o.X.Shape = []int{8, 3}
			return backend.Loop{In: list(o.X), Out: casts(o.Y), F: f}
		},
		"Loop.In[0] is x:i32[8, 4]": func(o *looped) backend.Loop {
			o.X.DType = fp8.I32
			return backend.Loop{In: list(o.X), Out: casts(o.Y), F: f}
		},
		"use backend.Fill": func(o *looped) backend.Loop {
			return backend.Loop{Out: casts(o.Y), F: f, CUDA: "void f(float *out, const float *in) {}"}
		},
		"CUDA computes single elements": func(o *looped) backend.Loop {
			return backend.Loop{In: list(o.X), Out: casts(o.Y), F: f, WholeRows: true, CUDA: "void f(float *out, const float *in) {}"}
		},
	} {
		testLoop = loop
		p := record(func(x, y *backend.Tensor) backend.Op { return &looped{X: x, Y: y} })
		require.ErrorContains(t, p.Err(), message)
	}
}
