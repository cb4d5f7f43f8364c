package ref

import (
	"math"

	"octet/backend"
)

// heads calls visit for each query of each sequence and head, with the offset of the
// query in Q and Out, the offset in K and V of the first key that it sees, the number of
// keys that it sees, and its index in LSE. starts holds the index of that first key in its
// sequence for every query; nil: all 0.
func heads(q, k *backend.Tensor, batch, headDim, position int, starts []float64, visit func(query, key, seen, lse int)) {
	queries, keys := q.Rows()/batch, k.Rows()/batch
	count := q.Cols() / headDim
	sharing := q.Cols() / k.Cols() // query heads per key head
	for s := range batch {
		for h := range count {
			for i := range queries {
				start := 0
				if starts != nil {
					start = max(0, min(int(starts[s*queries+i]), i))
				}
				visit((s*queries+i)*q.Cols()+h*headDim, (s*keys+start)*k.Cols()+h/sharing*headDim,
					min(position+i+1, keys)-start, (s*count+h)*queries+i)
			}
		}
	}
}

var _ = implement((*Backend).attention)

func (b *Backend) attention(o *backend.Attention) {
	q, k, v := b.read(o.Q), b.read(o.K), b.read(o.V)
	width, scale := o.K.Cols(), 1/math.Sqrt(float64(o.HeadDim))
	position := int(b.control(o.Control).Position)
	out := make([]float64, len(q))
	lse := make([]float64, len(q)/o.HeadDim)
	heads(o.Q, o.K, o.Batch, o.HeadDim, position, b.starts(o.Start), func(query, key, seen, at int) {
		scores := make([]float64, seen)
		top := math.Inf(-1)
		for j := range scores {
			scores[j] = dot(q[query:query+o.HeadDim], k[key+j*width:]) * scale
			top = max(top, scores[j])
		}
		sum := 0.0
		for _, score := range scores {
			sum += math.Exp(score - top)
		}
		lse[at] = top + math.Log(sum)
		for j, score := range scores {
			p := math.Exp(score - lse[at])
			for d := range o.HeadDim {
				out[query+d] += p * v[key+j*width+d]
			}
		}
	})
	b.cast(out, o.Q.Cols(), o.Out)
	if o.LSE != nil {
		b.store(o.LSE, lse)
	}
}

var _ = implement((*Backend).attentionGrad)

func (b *Backend) attentionGrad(o *backend.AttentionGrad) {
	dOut, q, k, v := b.read(o.DOut), b.read(o.Q), b.read(o.K), b.read(o.V)
	out, lse := b.read(o.O), b.read(o.LSE)
	width, scale := o.K.Cols(), 1/math.Sqrt(float64(o.HeadDim))
	dQ, dK, dV := make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	heads(o.Q, o.K, o.Batch, o.HeadDim, 0, b.starts(o.Start), func(query, key, seen, at int) {
		grad := dOut[query : query+o.HeadDim]
		delta := dot(grad, out[query:])
		for j := range seen {
			row := key + j*width
			p := math.Exp(dot(q[query:query+o.HeadDim], k[row:])*scale - lse[at])
			dScore := p * (dot(grad, v[row:]) - delta) * scale
			for d := range o.HeadDim {
				dV[row+d] += p * grad[d]
				dQ[query+d] += dScore * k[row+d]
				dK[row+d] += dScore * q[query+d]
			}
		}
	})
	b.cast(dQ, o.Q.Cols(), o.DQ)
	b.cast(dK, width, o.DK)
	b.cast(dV, width, o.DV)
}

// starts returns the values of an operand Start, nil for nil.
func (b *Backend) starts(t *backend.Tensor) []float64 {
	if t == nil {
		return nil
	}
	return b.read(t)
}

// dot returns the dot product of a and the first len(a) elements of x.
func dot(a, x []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * x[i]
	}
	return sum
}
