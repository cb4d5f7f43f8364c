package emu

import (
	"slices"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).route)

// route chooses the experts on all threads. One task then gives out the slots, in the order of
// the tokens.
func (b *binder) route(o *backend.Route) func() {
	logits, weight := b.matrix(o.Logits), b.f32(o.Weight)
	slot, source, counts := b.i32(o.Slot), b.i32(o.Source), b.i32(o.Counts)
	experts, k := logits.Cols, o.K
	rows, exponentials := b.scratch(experts), b.scratch(experts)
	choose := b.pool.Rows(logits.Rows, experts, func(worker, t int) {
		row, w, chosen := logits.Row(rows[worker], t), weight[t*k:(t+1)*k], slot[t*k:(t+1)*k]
		for j := range chosen {
			chosen[j] = largestBut(row, chosen[:j])
			w[j] = row[chosen[j]]
		}
		sum, top := float32(0), w[0]
		if k == 1 {
			sum = simd.ExpSum(exponentials[worker], row, 1, top)
			simd.ExpSum(w, w, 1, top)
		} else {
			sum = simd.ExpSum(w, w, 1, top)
		}
		for j := range w {
			w[j] /= sum
		}
	})
	return func() {
		choose()
		clear(counts)
		for i := range source {
			source[i] = -1
		}
		for a, e := range slot {
			i := int(counts[e])
			counts[e]++
			if slot[a] = -1 - e; i < o.Capacity {
				at := int(e)*o.Capacity + i
				slot[a], source[at] = int32(at), int32(a)
			}
		}
	}
}

// largestBut returns the index of the largest element of x that is not among those excluded, the
// first of several.
func largestBut(x []float32, excluded []int32) int32 {
	best := int32(-1)
	for i, v := range x {
		if (best < 0 || v > x[best]) && !slices.Contains(excluded, int32(i)) {
			best = int32(i)
		}
	}
	return best
}

var _ = implement((*binder).routeGrad)

func (b *binder) routeGrad(o *backend.RouteGrad) func() {
	logits, weight, dWeight, slot := b.matrix(o.Logits), b.f32(o.Weight), b.f32(o.DWeight), b.i32(o.Slot)
	counts, words, lossScale, stats := b.i32(o.Counts), b.i32(o.Control), b.f32(o.LossScale), b.f32(o.Stats)
	tokens, experts, k := logits.Rows, logits.Cols, o.K
	result := b.output(o.DLogits)
	rows, gradients, probabilities := b.scratch(experts), b.scratch(experts), b.scratch(experts)
	shares, balances, scale := b.shared(experts), make([]float32, tokens), float32(0)
	run := b.pool.Rows(tokens, experts, func(worker, t int) {
		row, d, p := logits.Row(rows[worker], t), gradients[worker], probabilities[worker]
		total := simd.ExpSum(p, row, 1, simd.Max(row))
		w, dw, s := weight[t*k:(t+1)*k], dWeight[t*k:(t+1)*k], slot[t*k:(t+1)*k]
		sum, balance := float32(0), float32(0)
		for j := range w {
			sum += float32(w[j] * dw[j])
		}
		for i := range p {
			p[i] /= total
			balance += float32(shares[i] * p[i])
		}
		balances[t] = balance
		for i := range d {
			d[i] = float32(scale*p[i]) * (shares[i] - balance)
			if k == 1 {
				d[i] -= float32(sum * p[i])
			}
		}
		for j := range w {
			e := backend.ExpertOf(int(s[j]), o.Capacity)
			if k == 1 {
				d[e] += sum
			} else {
				d[e] += float32(w[j] * (dw[j] - sum))
			}
		}
		result.Store(worker, t, 0, d)
	})
	return cast.Storing(func() {
		for e, n := range counts {
			shares[e] = float32(float64(n) / float64(tokens*k))
		}
		scale = o.Aux * backend.ControlFrom(words).InvTokens * float32(experts)
		if lossScale != nil {
			scale *= lossScale[0]
		}
		run()
		if stats != nil {
			addRouteStats(stats, counts, slot, balances)
		}
	}, result)
}

