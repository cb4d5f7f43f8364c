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
	stats := b.readOr(o.Stats, 0, 0)
	first, _ := b.part(o.Split, o.Control, cols)
	for t, target := range b.ints(o.Targets) {
		if target < 0 {
			continue
		}
		if target >= o.Valid {
			return fmt.Errorf("token %d has the target %d, outside the vocabulary of %d", t, target, o.Valid)
		}
		row := logits[t*cols:][:min(cols, max(0, o.Valid-first))]
		s := softmaxOf(row, 0, target)
		for part := range o.Split.Size { // the stats of all parts replace those of one
			words := softmaxWords(stats[(part*o.Logits.Rows()+t)*backend.SoftmaxWords:][:backend.SoftmaxWords])
			if part == 0 {
				s = words
			} else {
				s.join(words)
			}
		}
		if s[backend.SoftmaxTarget] == -math.MaxFloat32 { // no part has more, so its part has -∞
			s[backend.SoftmaxTarget] = math.Inf(-1)
		}
		lse := s[backend.SoftmaxTop] + math.Log(s[backend.SoftmaxSum])
		loss[t] = lse - s[backend.SoftmaxTarget]
		if int(s[backend.SoftmaxFirst]) == target && !math.IsNaN(loss[t]) {
			correct[t] = 1
		}
		for j, x := range row {
			dLogits[t*cols+j] = math.Exp(x-lse) * invTokens * weights[t]
		}
		if at := target - first; at >= 0 && at < cols {
			dLogits[t*cols+at] -= invTokens * weights[t]
		}
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

// softmaxWords are those of SoftmaxStats for one row.
type softmaxWords []float64

// softmaxOf returns the words of a row whose first column is first of the vocabulary.
func softmaxOf(row []float64, first, target int) softmaxWords {
	top, sum, goal := -math.MaxFloat32, 0.0, -math.MaxFloat32
	for _, x := range row {
		top = max(top, x)
	}
	for _, x := range row {
		sum += math.Exp(x - top)
	}
	if at := target - first; at >= 0 && at < len(row) {
		goal = row[at]
	}
	return softmaxWords{top, sum, goal, float64(first + max(0, slices.Index(row, top)))}
}

// join includes the columns of a later part.
func (s softmaxWords) join(x softmaxWords) {
	const at, sum, target, first = backend.SoftmaxTop, backend.SoftmaxSum, backend.SoftmaxTarget, backend.SoftmaxFirst
	top := max(s[at], x[at])
	total := 0.0
	for _, part := range []softmaxWords{s, x} {
		if part[sum] != 0 { // else the part may have no columns
			total += part[sum] * math.Exp(part[at]-top)
		}
	}
	if x[at] > s[at] {
		s[first] = x[first]
	}
	s[at], s[sum], s[target] = top, total, max(s[target], x[target])
}

var _ = implement((*Backend).softmaxStats)

func (b *Backend) softmaxStats(o *backend.SoftmaxStats) {
	logits, cols := b.read(o.Logits), o.Logits.Cols()
	first, _ := b.part(o.Split, o.Control, cols)
	var out []float64
	for t, target := range b.ints(o.Targets) {
		row := logits[t*cols:][:min(cols, max(0, o.Valid-first))]
		out = append(out, softmaxOf(row, first, target)...)
	}
	b.store(o.Out, out)
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
