package backend_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// fused returns a program with SwiGLU's backward into FP8 copies, and with ops that
// Unfuse keeps.
func fused() *backend.Program {
	m := &maker{vars: backend.NewVars()}
	p := m.vars.Program("p").Scope("mlp")
	up, gate, dOut := m.b(4, 6), m.b(4, 6), m.b(4, 6)
	h := p.Temp("h", fp8.BF16, 4, 6)
	dUp, dUpT := p.Temp("dup", fp8.E5M2, 4, 6), p.Temp("dup.t", fp8.E5M2, 6, 4)
	dUp.Scale, dUpT.Scale = m.f(1), m.f(1)
	dGate := p.Temp("dgate", fp8.BF16, 4, 6)
	p.Add(&backend.SwiGLU{Up: up, Gate: gate, Out: to(h)})
	p.Phase(backend.Backward).Add(&backend.SwiGLUGrad{
		DOut: dOut, Up: up, Gate: gate,
		DUp:   []backend.Cast{{Out: dUpT, Transpose: true, Scale: m.f(1)}, {Out: dUp, Amax: m.f(1)}},
		DGate: to(dGate),
	})
	p.Add(&backend.Quantize{X: h, Out: []backend.Cast{{Out: m.q(4, 6)}}})
	return p
}

func TestUnfuseMovesCastsIntoQuantize(t *testing.T) {
	p := fused()
	before := dump(t, p)
	q, err := backend.Unfuse(p, func(backend.Op) bool { return false })
	require.NoError(t, err)
	require.Equal(t, before, dump(t, p), "the original is untouched")
	require.Equal(t, strings.Split(strings.TrimSpace(`
program p
mlp fwd SwiGLU Up=t1:bf16[4, 6] Gate=t2:bf16[4, 6] Out[0].Out:=mlp.h:bf16[4, 6]
mlp bwd SwiGLUGrad DOut=t3:bf16[4, 6] Up=t1:bf16[4, 6] Gate=t2:bf16[4, 6] DUp[0].Out:=mlp.dup.t.f32:fp32[4, 6] DGate[0].Out:=mlp.dgate:bf16[4, 6]
mlp bwd Quantize X=mlp.dup.t.f32:fp32[4, 6] Out[0].Out:=mlp.dup.t:e5m2[6, 4] Out[0].Out.Scale=t5:fp32[1] Out[0].Scale=t6:fp32[1] Out[1].Out:=mlp.dup:e5m2[4, 6] Out[1].Out.Scale=t4:fp32[1] Out[1].Amax<>t7:fp32[1] Out[0].Transpose=true
mlp fwd Quantize X=mlp.h:bf16[4, 6] Out[0].Out:=t8:e4m3[4, 6] Out[0].Out.Scale=t9:fp32[1]
`), "\n"), strings.Split(strings.TrimSpace(dump(t, q)), "\n"))
}

// A cast to BF16 with fewer bits is no plain store: the backend may lack it in other ops.
func TestUnfuseMovesPrecision(t *testing.T) {
	e8m5, err := fp8.ParseDType("e8m5")
	require.NoError(t, err)
	for _, precision := range []fp8.DType{fp8.Invalid, e8m5} {
		m := &maker{vars: backend.NewVars()}
		p := m.vars.Program("p")
		p.Add(&backend.SwiGLU{Up: m.b(4, 6), Gate: m.b(4, 6), Out: []backend.Cast{{Out: m.b(4, 6), Precision: precision}}})
		q, err := backend.Unfuse(p, func(backend.Op) bool { return false })
		require.NoError(t, err)
		require.Equal(t, precision == e8m5, strings.Contains(dump(t, q), "Quantize"), precision)
	}
}

func TestUnfuseKeepsFusedOps(t *testing.T) {
	p := fused()
	q, err := backend.Unfuse(p, func(op backend.Op) bool {
		_, ok := op.(*backend.SwiGLUGrad)
		return ok
	})
	require.NoError(t, err)
	require.Equal(t, dump(t, p), dump(t, q))
}

// Rewrite gives temps unused names, copies lists of casts, and checks the new program.
func TestRewrite(t *testing.T) {
	p := fused()
	before := dump(t, p)
	var made *backend.Tensor
	double := func(r *backend.Rewriter, n *backend.Node) {
		casts := 0
		for c := range backend.Casts(n.Op) {
			require.NotNil(t, c.Out)
			casts++
		}
		op := backend.MapCasts(n.Op, func(casts []backend.Cast) []backend.Cast {
			for _, c := range casts {
				made = r.Temp("mlp.h", c.Out.DType, c.Out.Shape...)
				made.Scale = c.Out.Scale
				c.Out, c.Amax = made, nil
				casts = append(casts, c)
			}
			return casts
		})
		r.Add(n, op)
		doubled := 0
		for range backend.Casts(op) {
			doubled++
		}
		require.Equal(t, 2*casts, doubled)
	}
	q, err := backend.Rewrite(p, double)
	require.NoError(t, err)
	require.Equal(t, before, dump(t, p), "the original is untouched")
	require.Equal(t, "mlp.h#6", made.Name)
	require.Equal(t, "mlp", q.Nodes()[1].Scope)
	require.Equal(t, backend.Backward, q.Nodes()[1].Phase)

	_, err = backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		r.Add(n, n.Op)
		r.Add(n, n.Op)
	})
	require.ErrorContains(t, err, "lowering p: mlp: swiglu: Out[0].Out: temp mlp.h:bf16[4, 6] is written twice")
	broken := backend.NewVars().Program("broken")
	broken.Add(&backend.Fill{})
	_, err = backend.Rewrite(broken, double)
	require.ErrorIs(t, err, broken.Err())
}
