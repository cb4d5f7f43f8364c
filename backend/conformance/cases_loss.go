package conformance

import (
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) loss() {
	for _, in := range wideFormats {
		for _, valid := range []int{1, 29, 37} {
			for _, grad := range []bool{false, true} {
				s.add(func(b *fixture) {
					const rows, cols = 13, 37
					targets := make([]int, rows)
					for i := range targets {
						targets[i] = b.rng.IntN(valid)
					}
					targets[2], targets[rows-1] = -1, -100 // ignored
					op := &backend.CrossEntropy{
						Logits: b.outliers(b.normal("logits", in, rows, cols), 3000), Targets: b.ints("targets", targets...),
						Loss: b.result("loss", fp8.F32, summed(valid), rows), Valid: valid,
					}
					if valid > 1 { // the largest logit at the target, before it too, after it too, a tie with padding
						op.Correct = b.result("correct", fp8.I32, exactly, rows)
						b.peaks(op.Logits, targets, valid)
					}
					if grad {
						op.Control = b.control()
						op.DLogits = b.result("dlogits", in, summed(valid), rows, cols)
						if valid == 29 {
							op.LossScale = b.scalar("loss_scale", 0x1p16)
						}
						if valid > 1 {
							op.Weights = b.normal("weights", fp8.F32, rows)
						}
					}
					b.p.Add(op)
				}, "crossentropy/%s/valid%d/grad-%v", in, valid, grad)
			}
		}
	}
	s.vocabularyParts()
	s.add(func(b *fixture) {
		dLogits := b.gapped("dlogits", fp8.F32, 4, 6)
		b.tolerance[dLogits.Base] = summed(6)
		b.p.Add(&backend.CrossEntropy{
			Logits: b.gapped("logits", fp8.F32, 4, 6), Targets: b.ints("targets", 0, 5, -1, 3), Control: b.control(),
			Loss: b.result("loss", fp8.F32, summed(6), 4), DLogits: dLogits, Valid: 6,
		})
	}, "crossentropy/views")
	for _, n := range []int{1, 7, 1000} {
		for _, accumulate := range []bool{false, true} {
			s.add(func(b *fixture) {
				b.p.Add(&backend.Sum{
					X: b.positive("x", n), Out: b.result("out", fp8.F32, summed(n), 1), Accumulate: accumulate,
				})
			}, "sum/%d/accumulate-%v", n, accumulate)
		}
	}
}

// vocabularyParts has ranks that each hold a part of the vocabulary. Without padding all columns are valid;
// with 40 valid columns of 74 the second part has 3, with 29 none.
func (s *suite) vocabularyParts() {
	const rows, cols = 13, 37
	for _, in := range wideFormats {
		for _, valid := range []int{2 * cols, cols + 3, 29} {
			for _, grad := range []bool{false, true} {
				split := backend.Group{Size: 2, Stride: 1}
				s.addRanks(2, func(b *fixture) {
					b.step.Rank = int32(b.rank)
					targets := make([]int, rows)
					for i, rng := 0, rand.New(rand.NewPCG(uint64(valid), 1)); i < rows; i++ { // equal on both ranks
						targets[i] = rng.IntN(valid)
					}
					targets[2], targets[rows-1] = -1, -100 // ignored
					logits := b.outliers(b.normal("logits", in, rows, cols), 30)
					b.values[logits][3*cols+5], b.values[logits][4*cols+1] = 4096, 4096 // a tie of both parts
					if own := targets[4] - b.rank*cols; own >= 0 && own < cols {
						b.values[logits][4*cols+own] = 4096
					}
					stats := &backend.SoftmaxStats{
						Logits: logits, Targets: b.ints("targets", targets...), Control: b.control(),
						Out: b.result("stats", fp8.F32, summed(cols), rows, backend.SoftmaxWords), Valid: valid, Split: split,
					}
					b.p.Add(stats)
					all := b.gathered(stats.Out, split)
					b.tolerance[all] = summed(cols)
					op := &backend.CrossEntropy{
						Logits: logits, Targets: stats.Targets, Control: stats.Control, Stats: all,
						Loss: b.result("loss", fp8.F32, summed(valid), rows), Correct: b.result("correct", fp8.I32, exactly, rows),
						Valid: valid, Split: split,
					}
					if grad {
						op.DLogits = b.result("dlogits", in, summed(valid), rows, cols)
						op.LossScale, op.Weights = b.scalar("loss_scale", 0x1p16), b.normal("weights", fp8.F32, rows)
					}
					b.p.Add(op)
				}, "crossentropy/parts/%s/valid%d/grad-%v", in, valid, grad)
			}
		}
	}
}

// peaks raises logits to the largest of their rows, in the format's values: at the target, or twice,
// of which one is at the target.
func (b *fixture) peaks(logits *backend.Tensor, targets []int, valid int) {
	cols := logits.Cols()
	for t, target := range targets {
		if target < 0 || t%4 == 3 {
			continue
		}
		row := b.values[logits][t*cols : (t+1)*cols]
		const top = 4096
		row[target] = top
		switch t % 4 {
		case 1:
			row[(target+1)%valid] = top
		case 2:
			row[(target+valid-1)%valid] = top
			row[cols-1] = 2 * top // of padding, where valid is less
		}
	}
}
