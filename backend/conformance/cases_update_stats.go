package conformance

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
)

// updateStats adds statistics of updates, and updates that are clipped by them.
func (s *suite) updateStats() {
	forms := []backend.EpsForm{backend.EpsHat, backend.EpsCorrected}
	for _, f := range stateFormats {
		for _, form := range forms {
			s.add(func(b *fixture) {
				op := b.newAdamW(f, 3, 5*7, 5000)
				op.EpsForm = form
				b.addStats(op, 1)
			}, "updatestats/%s-%s-%s/eps%d", f[0], f[1], f[2], form)
		}
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 3, 35, 5000, 300, 64)
			op.ClipRMS = 1.5
			op.MeanSquares = b.given("mean_squares", fp8.F32, []float64{9, 0, 2.26, 1e4}, 4)
			b.p.Add(op)
		}, "adamw/clip_rms/%s-%s-%s", f[0], f[1], f[2])
	}
	s.add(func(b *fixture) {
		op := b.newAdamW(stateFormats[0], 2, 600)
		op.L2 = 0.3
		b.addStats(op, 4)
	}, "updatestats/l2/parts")
	s.add(func(b *fixture) {
		op := b.newAdamW(stateFormats[1], 2, 600)
		b.values[op.Skip][0] = 1
		b.addStats(op, 1)
	}, "updatestats/skip")
	s.add(func(b *fixture) {
		op := b.newAdamW([3]fp8.DType{fp8.F32, fp8.E4M3, fp8.E4M3}, 3, 2*100)
		b.block(op, 24)
		b.addStats(op, 1)
	}, "updatestats/blocks")
	// The smallest second moment divides by ε².
	s.add(func(b *fixture) {
		op := b.newAdamW(stateFormats[0], 1, 64)
		clear(b.values[op.M2[0]])
		for i := range b.values[op.Grad[0]] {
			b.values[op.Grad[0]][i] *= 1e-3
		}
		b.addStats(op, 1)
	}, "updatestats/eps")
}

// addStats adds the statistics of an update, which is not added.
func (b *fixture) addStats(op *backend.AdamW, parts int) {
	n, elems := len(op.Grad), 0
	for _, g := range op.Grad {
		elems += g.Elems()
	}
	b.p.Add(&backend.UpdateStats{
		Grad: op.Grad, Master: op.Master, M1: op.M1, M2: op.M2, Step: op.Step, Coef: op.Coef, Skip: op.Skip,
		Beta1: op.Beta1, Beta2: op.Beta2, Eps: op.Eps, L2: op.L2, EpsForm: op.EpsForm, Parts: parts,
		MeanSquares: b.result("mean_squares", fp8.F32, summed(elems), n), Largest: b.result(fmt.Sprintf("largest%d", n), fp8.F32, summed(4), n),
	})
}