func addRouteStats(stats []float32, counts, slot []int32, balances []float32) {
	dropped, aux := 0, 0.0
	for _, s := range slot {
		if s < 0 {
			dropped++
		}
	}
	for _, x := range balances {
		aux += float64(x)
	}
	stats[backend.RouteTokens] += float32(len(balances))
	stats[backend.RouteDropped] += float32(dropped)
	stats[backend.RouteAux] += float32(aux * float64(len(counts)))
	for e, n := range counts {
		stats[backend.RouteStats+e] += float32(n)
	}
}

var _ = implement((*binder).gather)

func (b *binder) gather(o *backend.Gather) func() {
	x, source, weight := b.matrix(o.X), b.integers(o.Source), b.f32(o.Weight)
	result := b.output(o.Out)
	buffers := b.pieceBuffers(x.Cols)
	run := b.pool.Pieces(o.Source.Elems(), x.Cols, func(worker, s, col, n int) {
		buffer, a := buffers[worker][:n], source(s)
		switch {
		case a < 0:
			clear(buffer)
		case weight == nil:
			buffer = x.Piece(buffer, a/o.K, col, n)
		default:
			x.Load(buffer, a/o.K, col)
			simd.Scale(buffer, weight[a])
		}
		result.Store(worker, s, col, buffer)
	})
	return cast.Storing(run, result)
}

// experts binds the results of all experts, whose rows are slots.
func (b *binder) experts(y []*backend.Tensor) func(slot int) (*memory.Matrix, int) {
	list, capacity := make([]memory.Matrix, len(y)), y[0].Rows()
	for i, t := range y {
		list[i] = b.matrix(t)
	}
	return func(slot int) (*memory.Matrix, int) { return &list[slot/capacity], slot % capacity }
}

var _ = implement((*binder).combine)

func (b *binder) combine(o *backend.Combine) func() {
	row, slot, weight, residual := b.experts(o.Y), b.integers(o.Slot), b.f32(o.Weight), memory.Matrix{}
	if o.Residual != nil {
		residual = b.matrix(o.Residual)
	}
	cols := o.Y[0].Cols()
	result := b.output(o.Out)
	sums, terms := b.pieceBuffers(cols), b.pieceBuffers(cols)
	run := b.pool.Pieces(o.Slot.Elems()/o.K, cols, func(worker, t, col, n int) {
		sum, term := sums[worker][:n], terms[worker][:n]
		clear(sum)
		for a := t * o.K; a < (t+1)*o.K; a++ {
			s := slot(a)
			if s < 0 {
				continue
			}
			y, at := row(s)
			y.Load(term, at, col)
			if weight != nil {
				simd.Scale(term, weight[a])
			}
			simd.Add(sum, term)
		}
		if o.Residual != nil {
			simd.Add(sum, residual.Piece(term, t, col, n))
		}
		result.Store(worker, t, col, sum)
	})
	return cast.Storing(run, result)
}

var _ = implement((*binder).combineGrad)

func (b *binder) combineGrad(o *backend.CombineGrad) func() {
	row, slot, dout, dWeight := b.experts(o.Y), b.integers(o.Slot), b.matrix(o.DOut), b.f32(o.DWeight)
	gradients, results := b.scratch(dout.Cols), b.scratch(dout.Cols)
	return b.pool.Rows(dout.Rows, dout.Cols, func(worker, t int) {
		d := dout.Row(gradients[worker], t)
		for a := t * o.K; a < (t+1)*o.K; a++ {
			dWeight[a] = 0
			if s := slot(a); s >= 0 {
				y, at := row(s)
				dWeight[a] = simd.Dot(d, y.Row(results[worker], at))
			}
		}
	})
}
