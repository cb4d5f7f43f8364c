package conformance

import (
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
)

// attentionShape is a batch of sequences with grouped heads.
type attentionShape struct{ batch, queries, keys, heads, kvHeads, headDim int }

var attentionShapes = []attentionShape{
	{1, 1, 1, 1, 1, 1},
	{1, 5, 5, 2, 2, 4},
	{2, 9, 9, 4, 2, 8},
	{3, 17, 17, 3, 1, 7},
	{1, 40, 40, 2, 1, 16},
}

func (a attentionShape) String() string {
	return fmt.Sprintf("batch%d-%dx%d-heads%d.%d-dim%d", a.batch, a.queries, a.keys, a.heads, a.kvHeads, a.headDim)
}

func (a attentionShape) q() (rows, cols int) { return a.batch * a.queries, a.heads * a.headDim }
func (a attentionShape) k() (rows, cols int) { return a.batch * a.keys, a.kvHeads * a.headDim }

// tolerance is for a softmax, whose exponents contain the scores' errors. A device that
// rounds to BF16 between the two matrix products adds at most 2^-9 relative error for each
// of three roundings: of a score of magnitude 4, of a probability and of the result.
func (a attentionShape) tolerance(s backend.Spec, in fp8.DType) float64 {
	if s.AttentionBF16 && in == fp8.BF16 {
		return 6 * 0x1p-9
	}
	return 4 * summed(a.keys+a.headDim)
}

func (s *suite) attention() {
	for _, a := range attentionShapes {
		for _, in := range wideFormats {
			s.addAttention(a, in, "f32", "attention/%s/%s", a, in)
			s.addAttentionGrad(a, in, "f32", "attentiongrad/%s/%s", a, in)
		}
	}
	for _, style := range []string{"bf16", "f16", "fp8", "stochastic", "precision", "view"} {
		s.addAttention(attentionShapes[2], fp8.BF16, style, "attention/%s", style)
		s.addAttentionGrad(attentionShapes[2], fp8.BF16, style, "attentiongrad/%s", style)
	}
	// Decoding: the queries are at a position inside a longer cache.
	for _, position := range []int32{0, 6, 10} {
		s.add(func(b *fixture) {
			a := attentionShape{2, 3, 13, 4, 2, 8}
			b.step.Position = position
			op := b.newAttention(a, fp8.BF16, "f32")
			op.Control = b.control()
			b.p.Add(op)
		}, "attention/cache/position%d", position)
	}
	// Scores that overflow exp unless the maximum is subtracted.
	s.add(func(b *fixture) {
		a := attentionShapes[2]
		op := b.newAttention(a, fp8.F32, "f32")
		for i := range b.values[op.Q] {
			b.values[op.Q][i] *= 60
		}
		b.tolerance[op.Out[0].Out] *= 200 // the magnitude of the scores
		b.p.Add(op)
	}, "attention/outliers")
	s.add(func(b *fixture) {
		a := attentionShapes[2]
		op := b.newAttention(a, fp8.BF16, "view")
		rows, cols := a.k()
		op.K, op.V = b.gapped("k.gap", fp8.BF16, rows, cols), b.gapped("v.gap", fp8.BF16, rows, cols)
		rows, cols = a.q()
		op.Q = b.gapped("q.gap", fp8.BF16, rows, cols)
		op.LSE = nil
		b.p.Add(op)
	}, "attention/views")
}

func (b *fixture) newAttention(a attentionShape, in fp8.DType, style string) *backend.Attention {
	rows, cols := a.q()
	keyRows, keyCols := a.k()
	tolerance := a.tolerance(b.spec, in)
	return &backend.Attention{
		Q: b.normal("q", in, rows, cols), K: b.normal("k", in, keyRows, keyCols), V: b.normal("v", in, keyRows, keyCols),
		Out: b.casts(style, "out", rows, cols, tolerance), LSE: b.result("lse", fp8.F32, tolerance, a.batch*a.heads, a.queries),
		Batch: a.batch, HeadDim: a.headDim,
	}
}

func (s *suite) addAttention(a attentionShape, in fp8.DType, style, format string, args ...any) {
	s.add(func(b *fixture) { b.p.Add(b.newAttention(a, in, style)) }, format, args...)
}

func (s *suite) addAttentionGrad(a attentionShape, in fp8.DType, style, format string, args ...any) {
	s.add(func(b *fixture) {
		rows, cols := a.q()
		keyRows, keyCols := a.k()
		tolerance := a.tolerance(b.spec, in)
		// The gradient's equations hold for any LSE, not only that of a forward. A large
		// LSE keeps the probabilities small.
		lse := b.draw(rows*a.heads, 0.3)
		for i := range lse {
			lse[i] += 1 + math.Log(float64(a.keys))
		}
		q, k, v := b.normal("q", in, rows, cols), b.normal("k", in, keyRows, keyCols), b.normal("v", in, keyRows, keyCols)
		b.p.Add(&backend.AttentionGrad{
			DOut: b.normal("dout", in, rows, cols), Q: q, K: k, V: v,
			O:   b.given("o", in, a.output(b.stored(q), b.stored(k), b.stored(v), lse), rows, cols),
			LSE: b.given("lse", fp8.F32, lse, a.batch*a.heads, a.queries),
			DQ:  b.casts(style, "dq", rows, cols, tolerance), DK: b.casts(style, "dk", keyRows, keyCols, tolerance),
			DV:    b.casts(style, "dv", keyRows, keyCols, tolerance),
			Batch: a.batch, HeadDim: a.headDim,
		})
	}, format, args...)
}

// output returns Σ P·V for the probabilities P that lse gives. Then DOut·O equals
// Σ P·(DOut·V), and a backward may compute either.
func (a attentionShape) output(q, k, v, lse []float64) []float64 {
	out := make([]float64, len(q))
	width, keyWidth := a.heads*a.headDim, a.kvHeads*a.headDim
	for s := range a.batch {
		for h := range a.heads {
			for i := range a.queries {
				query := (s*a.queries+i)*width + h*a.headDim
				for j := range i + 1 {
					key := (s*a.keys+j)*keyWidth + h/(a.heads/a.kvHeads)*a.headDim
					score := 0.0
					for d := range a.headDim {
						score += q[query+d] * k[key+d]
					}
					p := math.Exp(score/math.Sqrt(float64(a.headDim)) - lse[(s*a.heads+h)*a.queries+i])
					for d := range a.headDim {
						out[query+d] += p * v[key+d]
					}
				}
			}
		}
	}
	return out
}

// stored returns a variable's values, rounded to its format.
func (b *fixture) stored(t *backend.Tensor) []float64 {
	values := make([]float64, len(b.values[t]))
	for i, x := range b.values[t] {
		values[i] = float64(t.DType.Float32(t.DType.Nearest(float32(x), fp8.Saturate)))
	}
	return values
}
