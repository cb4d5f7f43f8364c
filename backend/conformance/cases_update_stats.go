package conformance

import (
	"octet/backend"
	"octet/fp8"
)

// codesElems are elements of a tensor in several spans and chunks of every backend, with a
// part of a vector at the end.
const codesElems = 9005

// updateStats adds statistics of updates, and updates that are clipped by them.
func (s *suite) updateStats() {
	for _, f := range stateFormats {
		for _, form := range []backend.EpsForm{backend.EpsHat, backend.EpsCorrected} {
			for _, l2 := range []float32{0, 0.3} {
				s.add(func(b *fixture) {
					op := b.newAdamW(f, 3, 5*7, 64, codesElems)
					op.EpsForm, op.L2 = form, l2
					b.p.Add(b.statsOf(op, 1))
				}, "updatestats/%s-%s-%s/eps%d/l2-%v", f[0], f[1], f[2], form, l2)
			}
		}
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 1, 50, 7)
			op.L2 = 0.3
			b.values[op.Skip][0], b.values[op.Step][0] = 1, 0
			b.underflow(op)
			b.p.Add(b.statsOf(op, 1))
		}, "updatestats/%s-%s-%s/skip", f[0], f[1], f[2])
		s.addRanks(2, func(b *fixture) {
			op := b.newAdamW(f, 9, 5*7, 64)
			op.Shard = true
			b.underflow(op)
			stats := b.statsOf(op, 2)
			b.p.Add(stats)
			b.p.Add(&backend.AllReduce{X: stats.MeanSquares})
			b.p.Add(&backend.AllReduce{X: stats.Largest, Reduce: backend.ReduceMax})
			b.p.Add(&backend.AllReduce{X: stats.ZeroV})
		}, "updatestats/%s-%s-%s/shard", f[0], f[1], f[2])
	}
	// Second moments far below ε², in two of three elements.
	for _, step := range []int{1, 1000} {
		s.add(func(b *fixture) {
			op := b.newAdamW(stateFormats[0], step, 300)
			for i := range b.values[op.Grad[0]] {
				if i%3 > 0 {
					b.values[op.Grad[0]][i] *= 1e-3
					b.values[op.M2[0]][i] *= 1e-9
				}
			}
			b.p.Add(b.statsOf(op, 1))
		}, "updatestats/floor/step%d", step)
	}
	for _, f := range []float64{inf, nan} {
		s.add(func(b *fixture) {
			op := b.newAdamW(stateFormats[0], 2, 300, 40)
			b.values[op.Grad[0]][77] = f
			b.p.Add(b.statsOf(op, 1))
		}, "updatestats/grad/%v", f)
	}
	for _, f := range [][3]fp8.DType{{fp8.F16, fp8.E4M3, fp8.E4M3}, {fp8.BF16, fp8.F32, fp8.E4M3}} {
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 3, 2*64, 2*50)
			b.block(op, 24)
			b.p.Add(b.statsOf(op, 1))
		}, "updatestats/%s-%s-%s/blocks", f[0], f[1], f[2])
	}
	s.zeroV()
	s.clipRMS()
}

// zeroV adds statistics of moments that have underflowed: with one scale, with a scale per block, and
// expanded. Those with one scale are half of a larger tensor.
func (s *suite) zeroV() {
	all := [3]fp8.DType{fp8.F32, fp8.E4M3, fp8.E4M3}
	for _, f := range append(stateFormats[:len(stateFormats):len(stateFormats)], all) {
		s.add(func(b *fixture) {
			op := b.newAdamW(f, 3, 5*7, 64, codesElems)
			b.underflow(op)
			b.p.Add(b.statsOf(op, 2))
		}, "updatestats/zero_v/%s-%s-%s", f[0], f[1], f[2])
	}
	for _, f := range [][3]fp8.DType{all, stateFormats[3], {fp8.BF16, fp8.F32, fp8.E4M3}} {
		for _, expanded := range []bool{false, true} {
			s.add(func(b *fixture) {
				op := b.newAdamW(f, 3, 2*600)
				b.underflow(op)
				b.block(op, 24)
				if expanded {
					b.expand(op)
				}
				b.p.Add(b.statsOf(op, 1))
			}, "updatestats/zero_v/%s-%s-%s/blocks/expanded-%v", f[0], f[1], f[2], expanded)
		}
	}
}

// underflow makes second moments 0 or too small for FP8, at other distances in each tensor, and a half
// of the first moments likewise.
func (b *fixture) underflow(op *backend.AdamW) {
	for k, t := range op.M2 {
		m, v := b.values[op.M1[k]], b.values[t]
		for i := range v {
			v[i] *= []float64{0, 1e-9, 1, 1, 1}[i%(3+k)]
			m[i] *= []float64{0, 1e-9, 1, 1}[i%4]
		}
	}
}

// statsOf returns the statistics of an update that ranks share.
func (b *fixture) statsOf(op *backend.AdamW, parts int) *backend.UpdateStats {
	n := len(op.Grad)
	stats := &backend.UpdateStats{
		Grad: op.Grad, Master: op.Master, M1: op.M1, M2: op.M2, Step: op.Step, Coef: op.Coef, Skip: op.Skip,
		MeanSquares: b.result("mean_squares", fp8.F32, summed(codesElems), n),
		Largest:     b.result("largest", fp8.F32, 0x1p-17, n),
		ZeroV:       b.result("zero_v", fp8.F32, elementwise, n),
		Beta1:       op.Beta1, Beta2: op.Beta2, Eps: op.Eps, L2: op.L2, EpsForm: op.EpsForm, Parts: parts,
	}
	return stats
}

// clipRMS adds updates whose first and last tensors get a lower learning rate: the last
// has a part of each kernel's vectors.
func (s *suite) clipRMS() {
	for _, f := range stateFormats {
		for _, pow2 := range []bool{false, true} {
			for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
				s.add(func(b *fixture) {
					op := b.newAdamW(f, 3, 5*7, 64, codesElems)
					op.Pow2, op.Rounding = pow2, rounding
					b.random = rounding == fp8.Stochastic
					b.clipped(op)
					b.p.Add(op)
				}, "adamw/clip_rms/%s-%s-%s/%s/pow2-%v", f[0], f[1], f[2], rounding, pow2)
			}
		}
		s.addRanks(2, func(b *fixture) {
			op := b.newAdamW(f, 3, 5*7, 64, 40)
			op.Shard = true
			b.clipped(op)
			b.addShared(op)
		}, "adamw/clip_rms/%s-%s-%s/shard", f[0], f[1], f[2])
	}
	// A mean square that is not finite: infinity stops the tensor, NaN spreads.
	for _, x := range []float64{inf, nan} {
		s.add(func(b *fixture) {
			op := b.newAdamW(stateFormats[0], 3, 64, 64, 64)
			b.clipped(op)
			b.values[op.MeanSquares][1] = x
			b.p.Add(op)
		}, "adamw/clip_rms/%v", x)
	}
}

// clipped gives an update of three tensors a ClipRMS: the first tensor is clipped by half,
// the second not at all, the third by four fifths. Rates and decays are large, so that each
// tensor's own shows.
func (b *fixture) clipped(op *backend.AdamW) {
	op.ClipRMS, op.WeightDecay = 1.5, 2
	op.MeanSquares = b.given("mean_squares", fp8.F32, []float64{9, 1.4 * 1.4, 56.25}, 3)
}
