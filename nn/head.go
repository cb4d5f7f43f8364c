package nn

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// headElems bounds the logits of one chunk of tokens, in elements: 67 MB of FP32
// logits and half of that for their BF16 gradient. Logits are the largest tensor
// of a small model with a large vocabulary (1,024 × 50,304 in FP32 is 206 MB),
// so the head computes logits, loss, gradient and both backward GEMMs of one
// chunk before the next chunk. Every chunk also reads and writes the whole
// gradient of the weight, 155 MB for 50,304 × 768: with fewer than some 200
// tokens that takes longer than the GEMM itself. A device whose ratio of GEMM
// throughput to memory bandwidth is higher than a CPU's asks for larger chunks
// (backend.Spec, HeadTokens). Tests lower the bound.
var headElems = 1 << 24

// Head is the linear layer from the hidden state to the logits, in the compute format, with
// the cross-entropy.
type Head struct {
	*Linear
	input *Slot // output of the final norm
	tied  bool  // the weight is an embedding's
}

// Head declares a head for a vocabulary, padded to a multiple of 16 rows.
// Its parameter is scope + ".weight". The rows of the built-in recipes leave the compute
// format to a head whose scope is lm_head.
func (b *Base) Head(scope string, vocab, dim int, std float64) *Head {
	w := b.param(scope+".weight", false, std, padded(vocab), dim)
	w.Rows = vocab
	return b.newHead(scope, w, nil)
}

// TiedHead declares a head whose weight is an embedding's table.
func (b *Base) TiedHead(scope string, e *Embedding) *Head { return b.newHead(scope, e.weight, e) }

func (b *Base) newHead(scope string, w *Param, tied *Embedding) *Head {
	h := &Head{Linear: b.resolve(recipe.Layer{Scope: scope, Head: true}), tied: tied != nil}
	h.weight = w
	b.linears = append(b.linears, h.Linear)
	b.heads = append(b.heads, h)
	b.cacheWeights(h.Linear)
	for _, e := range b.embeddings {
		if e == tied {
			b.declareTable(e, h)
		} else {
			b.declareTable(e, nil)
		}
	}
	h.input = b.Slot(scope+".input", h.Inputs()...)
	return h
}

// Input returns the slot that the head reads.
func (h *Head) Input() *Slot { return h.input }

// check reports a recipe whose rows match the head.
func (h *Head) check(r recipe.Recipe) error {
	for _, cast := range slices.Concat(h.Inputs(), h.Grads(), h.weights()) {
		if cast.DType != r.Compute {
			return fmt.Errorf("recipe %s: %s in %s: the head's GEMMs run in %s; drop the rows that match %[2]s", r.Name, h.Scope, cast.DType, r.Compute)
		}
	}
	return nil
}

// Logits appends the logits of every position: out is F32 [tokens, padded vocabulary].
func (h *Head) Logits(p *Pass, x *Value, out *backend.Tensor) {
	p.named(h.Scope).Add(&backend.MatMul{
		A: x.As(h.fprop.a), B: h.cachedAs(h.fprop.b), TransB: true,
		Out: out, Accum: backend.Fast,
	})
}

// headRows returns the number of tokens in a chunk. Chunks are about equal and a
// multiple of 16, since it is the K of the head's wgrad. A chunk may hold minTokens
// even where headElems allows fewer.
func headRows(tokens, vocab, minTokens int) int {
	limit := max(16, headElems/vocab/16*16, minTokens)
	chunks := (tokens + limit - 1) / limit
	share := (tokens + chunks - 1) / chunks
	return min(tokens, (share+15)/16*16)
}

// Loss appends the logits and cross-entropy of x, the final norm's output, and, with
// grads, the head's backward. It returns the token losses F32 [tokens] and dx, the gradient
// of x.
func (h *Head) Loss(p *Pass, in *Value, targets *backend.Tensor, grads bool) (losses, dx *backend.Tensor) {
	tokens, vocab := p.Tokens(), h.weight.Shape[0]
	q := p.At(h.Scope)
	losses = q.Temp("loss", fp8.F32, tokens)
	x, w := in.As(h.fprop.a), h.cachedAs(h.fprop.b)
	if grads {
		dx = q.temp("input.grad", tokens, h.weight.Cols())
	}
	for from, size := 0, headRows(tokens, vocab, p.headTokens); from < tokens; from += size {
		rows := min(size, tokens-from)
		chunk := q.At(fmt.Sprintf("%s.tokens%d", h.Scope, from))
		logits := chunk.Temp("logits", fp8.F32, rows, vocab)
		q.Add(&backend.MatMul{A: x.RowRange(from, rows), B: w, TransB: true, Out: logits, Accum: backend.Fast})
		loss := &backend.CrossEntropy{
			Logits: logits, Targets: targets.Slice(fmt.Sprintf("targets[%d:]", from), from, rows),
			Loss: losses.Slice(fmt.Sprintf("loss[%d:]", from), from, rows), Valid: h.weight.Rows,
		}
		if !grads {
			q.Add(loss)
			continue
		}
		dy := chunk.temp("logits.grad", rows, vocab)
		loss.Control, loss.LossScale, loss.DLogits = p.Control, p.LossScale, dy
		q.Add(loss)
		b := q.Backward()
		b.Add(&backend.MatMul{A: dy, B: w, Out: dx.RowRange(from, rows)})
		b.Add(&backend.MatMul{
			A: dy, B: x.RowRange(from, rows), TransA: true,
			Out: h.weight.Grad, Accumulate: from > 0 || !p.First,
		})
	}
	if grads && !h.tied {
		q.Backward().complete(h.weight)
	}
	return losses, dx
}
