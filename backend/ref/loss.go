package ref

import (
	"fmt"
	"math"
	"slices"

	"octet/backend"
)

var _ = implementErr((*Backend).crossEntropy)

func (b *Backend) crossEntropy(o *backend.CrossEntropy) error {
	logits, cols := b.read(o.Logits), o.Logits.Cols()
	invTokens := float64(b.control(o.Control).InvTokens) * b.readOr(o.LossScale, 1, 1)[0]
	weights := b.readOr(o.Weights, o.Logits.Rows(), 1)
	loss, correct := make([]float64, o.Logits.Rows()), make([]float64, o.Logits.Rows())
	dLogits := make([]float64, len(logits))
	for t, target := range b.ints(o.Targets) {
		if target < 0 {
			continue
		}
		if target >= o.Valid {
			return fmt.Errorf("token %d has the target %d, outside the vocabulary of %d", t, target, o.Valid)
		}
		row := logits[t*cols : t*cols+o.Valid]
		top := math.Inf(-1)
		for _, x := range row {
			top = max(top, x)
		}
		sum := 0.0
		for _, x := range row {
			sum += math.Exp(x - top)
		}
		lse := top + math.Log(sum)
		loss[t] = lse - row[target]
		if slices.Index(row, top) == target && !math.IsNaN(loss[t]) {
			correct[t] = 1
		}
		for j, x := range row {
			dLogits[t*cols+j] = math.Exp(x-lse) * invTokens * weights[t]
		}
		dLogits[t*cols+target] -= invTokens * weights[t]
	}
	b.store(o.Loss, loss)
	if o.DLogits != nil {
		b.store(o.DLogits, dLogits)
	}
	if o.Correct != nil {
		b.store(o.Correct, correct)
	}
	return nil
}

var _ = implement((*Backend).sum)

func (b *Backend) sum(o *backend.Sum) {
	total := 0.0
	if o.Accumulate {
		total = b.read(o.Out)[0]
	}
	for _, x := range b.read(o.X) {
		total += x
	}
	b.store(o.Out, []float64{total})
}
