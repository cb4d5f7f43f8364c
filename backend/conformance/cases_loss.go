package conformance

import (
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
