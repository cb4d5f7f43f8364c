package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
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

// headRows returns the number of tokens in a chunk. Chunks are about equal and a
// multiple of 16, since it is the K of the head's wgrad. A chunk may hold minTokens
// even where headElems allows fewer.
func (m *Model) headRows(tokens, minTokens int) int {
	limit := max(16, headElems/m.Config.PaddedVocab()/16*16, minTokens)
	chunks := (tokens + limit - 1) / limit
	share := (tokens + chunks - 1) / chunks
	return min(tokens, (share+15)/16*16)
}

// headLoss appends the logits and cross-entropy of h, the final norm's output,
// and, with grads, the head's backward. It returns the token losses and dh, the
// gradient of h.
func (m *Model) headLoss(p *Pass, h *copySet, targets *backend.Tensor, grads bool) (losses, dh *backend.Tensor) {
	tokens, vocab := p.Tokens(), m.Config.PaddedVocab()
	q := p.at("lm_head")
	losses = q.Temp("loss", fp8.F32, tokens)
	x, w := h.as(m.head.fprop.a), m.head.cachedAs(m.head.fprop.b)
	if grads {
		dh = q.temp("input.grad", tokens, m.Config.Dim)
	}
	for from, size := 0, m.headRows(tokens, p.headTokens); from < tokens; from += size {
		rows := min(size, tokens-from)
		chunk := q.at(fmt.Sprintf("lm_head.tokens%d", from))
		logits := chunk.Temp("logits", fp8.F32, rows, vocab)
		q.Add(&backend.MatMul{A: x.RowRange(from, rows), B: w, TransB: true, Out: logits, Accum: backend.Fast})
		loss := &backend.CrossEntropy{
			Logits: logits, Targets: targets.Slice(fmt.Sprintf("targets[%d:]", from), from, rows),
			Loss: losses.Slice(fmt.Sprintf("loss[%d:]", from), from, rows), Valid: m.Config.Vocab,
		}
		if !grads {
			q.Add(loss)
			continue
		}
		dy := chunk.temp("logits.grad", rows, vocab)
		loss.Control, loss.DLogits = p.Control, dy
		q.Add(loss)
		b := q.backward()
		b.Add(&backend.MatMul{A: dy, B: w, Out: dh.RowRange(from, rows)})
		b.Add(&backend.MatMul{
			A: dy, B: x.RowRange(from, rows), TransA: true,
			Out: m.head.weight.Grad, Accumulate: from > 0 || !p.First,
		})
	}
	if grads && !m.Config.Tied {
		q.backward().complete(m.head.weight)
	}
	return losses, dh
}

// Cache holds the keys and values of all layers: Stash [batch·positions, kv width].
type Cache struct{ K, V []*backend.Tensor }

// NewCache declares a cache for batch sequences of up to positions tokens each.
func (m *Model) NewCache(batch, positions int) *Cache {
	c := &Cache{}
	width := m.Config.KVHeads * m.Config.HeadDim()
	for i := range m.layers {
		for _, list := range []struct {
			name string
			to   *[]*backend.Tensor
		}{{"k", &c.K}, {"v", &c.V}} {
			*list.to = append(*list.to, m.Vars.Tensor(backend.Stash,
				fmt.Sprintf("cache.%s.%d", list.name, i), m.Recipe.Compute, batch*positions, width))
		}
	}
	return c
}

// Prefill appends a pass that only fills the cache, with p.Seq positions from
// Control.Position on. Positions after the prompt get meaningless values;
// decoding overwrites them before it attends to them.
func (m *Model) Prefill(p *Pass, tokens *backend.Tensor) {
	m.layersForward(p, tokens)
}

// Logits appends a pass that fills the cache and writes the logits of every
// position: out is F32 [tokens, padded vocabulary].
func (m *Model) Logits(p *Pass, tokens, out *backend.Tensor) {
	x, _ := m.layersForward(p, tokens)
	h, _ := m.norm.Forward(p, x, m.headIn)
	p.named("lm_head").Add(&backend.MatMul{
		A: h.as(m.head.fprop.a), B: m.head.cachedAs(m.head.fprop.b), TransB: true,
		Out: out, Accum: backend.Fast,
	})
}
