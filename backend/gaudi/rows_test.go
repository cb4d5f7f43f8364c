package gaudi

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

func TestRangesOf(t *testing.T) {
	for _, c := range []struct {
		rows, cols, limit int
		want              []rows
	}{
		{1000, 16, 1000 * 16 * 4, []rows{{0, 1000, true}}},
		{1000, 16, 1000*16*4 - 1, []rows{{0, 512, false}, {512, 488, false}}},
		{1024, 16, 700 * 16 * 4, []rows{{0, 512, false}, {512, 512, false}}},
		{1025, 16, 700 * 16 * 4, []rows{{0, 512, false}, {512, 512, false}, {1024, 1, false}}},
		{600, 16, 1, []rows{{0, 256, false}, {256, 256, false}, {512, 88, false}}}, // the minimum size
		{131072, 11008, maxBytes, []rows{{0, 65536, false}, {65536, 65536, false}}},
	} {
		got := rangesOf(&backend.Tensor{DType: fp8.BF16, Shape: []int{c.rows, c.cols}}, c.limit)
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// Ops that are split for a device with small tensors compute the same bits. Of 600 rows
// of 24, the device of this test holds 256.
func TestOpsInRangesOfRows(t *testing.T) {
	const tokens, ffn, limit = 600, 8, 300 * 8 * 4
	for _, model := range []string{"gaudi2", "gaudi3"} {
		s := specOf(t, model)
		vars := backend.NewVars()
		names := 0
		tensor := func(d fp8.DType, shape ...int) *backend.Tensor {
			names++
			return vars.Tensor(backend.Stash, fmt.Sprint("t", names), d, shape...)
		}
		values := map[*backend.Tensor][]float64{}
		given := func(d fp8.DType, shape ...int) *backend.Tensor {
			v := tensor(d, shape...)
			values[v] = ramp(v.Elems())
			return v
		}
		cast := func(d fp8.DType) backend.Cast {
			c := backend.Cast{Out: tensor(d, tokens, ffn)}
			if d.IsQuantized() {
				c.Out.Scale, c.Scale, c.Amax = tensor(fp8.F32, 1), tensor(fp8.F32, 1), tensor(fp8.F32, 1)
				values[c.Scale], values[c.Amax] = []float64{0x1p-8}, []float64{3}
			}
			return c
		}
		casts := func() []backend.Cast { return []backend.Cast{cast(fp8.BF16), cast(s.E4M3), cast(fp8.E5M2)} }
		up, gate, dOut := given(fp8.BF16, tokens, ffn), given(fp8.BF16, tokens, ffn), given(fp8.BF16, tokens, ffn)
		tokenScale, invC := tensor(fp8.F32, tokens), given(fp8.F32, ffn)

		p := vars.Program("p")
		q := p.Block("layers.0")
		q.Add(&backend.SwiGLU{Up: up, Gate: gate, Out: casts(), InvC: invC})
		q.Add(&backend.SwiGLU{Up: up, Gate: gate, Out: casts(), TokenScale: tokenScale})
		q.Add(&backend.SwiGLUGrad{DOut: dOut, Up: up, Gate: gate, TokenScale: tokenScale, DUp: casts(), DGate: casts()})
		q.Add(&backend.SwiGLUAmax{Up: up, Gate: gate, Out: tensor(fp8.F32, ffn), Seen: given(fp8.F32, ffn)})
		q.Add(&backend.SwiGLUAmax{Up: up, Gate: gate, Out: tensor(fp8.F32, ffn), UpOut: tensor(fp8.F32, ffn), UpSeen: given(fp8.F32, ffn)})
		q.Add(&backend.Activation{X: up, Out: casts()})
		q.Add(&backend.ActivationGrad{DOut: dOut, X: up, DX: casts(), Kind: backend.ReLU})
		q.Add(&backend.Amax{X: up, Out: tensor(fp8.F32, 1)})
		q.Add(&backend.Amax{X: up, Out: tensor(fp8.F32, ffn)})
		q.Add(&backend.Quantize{X: up, RowScale: given(fp8.F32, tokens), Out: casts()})
		require.NoError(t, p.Err())

		results := map[int]map[*backend.Tensor][]byte{}
		for _, limit := range []int{maxBytes, limit} {
			lowered, err := lowerWithin(limit, []*backend.Program{p})
			require.NoError(t, err)
			d, err := interpreterDriver(model).Open("", backend.Options{})
			require.NoError(t, err)
			host := ref.Open(nil, ref.Rounded)
			_, err = host.Load(p)
			require.NoError(t, err)
			runs, err := d.Load(lowered...)
			require.NoError(t, err)
			for v, x := range values {
				raw := make([]byte, v.Bytes())
				require.NoError(t, host.SetValues(v, x))
				require.NoError(t, host.Read(v, raw))
				require.NoError(t, d.Write(v, raw))
			}
			require.NoError(t, runs[0].Run(t.Context()))
			results[limit] = map[*backend.Tensor][]byte{}
			for v := range vars.All() {
				raw := make([]byte, v.Bytes())
				require.NoError(t, d.Read(v, raw))
				results[limit][v] = raw
			}
			want := 10 // ops
			if limit != maxBytes {
				want = 3*want + 5 // plus the reductions of five partial maxima
			}
			require.Len(t, lowered[0].Nodes(), want)
		}
		for v, want := range results[maxBytes] {
			require.Equal(t, want, results[limit][v], "%s: %s", model, v)
		}
	}
}

// castHealth, which one op computes in ranges, counts the same.
func TestCastHealthInRanges(t *testing.T) {
	const n, cols, limit = 600, 8, 300 * 8 * 4
	s := specOf(t, "gaudi2")
	vars := backend.NewVars()
	x, out := vars.Tensor(backend.Stash, "x", fp8.BF16, n, cols), vars.Tensor(backend.Stash, "out", fp8.F32, backend.HealthFields)
	codes := vars.Tensor(backend.Stash, "codes", fp8.E5M2, n, cols) // all 0
	codes.Scale = vars.Tensor(backend.State, "scale", fp8.F32, 1)
	host := ref.Open(nil, ref.Rounded)
	_, err := host.Load(vars.Program("none"))
	require.NoError(t, err)
	require.NoError(t, host.SetValues(x, ramp(n*cols)))
	require.NoError(t, host.SetValues(codes.Scale, []float64{0x1p-13}))
	clipped, flushed, amax, squares, fourth := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, v := range ramp(n * cols) {
		if math.Abs(v) > float64(fp8.E5M2.ClipLimit())*0x1p-13 {
			clipped++
		}
		if v != 0 {
			flushed++
		}
		amax = max(amax, math.Abs(v))
		squares += v * v / (n * cols)
		fourth += v * v * v * v / (n * cols)
	}
	require.Len(t, rangesOf(x, limit), 3)
	nodes := map[int]int{}
	for _, limit := range []int{maxBytes, limit} {
		b := newBuilder(s, func(r *backend.Tensor) (layout, bool) { return layoutOf(r, nil, own(s).align), true })
		b.op, b.limit = &backend.Node{Op: &backend.CastHealth{}}, limit
		require.NoError(t, b.castHealth(&backend.CastHealth{X: x, Codes: codes, Out: out}))
		g, sections, err := b.finish()
		require.NoError(t, err)
		nodes[limit] = len(g.Nodes)
		casts := 0
		for _, node := range g.Nodes {
			if node.GUID == "cast_bf16_to_f32" {
				casts++
			}
		}
		ranges := len(rangesOf(x, limit))
		require.Equal(t, 2*ranges, casts, "the amax pass would keep all %d ranges in FP32 for the second pass", ranges)
		memory := map[*backend.Tensor][]byte{}
		l := &launch{spec: s, g: g, rng: rand.New(rand.NewPCG(1, 2))}
		for _, r := range sections {
			memory[r.root] = make([]byte, r.root.Bytes())
			require.NoError(t, host.Read(r.root, memory[r.root]))
			l.sections = append(l.sections, memory[r.root])
		}
		require.NoError(t, l.run())
		got := l.decode(libsynapse.F32, memory[out])
		require.InDeltaSlice(t, []float64{clipped / (n * cols), flushed / (n * cols), 1, amax, 0x1p-13, 0x1p-13, -13, 0, 0, 0, 0, 1, math.Sqrt(squares), fourth / (squares * squares)}, got, 1e-5)
	}
	require.Greater(t, nodes[limit], nodes[maxBytes])
}

// Sequences of 131,072 tokens are lowered for the known models, whatever the activation.
func TestLongSequences(t *testing.T) {
	for _, c := range []struct{ model, preset, recipe, activation string }{
		{"gaudi2", "llama2-7b", "fp8-smooth", ""},
		{"gaudi3", "llama3-8b", "bf16", "gelu"},
	} {
		long := preset(t, c.preset, 1)
		long.Recipe, long.Data.Seq = c.recipe, 1<<17
		long.Model.Vocab = 256 // a large vocabulary gives many small chunks
		if c.activation != "" {
			long.Model.Activation = c.activation
		}
		_, _, schedules := lowered(t, c.model, long)
		require.NotEmpty(t, schedules)
	}
}

// A kind without a graph is refused, not computed as another one.
func TestUnknownActivation(t *testing.T) {
	d, err := interpreterDriver("gaudi2").Open("", backend.Options{})
	require.NoError(t, err)
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 2, 8)
	op := &backend.Activation{X: x, Out: []backend.Cast{{Out: vars.Tensor(backend.Stash, "y", fp8.F32, 2, 8)}}}
	grad := &backend.ActivationGrad{X: x, DOut: x, DX: op.Out}
	for _, add := range []backend.Op{op, grad} {
		p := vars.Program("p")
		p.Add(add)
		require.NoError(t, p.Err())
		op.Kind, grad.Kind = 9, 9 // after the check of Add
		_, err = d.Load(p)
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.ErrorContains(t, err, "activation 9")
		op.Kind, grad.Kind = 0, 0
	}
}
