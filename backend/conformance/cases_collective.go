package conformance

import (
	"octet/backend"
	"octet/fp8"
)

func (s *suite) collectives() {
	for _, ranks := range []int{1, 2, 3} {
		// Two ranks have one order of addition, three have several.
		tolerance := float64(exactly)
		if ranks > 2 {
			tolerance = elementwise
		}
		s.addRanks(ranks, func(b *fixture) {
			x := b.normal("x", fp8.F32, 37)
			b.tolerance[x] = tolerance
			b.p.Add(&backend.AllReduce{X: x})
		}, "allreduce/sum/%d", ranks)
		s.addRanks(ranks, func(b *fixture) {
			x := b.normal("x", fp8.F32, 3, 11)
			b.values[x][6] = -1e6
			if b.rank == b.ranks-1 {
				b.values[x][4], b.values[x][5] = nan, -inf
			}
			if b.rank == 0 {
				b.values[x][9] = inf
			}
			b.p.Add(&backend.AllReduce{X: x, Reduce: backend.ReduceMax})
		}, "allreduce/max/%d", ranks)
		s.addRanks(ranks, func(b *fixture) {
			b.p.Add(&backend.ReduceScatter{X: b.normal("x", fp8.F32, ranks*9), Out: b.result("out", fp8.F32, tolerance, 9)})
		}, "reducescatter/%d", ranks)
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3, fp8.I32} {
			s.addRanks(ranks, func(b *fixture) {
				x := b.given("x", d, b.draw(7, 100), 7)
				for i, v := range b.values[x] {
					if d == fp8.I32 {
						b.values[x][i] = float64(int(v))
					}
				}
				b.p.Add(&backend.AllGather{X: x, Out: b.given("out", d, make([]float64, 7*ranks), 7*ranks)})
			}, "allgather/%s/%d", d, ranks)
		}
	}
	// Consecutive collectives over overlapping views of a packed tensor.
	s.addRanks(2, func(b *fixture) {
		packed := b.positive("amaxes", 20)
		b.p.Add(&backend.AllReduce{X: packed.Slice("some", 3, 8), Reduce: backend.ReduceMax})
		b.p.Add(&backend.AllReduce{X: packed.Slice("others", 11, 5)})
		b.p.Add(&backend.AllReduce{X: packed.Slice("all", 0, 20), Reduce: backend.ReduceMax})
	}, "allreduce/views")
}
