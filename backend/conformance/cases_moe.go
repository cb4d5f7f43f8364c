package conformance

import (
	"slices"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) moe() {
	for _, v := range []struct{ tokens, experts, k, capacity int }{
		{1, 1, 1, 1}, {37, 1, 1, 37}, {37, 4, 2, 16}, {37, 4, 2, 37}, {33, 19, 1, 2}, {9, 5, 5, 3},
	} {
		for _, in := range wideFormats {
			s.add(func(b *fixture) {
				logits := b.normal("logits", in, v.tokens, v.experts)
				for i := 0; i+1 < v.experts; i++ { // ties
					b.values[logits][(v.tokens-1)*v.experts+i] = 0.5
				}
				b.p.Add(&backend.Route{
					Logits: logits, Weight: b.result("weight", fp8.F32, elementwise, v.tokens*v.k),
					Slot: b.integer("slot", v.tokens*v.k), Source: b.integer("source", v.experts*v.capacity),
					Counts: b.integer("counts", v.experts), K: v.k, Capacity: v.capacity,
				})
			}, "route/%d-tokens/%d-of-%d/capacity%d/%s", v.tokens, v.k, v.experts, v.capacity, in)
			for _, full := range []bool{false, true} {
				s.add(func(b *fixture) { b.routeGrad(in, v.tokens, v.experts, v.k, v.capacity, full) },
					"routegrad/%d-tokens/%d-of-%d/capacity%d/%s/full-%v", v.tokens, v.k, v.experts, v.capacity, in, full)
			}
		}
	}
	for _, v := range variants {
		s.combine(v)
	}
}

// integer declares an I32 variable that the program writes.
func (b *fixture) integer(name string, n int) *backend.Tensor {
	return b.ints(name, slices.Repeat([]int{5}, n)...)
}

// assign returns the elements of Route.Slot and Route.Source for random experts.
func (b *fixture) assign(tokens, experts, k, capacity int) (slot, source, counts []int) {
	source, counts = make([]int, experts*capacity), make([]int, experts)
	for i := range source {
		source[i] = -1
	}
	for t := range tokens {
		for j, e := range b.rng.Perm(experts)[:k] {
			at := e*capacity + counts[e]
			if counts[e]++; counts[e] > capacity {
				at = -1 - e
			} else {
				source[at] = t*k + j
			}
			slot = append(slot, at)
		}
	}
	return slot, source, counts
}

func (b *fixture) routeGrad(in fp8.DType, tokens, experts, k, capacity int, full bool) {
	slot, _, counts := b.assign(tokens, experts, k, capacity)
	tolerance, style := summed(experts), "bf16"
	if full && in == fp8.BF16 {
		style = "stochastic"
	}
	op := &backend.RouteGrad{
		Logits: b.normal("logits", in, tokens, experts), Weight: b.normal("weight", fp8.F32, tokens*k),
		Slot: b.ints("slot", slot...), Counts: b.ints("counts", counts...),
		DWeight: b.normal("dweight", fp8.F32, tokens*k), Control: b.control(),
		DLogits: b.casts(style, "dlogits", tokens, experts, tolerance), K: k, Capacity: capacity,
	}
	if full {
		op.LossScale, op.Aux = b.scalar("loss_scale", 16), 3
		op.Stats = b.result("stats", fp8.F32, tolerance, backend.RouteStats+experts)
	}
	b.p.Add(op)
}

func (s *suite) combine(v variant) {
	const experts, k, capacity = 3, 2, 7
	for _, full := range []bool{false, true} {
		s.add(func(b *fixture) {
			_, source, _ := b.assign(v.rows, experts, k, capacity)
			op := &backend.Gather{
				X: b.normal("x", v.in, v.rows, v.cols), Source: b.ints("source", source...).Slice("source[1]", capacity, 2*capacity),
				Out: b.casts(v.style, "out", 2*capacity, v.cols, exactly), K: k,
			}
			if full {
				op.Weight = b.normal("weight", fp8.F32, v.rows*k)
			}
			b.p.Add(op)
		}, "gather/%s/weight-%v", v, full)
		s.add(func(b *fixture) {
			slot, _, _ := b.assign(v.rows, experts, k, capacity)
			op := &backend.Combine{
				Y: b.experts(v.in, experts, capacity, v.cols), Slot: b.ints("slot", slot...),
				Out: b.casts(v.style, "out", v.rows, v.cols, summed(k)), K: k,
			}
			if full {
				op.Weight, op.Residual = b.normal("weight", fp8.F32, v.rows*k), b.normal("residual", v.in, v.rows, v.cols)
			}
			b.p.Add(op)
		}, "combine/%s/weight-residual-%v", v, full)
	}
	if v.style != "f32" && v.style != "bf16" && v.style != "f16" {
		return
	}
	s.add(func(b *fixture) {
		slot, _, _ := b.assign(v.rows, experts, k, capacity)
		b.p.Add(&backend.CombineGrad{
			DOut: b.normal("dout", v.in, v.rows, v.cols), Y: b.experts(v.in, experts, capacity, v.cols),
			Slot: b.ints("slot", slot...), DWeight: b.result("dweight", fp8.F32, summed(v.cols), v.rows*k), K: k,
		})
	}, "combinegrad/%dx%d/%s", v.rows, v.cols, v.in)
}

// experts declares the results of experts.
func (b *fixture) experts(d fp8.DType, experts, capacity, cols int) (list []*backend.Tensor) {
	for e := range experts {
		list = append(list, b.normal("y"+string(rune('0'+e)), d, capacity, cols))
	}
	return list
}
