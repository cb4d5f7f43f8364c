package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Scales that are known to be 1 are not operands of a GEMM, and change no bit of it. If
// one of the two may change, both are operands.
func TestGEMMWithoutScales(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		s := specOf(t, model)
		for _, c := range []struct {
			a, b   float32 // the known scale; 0: unknown
			kernel string
		}{{1, 1, "gemm"}, {1, 0, "fp8_gemm_f32"}, {0, 1, "fp8_gemm_f32"}, {0, 0, "fp8_gemm_f32"}, {1, 2, "fp8_gemm_f32"}} {
			vars := backend.NewVars()
			values := map[*backend.Tensor][]float64{}
			operand := func(name string, known float32) *backend.Tensor {
				v := vars.Tensor(backend.Stash, name, s.E4M3, 16, 32)
				v.Scale = vars.Tensor(backend.Input, name+".scale", fp8.F32, 1)
				v.Scale.Value = known
				values[v.Scale] = []float64{max(1, float64(known))}
				values[v] = ramp(v.Elems())
				return v
			}
			p := vars.Program("p")
			p.Add(&backend.MatMul{
				A: operand("a", c.a), B: operand("b", c.b), TransB: true,
				Out: vars.Tensor(backend.Stash, "out", fp8.F32, 16, 16),
			})
			agree(t, model, p, values)
			schedule, err := newCutter(s, false, p).cut(p)
			require.NoError(t, err)
			g := schedule.steps[0].unit.graph
			require.Equal(t, c.kernel, g.Nodes[0].GUID, "%v", c)
			require.Len(t, g.Nodes[0].In, map[string]int{"gemm": 2, "fp8_gemm_f32": 4}[c.kernel])
		}
	}
}
