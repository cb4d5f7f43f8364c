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
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3} {
			s.addRanks(ranks, func(b *fixture) {
				x := b.normal("x", d, 6*ranks)
				out := b.given("out", d, make([]float64, 6*ranks), 6*ranks)
				out.Scale = x.Scale
				b.p.Add(&backend.AllToAll{X: x, Out: out})
			}, "alltoall/%s/%d", d, ranks)
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

func (s *suite) sumParts() {
	const rows, cols = 5, 36
	for _, parts := range []int{1, 2, 3, 8} {
		for _, d := range append([]fp8.DType{fp8.F32, fp8.BF16}, fp8Formats...) {
			blocks := []backend.ScaleBlock{backend.PerTensor}
			if d.IsQuantized() {
				blocks = []backend.ScaleBlock{backend.PerTensor, {Rows: rows}, backend.PerRow, {Rows: 1, Cols: 16}}
			}
			for _, block := range blocks {
				s.add(func(b *fixture) {
					x := b.outliers(b.normal("x", d, parts*rows, cols), 7)
					if x.Block = block; block != backend.PerTensor {
						down, across := block.ScaleShape(parts*rows, cols)
						x.Scale = b.positive("x.scales", down, across)
						if b.values[x.Scale][0] = inf; parts > 1 {
							b.values[x.Scale][down*across-1] = nan
						}
					}
					b.p.Add(&backend.SumParts{X: x, Out: b.gapped("out", fp8.F32, rows, cols), Accumulate: block == backend.PerTensor && parts != 2})
				}, "sumparts/%s/%s/%d", d, block, parts)
			}
		}
	}
}

// roundedSums adds sums that are rounded once and after each addition. The parts have a range
// in which the order of the additions, and the number of the roundings, change most sums; some
// sums saturate. One case holds a NaN.
func (s *suite) roundedSums() {
	for _, parts := range []int{1, 2, 8} {
		for _, d := range fp8Formats {
			for _, each := range []bool{false, true} {
				for _, cols := range []int{36, 40} {
					s.add(func(b *fixture) {
						x := b.normal("x", d, parts*5, cols)
						for i := range b.values[x] {
							b.values[x][i] *= float64(d.Max()) / 64
						}
						b.values[x][9] = nan
						op := &backend.SumParts{X: x, Out: b.gapped("out", fp8.F32, 5, cols), Rounded: true, Each: each, Accumulate: parts == 8}
						if parts > 1 {
							op.AtMax = b.scalar("at_max", 1000)
						}
						b.p.Add(op)
					}, "sumparts/rounded/%s/%d/each-%v/%d", d, parts, each, cols)
				}
			}
		}
	}
}
