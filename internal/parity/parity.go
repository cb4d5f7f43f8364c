// Package parity compares the probabilities that two paths give to the tokens of a text: the
// training path of a model with an inference path, which has other formats, scales or weights.
package parity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/data"
	"octet/infer"
)

// Report says how the distributions of the next token differ. A is the training path, B the other.
type Report struct {
	Tokens  int     // compared
	KL      float64 // mean of KL(A‖B) = Σ p_A·ln(p_A/p_B) over the vocabulary, in nats per token
	KLMax   float64
	Ratio   float64 // mean of |ln(p_B/p_A)| of the tokens of the text, in nats
	Largest Ratio   // the token with the largest
	Same    float64 // share of tokens with the same most likely next token
	LossA   float64 // mean −ln p of the tokens of the text, in nats
	LossB   float64
	// Layers has the differences of the first window, of tensors that both paths have, in order.
	Layers []Difference
}

// Ratio is a token of the text with its probabilities.
type Ratio struct {
	Window int64
	At     int   // the position in the window
	ID     int32 // the token
	A, B   float64
}

// Log returns |ln(B/A)|.
func (r Ratio) Log() float64 { return math.Abs(math.Log(r.B / r.A)) }

// Difference is that of a tensor after the op that wrote it.
type Difference struct {
	Op     string  // as in profiles: "layers.0.mlp.down_proj: MatMul"
	Tensor string  // its name
	Error  float64 // ‖B − A‖ / ‖A‖
}

// Path computes logits, as infer.Path does.
type Path interface {
	Logits(ctx context.Context, ids []int32, observe backend.Observer) ([][]float32, error)
}

var _ Path = (*infer.Path)(nil)

// Compare compares two paths on up to limit windows of seq tokens, spread evenly over a stream.
func Compare(ctx context.Context, a, b Path, stream data.Tokens, seq int, limit int64) (r Report, err error) {
	all := (stream.Len() - 1) / int64(seq)
	if all < 1 {
		return r, fmt.Errorf("%d tokens are too few for a window of %d: give more text, or a smaller --seq", stream.Len(), seq)
	}
	window := make([]int32, seq+1)
	n := min(limit, all)
	for i := range n {
		at := i * all / n
		if err := stream.ReadTokens(window, at*int64(seq)); err != nil {
			return r, err
		}
		var record, compare backend.Observer
		var first trace
		if i == 0 {
			record, compare = each(first.record), each(first.compare)
		}
		before, err := a.Logits(ctx, window[:seq], record)
		if err != nil {
			return r, err
		}
		after, err := b.Logits(ctx, window[:seq], compare)
		if err != nil {
			return r, err
		}
		r.Layers = append(r.Layers, first.differences()...)
		for t := range seq {
			if err := r.add(before[t], after[t], Ratio{Window: at, At: t + 1, ID: window[t+1]}); err != nil {
				return r, err
			}
		}
	}
	tokens := float64(r.Tokens)
	for _, sum := range []*float64{&r.KL, &r.Ratio, &r.Same, &r.LossA, &r.LossB} {
		*sum /= tokens
	}
	return r, nil
}

// add adds the distributions after one token, of logits a and b.
func (r *Report) add(a, b []float32, next Ratio) error {
	sumA, sumB := logSum(a), logSum(b)
	if sumA-sumA != 0 || sumB-sumB != 0 {
		return errors.New("the logits are not finite; octet inspect shows which weights are not finite")
	}
	kl := 0.0
	for i := range a {
		p, q := float64(a[i])-sumA, float64(b[i])-sumB
		kl += math.Exp(p) * (p - q)
	}
	p, q := float64(a[next.ID])-sumA, float64(b[next.ID])-sumB
	next.A, next.B = math.Exp(p), math.Exp(q)
	r.Tokens++
	r.KL += kl
	r.KLMax = max(r.KLMax, kl)
	r.Ratio += math.Abs(q - p)
	r.LossA -= p
	r.LossB -= q
	if r.Tokens == 1 || next.Log() > r.Largest.Log() {
		r.Largest = next
	}
	if slices.Index(a, slices.Max(a)) == slices.Index(b, slices.Max(b)) {
		r.Same++
	}
	return nil
}

// logSum returns ln Σ exp(x).
func logSum(x []float32) float64 {
	top, sum := float64(slices.Max(x)), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}
