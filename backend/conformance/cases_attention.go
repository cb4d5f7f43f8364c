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

// documents are the lengths of the documents of each sequence.
type documents [][]int

// documentCases have documents of one token, ends at the borders of blocks of 32, 64 and 128
// rows and beside them, and sequences of a single document.
var documentCases = []struct {
	attentionShape
	documents
}{
	{attentionShape{2, 3, 3, 1, 1, 8}, documents{{1, 2}, {3}}},
	{attentionShape{2, 9, 9, 4, 2, 8}, documents{{1, 1, 3, 4}, {9}}},
	{attentionShape{3, 40, 40, 2, 2, 6}, documents{{32, 8}, {31, 1, 8}, {33, 7}}},
	{attentionShape{2, 300, 300, 2, 1, 8}, documents{{64, 64, 1, 127, 44}, {200, 100}}},
	{attentionShape{1, 420, 420, 3, 3, 4}, documents{{5, 130, 249, 36}}},
}

// starts returns the values of an operand Start.
func (d documents) starts() (list []int) {
	for _, sequence := range d {
		first := 0
		for _, n := range sequence {
			for range n {
				list = append(list, first)
			}
			first += n
		}
	}
	return list
}

// start declares an operand Start; it returns nil without documents.
func (b *fixture) start(d documents) *backend.Tensor {
	if d == nil {
		return nil
	}
	return b.ints("start", d.starts()...)
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
			s.addAttention(a, in, "f32", nil, "attention/%s/%s", a, in)
			s.addAttentionGrad(a, in, "f32", nil, "attentiongrad/%s/%s", a, in)
		}
	}
	for _, d := range documentCases {
		for _, in := range []fp8.DType{fp8.F32, fp8.BF16} {
			s.addAttention(d.attentionShape, in, "f32", d.documents, "attention/documents/%s/%s", d, in)
			s.addAttentionGrad(d.attentionShape, in, "f32", d.documents, "attentiongrad/documents/%s/%s", d, in)
		}
	}
	for _, style := range []string{"bf16", "f16", "fp8", "stochastic", "precision", "view"} {
		s.addAttention(attentionShapes[2], fp8.BF16, style, nil, "attention/%s", style)
		s.addAttentionGrad(attentionShapes[2], fp8.BF16, style, nil, "attentiongrad/%s", style)
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

func (s *suite) addAttention(a attentionShape, in fp8.DType, style string, d documents, format string, args ...any) {
	s.add(func(b *fixture) {
		op := b.newAttention(a, in, style)
		op.Start = b.start(d)
		b.p.Add(op)
	}, format, args...)
}

func (s *suite) addAttentionGrad(a attentionShape, in fp8.DType, style string, d documents, format string, args ...any) {
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
			O:   b.given("o", in, a.output(b.stored(q), b.stored(k), b.stored(v), lse, d), rows, cols),
			LSE: b.given("lse", fp8.F32, lse, a.batch*a.heads, a.queries), Start: b.start(d),
			DQ: b.casts(style, "dq", rows, cols, tolerance), DK: b.casts(style, "dk", keyRows, keyCols, tolerance),
			DV:    b.casts(style, "dv", keyRows, keyCols, tolerance),
			Batch: a.batch, HeadDim: a.headDim,
		})
	}, format, args...)
}

// output returns Σ P·V for the probabilities P that lse gives. Then DOut·O equals
// Σ P·(DOut·V), and a backward may compute either.
func (a attentionShape) output(q, k, v, lse []float64, d documents) []float64 {
	starts := make([]int, a.batch*a.queries)
	copy(starts, d.starts())
	out := make([]float64, len(q))
	width, keyWidth := a.heads*a.headDim, a.kvHeads*a.headDim
	for s := range a.batch {
		for h := range a.heads {
			for i := range a.queries {
				query := (s*a.queries+i)*width + h*a.headDim
				for j := starts[s*a.queries+i]; j <= i; j++ {
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
