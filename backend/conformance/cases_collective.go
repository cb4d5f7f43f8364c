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
	s.groups()
	// Consecutive collectives over overlapping views of a packed tensor.
	s.addRanks(2, func(b *fixture) {
		packed := b.positive("amaxes", 20)
		b.p.Add(&backend.AllReduce{X: packed.Slice("some", 3, 8), Reduce: backend.ReduceMax})
		b.p.Add(&backend.AllReduce{X: packed.Slice("others", 11, 5)})
		b.p.Add(&backend.AllReduce{X: packed.Slice("all", 0, 20), Reduce: backend.ReduceMax})
	}, "allreduce/views")
}

// groups has collectives of some of the ranks, which run at the same time in every group.
func (s *suite) groups() {
	for _, c := range []struct {
		ranks int
		backend.Group
	}{{2, backend.Group{Size: 1, Stride: 1}}, {2, backend.Group{Size: 2, Stride: 1}}, {4, backend.Group{Size: 2, Stride: 1}}, {4, backend.Group{Size: 2, Stride: 2}}} {
		g, n := c.Group, c.Size
		add := func(op string, build func(b *fixture)) {
			s.addRanks(c.ranks, build, "%s/group/%d/%d-%d", op, c.ranks, g.Size, g.Stride)
		}
		add("allreduce/sum", func(b *fixture) {
			x := b.normal("x", fp8.F32, 37)
			b.tolerance[x] = exactly
			b.p.Add(&backend.AllReduce{X: x, Group: g})
		})
		add("allreduce/max", func(b *fixture) {
			x := b.normal("x", fp8.F32, 33)
			if b.rank == 1 {
				b.values[x][4], b.values[x][5] = nan, -inf
			}
			b.p.Add(&backend.AllReduce{X: x, Reduce: backend.ReduceMax, Group: g})
		})
		add("reducescatter", func(b *fixture) {
			b.p.Add(&backend.ReduceScatter{X: b.normal("x", fp8.F32, n*9), Out: b.result("out", fp8.F32, exactly, 9), Group: g})
		})
		add("allgather", func(b *fixture) {
			b.p.Add(&backend.AllGather{X: b.normal("x", fp8.BF16, 7), Out: b.given("out", fp8.BF16, make([]float64, 7*n), 7*n), Group: g})
		})
		add("alltoall", func(b *fixture) {
			b.p.Add(&backend.AllToAll{X: b.normal("x", fp8.BF16, 6*n), Out: b.given("out", fp8.BF16, make([]float64, 6*n), 6*n), Group: g})
		})
	}
	// Collectives of different groups in turn, as with several kinds of parallelism.
	s.addRanks(4, func(b *fixture) {
		x := b.normal("x", fp8.F32, 12)
		b.tolerance[x] = elementwise
		parts := b.given("parts", fp8.F32, make([]float64, 24), 24)
		b.p.Add(&backend.AllReduce{X: x, Group: backend.Group{Size: 2, Stride: 1}})
		b.p.Add(&backend.AllGather{X: x, Out: parts, Group: backend.Group{Size: 2, Stride: 2}})
		b.p.Add(&backend.AllReduce{X: parts})
		b.p.Add(&backend.ReduceScatter{X: parts, Out: x, Group: backend.Group{Size: 2, Stride: 1}})
	}, "groups/in turn")
}

// gathered adds the gather of x over the ranks of a group.
func (b *fixture) gathered(x *backend.Tensor, g backend.Group) *backend.Tensor {
	all := b.result(x.Name+".all", x.DType, exactly, g.Size*x.Rows(), x.Cols())
	b.p.Add(&backend.AllGather{X: x, Out: all, Group: g})
	return all
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
