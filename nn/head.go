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

// Head is the linear layer from the hidden state to the logits, with the cross-entropy. The
// gradient of the logits is stored in the compute format and cast from there, chunk by
// chunk.
type Head struct {
	*Linear
	input *Slot // output of the final norm
	grad  *Slot // of a chunk of tokens
	tied  bool  // the weight is an embedding's
}

// Head declares a head for a vocabulary, padded to a multiple of 16 rows.
// Its parameter is scope + ".weight". The rows of most built-in recipes leave the compute
// format to a head whose scope is lm_head.
func (b *Base) Head(scope string, vocab, dim int, std float64) *Head {
	w := b.splitParam(SplitRows, scope+".weight", false, std, b.padded(vocab), dim)
	w.Rows = vocab
	return b.newHead(scope, w, nil)
}

// TiedHead declares a head whose weight is an embedding's table.
func (b *Base) TiedHead(scope string, e *Embedding) *Head { return b.newHead(scope, e.weight, e) }

func (b *Base) newHead(scope string, w *Param, tied *Embedding) *Head {
	h := &Head{Linear: b.resolve(recipe.Layer{Scope: scope, Head: true}, w.Cols()), tied: tied != nil}
	h.weight = w
	w.Head = true
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
	h.input = b.tokenSlot(scope+".input", h.Inputs())
	h.grad = b.gradSlot(h.Linear)
	return h
}

// Input returns the slot that the head reads.
func (h *Head) Input() *Slot { return h.input }

// check reports a recipe with a current scale for the whole gradient of the logits, which
// does not exist at one time.
func (h *Head) check(r recipe.Recipe) error {
	for _, c := range h.Grads() {
		if c.tensorScaled() && (c.Scaling == recipe.Current || c.Scaling == recipe.Direction) {
			return fmt.Errorf("recipe %s: %s: grad in %s: this gradient exists in chunks of tokens only, so it cannot have a current scale for the whole tensor (use granularity row or 1x32 without an outer scale or, in a format with NaN, scaling delayed)", r.Name, h.Scope, c)
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

// last appends the logits after the last token of each sequence: out is F32 [batch, padded
// vocabulary].
func (h *Head) last(p *Pass, x *Value, out *backend.Tensor) {
	for i := range p.Batch {
		p.named(h.Scope).Add(&backend.MatMul{
			A: x.As(h.fprop.a).RowRange((i+1)*p.Seq-1, 1), B: h.cachedAs(h.fprop.b), TransB: true,
			Out: out.RowRange(i, 1), Accum: backend.Fast,
		})
	}
}

// headRows returns the number of tokens in a chunk. Chunks are about equal and a
// multiple of unit. A chunk may hold minTokens even where headElems allows fewer.
func headRows(tokens, vocab, minTokens, unit int) int {
	limit := max(unit, headElems/vocab/unit*unit, minTokens)
	chunks := (tokens + limit - 1) / limit
	share := (tokens + chunks - 1) / chunks
	return min(tokens, (share+unit-1)/unit*unit)
}

// chunkUnit returns what the tokens of a chunk are a multiple of: 16, since they are the K
// of the head's wgrad, and the tokens that share a scale or are rotated together.
func (h *Head) chunkUnit() int {
	unit := 16
	for _, c := range slices.Concat(h.Inputs(), h.Grads()) {
		for _, n := range []int{c.Block.Rows, c.Hadamard.Size} {
			for step := unit; n > 0 && unit%n != 0; {
				unit += step
			}
		}
	}
	return unit
}

// Loss appends the logits and cross-entropy of x, the final norm's output, and, with
// grads, the head's backward. It returns the token losses F32 [tokens] and dx, the gradient
// of x.
func (h *Head) Loss(p *Pass, in *Value, targets *backend.Tensor, grads bool) (losses, dx *backend.Tensor) {
	tokens, vocab := p.Tokens(), h.weight.Part[0]
	q := p.At(h.Scope)
	if losses = p.Losses; losses == nil {
		losses = q.Temp("loss", fp8.F32, tokens)
	}
	x, w := in.As(h.fprop.a), h.cachedAs(h.fprop.b)
	if grads {
		dx = q.temp("input.grad", tokens, h.weight.Cols())
	}
	var sum *backend.Tensor
	var earlier bool
	if grads {
		sum, earlier = q.Backward().openGrad(h.weight)
	}
	for from, size := 0, headRows(tokens, vocab, p.headTokens, h.chunkUnit()); from < tokens; from += size {
		rows := min(size, tokens-from)
		chunk := q.At(fmt.Sprintf("%s.tokens%d", h.Scope, from))
		logits := chunk.Temp("logits", fp8.F32, rows, vocab)
		q.Add(&backend.MatMul{A: x.RowRange(from, rows), B: w, TransB: true, Out: logits, Accum: backend.Fast})
		loss := &backend.CrossEntropy{
			Logits: logits, Targets: targets.Slice(fmt.Sprintf("targets[%d:]", from), from, rows),
			Loss: losses.Slice(fmt.Sprintf("loss[%d:]", from), from, rows), Valid: h.weight.Rows,
		}
		if p.tensor > 1 {
			loss.Control, loss.Split, loss.Stats = p.Control, p.split(), q.softmaxStats(chunk, loss)
		}
		if p.Correct != nil {
			loss.Correct = p.Correct.Slice(fmt.Sprintf("correct[%d:]", from), from, rows)
		}
		if !grads {
			q.Add(loss)
			continue
		}
		dy := chunk.temp("logits.grad", rows, vocab)
		loss.Control, loss.LossScale, loss.DLogits = p.Control, p.LossScale, dy
		if p.Weights != nil {
			loss.Weights = p.Weights.Slice(fmt.Sprintf("weights[%d:]", from), from, rows)
		}
		q.Add(loss)
		b := q.Backward()
		b.root = chunk.Program // each chunk has its own copies
		grad := b.castStored(h.grad, dy)
		b.Add(&backend.MatMul{A: grad.As(h.dgrad.a), B: h.cachedAs(h.dgrad.b), Out: dx.RowRange(from, rows)})
		b.Add(&backend.MatMul{
			A: grad.As(h.wgrad.a), B: in.As(h.wgrad.b).RowRange(from, rows), TransA: true,
			Out: sum, Accumulate: from > 0 || earlier,
		})
	}
	if !grads {
		return losses, nil
	}
	if !h.tied {
		q.Backward().closeGrad(h.weight, sum)
	}
	return losses, q.Backward().scatterTokens(dx)
}

// softmaxStats appends what the loss of a chunk of tokens needs to know of all parts of the vocabulary.
func (p *Pass) softmaxStats(chunk *Pass, loss *backend.CrossEntropy) *backend.Tensor {
	rows := loss.Logits.Rows()
	own := chunk.Temp("softmax", fp8.F32, rows, backend.SoftmaxWords)
	all := chunk.Temp("softmax.parts", fp8.F32, p.tensor*rows, backend.SoftmaxWords)
	p.Add(&backend.SoftmaxStats{Logits: loss.Logits, Targets: loss.Targets, Control: p.Control, Out: own, Valid: loss.Valid, Split: p.split()})
	gather(p.Program, own, all, p.tensorGroup())
	return all
}
