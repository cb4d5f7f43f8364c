//go:build cuda && cgo && linux

package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Full tiles of BF16 take another path through a kernel than the last rows of a matrix.
// Rows in a full tile of one matrix and in the partial tile of another must have the same
// results.
func testTiles(t *testing.T) {
	const cols, fullRows, raggedRows = 512, 64, 40 // 32 rows are a tile
	control := backend.Control{Seed: 5, Step: 2, Token: 1 << 33}
	inputs := []string{"a", "b", "c"}
	names := []string{"add", "norm", "rope", "back", "swiglu", "up", "gate", "copy"}
	record := func(rows int) func(v *backend.Vars, p *backend.Program) {
		return func(v *backend.Vars, p *backend.Program) {
			ctl, one := v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords), v.Tensor(backend.Stash, "one", fp8.F32, 1)
			vector := v.Tensor(backend.Stash, "vector", fp8.F32, cols)
			var x []*backend.Tensor
			for _, name := range inputs {
				x = append(x, v.Tensor(backend.Stash, name, fp8.BF16, rows, cols))
			}
			out := func(name string) []backend.Cast {
				wide := v.Tensor(backend.Stash, name+".bf16", fp8.BF16, rows, cols)
				codes, transposed := v.Tensor(backend.Stash, name, fp8.E5M2, rows, cols), v.Tensor(backend.Stash, name+".t", fp8.E5M2, cols, rows)
				codes.Scale, transposed.Scale = one, one
				random := backend.Cast{Out: codes, Scale: one, Control: ctl, Rounding: fp8.Stochastic, Tokens: true, Stream: name}
				again := random
				again.Out, again.Transpose = transposed, true
				return []backend.Cast{{Out: wide, Amax: v.Tensor(backend.Stash, name+".amax", fp8.F32, 1)}, random, again}
			}
			p.Add(&backend.Add{A: x[0], B: x[1], Out: out("add")})
			p.Add(&backend.RMSNorm{X: x[0], Gain: vector, Out: out("norm"), Eps: 1e-5})
			p.Add(&backend.Rope{X: x[0], Out: out("rope"), Seq: rows, HeadDim: 128, Theta: 1e4})
			p.Add(&backend.Rope{X: x[1], Out: out("back"), Seq: rows, HeadDim: 128, Theta: 1e4, Inverse: true})
			p.Add(&backend.SwiGLU{Up: x[0], Gate: x[1], InvC: vector, Out: out("swiglu")})
			p.Add(&backend.SwiGLUGrad{DOut: x[2], Up: x[0], Gate: x[1], InvC: vector, DUp: out("up"), DGate: out("gate")})
			p.Add(&backend.Quantize{X: x[0], ColScale: vector, Out: out("copy")})
		}
	}
	run := func(rows int) *side {
		s := open(t, "cuda", record(rows))
		rng := rand.New(rand.NewPCG(3, 1))
		for _, name := range inputs {
			s.write(name, normal(rng, fullRows*cols)[:2*rows*cols])
		}
		var vector []byte
		for range cols {
			vector = binary.LittleEndian.AppendUint32(vector, math.Float32bits(1+rng.Float32()))
		}
		s.write("vector", vector)
		s.write("one", binary.LittleEndian.AppendUint32(nil, math.Float32bits(1)))
		s.write("step.control", control.AppendTo(nil))
		require.NoError(t, s.run.Run(t.Context()))
		return s
	}
	full, ragged := run(fullRows), run(raggedRows)
	for _, name := range names {
		wide, codes, transposed := full.read(name+".bf16"), full.read(name), full.read(name+".t")
		require.Equal(t, ragged.read(name+".bf16"), wide[:2*raggedRows*cols], name)
		require.Equal(t, ragged.read(name), codes[:raggedRows*cols], name)
		amax := float32(0)
		for i := range fullRows * cols {
			require.Equal(t, codes[i], transposed[i%cols*fullRows+i/cols], "%s: element %d and its copy", name, i)
			amax = fp8.MaxAmax(amax, fp8.BF16.Float32(code(fp8.BF16, wide, i)))
		}
		// The amax is of values before the cast, which rounds by half a step of 1/128 at
		// most.
		require.InEpsilon(t, amax, math.Float32frombits(code(fp8.F32, full.read(name+".amax"), 0)), 1./256, name)
	}
}
