package ref

import (
	"fmt"
	"math"
	"slices"

	"octet/backend"
)

// softmax returns p = softmax(x).
func softmax(x []float64) []float64 {
	p, top, sum := slices.Clone(x), math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for i, v := range x {
		p[i] = math.Exp(v - top)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

var _ = implement((*Backend).route)

func (b *Backend) route(o *backend.Route) {
	logits, experts := b.read(o.Logits), o.Logits.Cols()
	weight, slot := make([]float64, o.Weight.Elems()), make([]float64, o.Slot.Elems())
	source, counts := slices.Repeat([]float64{-1}, o.Source.Elems()), make([]float64, experts)
	for t := range o.Logits.Rows() {
		row := logits[t*experts : (t+1)*experts]
		var chosen []int
		for len(chosen) < o.K {
			best := -1
			for e, x := range row {
				if !slices.Contains(chosen, e) && (best < 0 || x > row[best]) {
					best = e
				}
			}
			chosen = append(chosen, best)
		}
		p, sum := softmax(row), 0.0
		for _, e := range chosen {
			sum += p[e]
		}
		if o.K == 1 {
			sum = 1
		}
		for j, e := range chosen {
			a, i := t*o.K+j, int(counts[e])
			counts[e]++
			weight[a] = p[e] / sum
			if slot[a] = float64(-1 - e); i < o.Capacity {
				slot[a] = float64(e*o.Capacity + i)
				source[e*o.Capacity+i] = float64(a)
			}
		}
	}
	b.store(o.Weight, weight)
	b.store(o.Slot, slot)
	b.store(o.Source, source)
	b.store(o.Counts, counts)
}

var _ = implementErr((*Backend).routeGrad)

func (b *Backend) routeGrad(o *backend.RouteGrad) error {
	logits, weight, dWeight, slots := b.read(o.Logits), b.read(o.Weight), b.read(o.DWeight), b.ints(o.Slot)
	tokens, experts := o.Logits.Rows(), o.Logits.Cols()
	share := make([]float64, experts)
	for e, n := range b.ints(o.Counts) {
		share[e] = float64(n) / float64(tokens*o.K)
	}
	scale := float64(o.Aux) * float64(b.control(o.Control).InvTokens) * b.readOr(o.LossScale, 1, 1)[0] * float64(experts)
	dLogits, aux, dropped := make([]float64, len(logits)), 0.0, 0
	for t := range tokens {
		p, d := softmax(logits[t*experts:(t+1)*experts]), dLogits[t*experts:(t+1)*experts]
		sum, balance := 0.0, 0.0
		for a := t * o.K; a < (t+1)*o.K; a++ {
			sum += weight[a] * dWeight[a]
			if e := backend.ExpertOf(slots[a], o.Capacity); e >= experts {
				return fmt.Errorf("assignment %d has slot %d, outside %d experts of capacity %d", a, slots[a], experts, o.Capacity)
			}
			if slots[a] < 0 {
				dropped++
			}
		}
		for a := t * o.K; a < (t+1)*o.K; a++ {
			d[backend.ExpertOf(slots[a], o.Capacity)] += weight[a] * dWeight[a]
			if o.K > 1 {
				d[backend.ExpertOf(slots[a], o.Capacity)] -= weight[a] * sum
			}
		}
		for e := range p {
			balance += share[e] * p[e]
		}
		for i := range p {
			if o.K == 1 {
				d[i] -= sum * p[i]
			}
			d[i] += scale * p[i] * (share[i] - balance)
		}
		aux += float64(experts) * balance
	}
	b.cast(dLogits, experts, o.DLogits)
	if o.Stats == nil {
		return nil
	}
	stats := b.read(o.Stats)
	stats[backend.RouteTokens] += float64(tokens)
	stats[backend.RouteDropped] += float64(dropped)
	stats[backend.RouteAux] += aux
	for e, n := range b.ints(o.Counts) {
		stats[backend.RouteStats+e] += float64(n)
	}
	b.store(o.Stats, stats)
	return nil
}

var _ = implementErr((*Backend).gather)

func (b *Backend) gather(o *backend.Gather) error {
	x, weight, cols := b.read(o.X), b.readOr(o.Weight, o.X.Rows()*o.K, 1), o.X.Cols()
	out := make([]float64, o.Source.Elems()*cols)
	for s, a := range b.ints(o.Source) {
		switch {
		case a < 0:
			continue
		case a >= o.X.Rows()*o.K:
			return fmt.Errorf("slot %d has assignment %d, outside %d of each token of %s", s, a, o.K, o.X)
		}
		for i := range cols {
			out[s*cols+i] = weight[a] * x[a/o.K*cols+i]
		}
	}
	b.cast(out, cols, o.Out)
	return nil
}

// rowsOf returns the rows of all experts, one expert after the other.
func (b *Backend) rowsOf(y []*backend.Tensor) (rows []float64) {
	for _, t := range y {
		rows = append(rows, b.read(t)...)
	}
	return rows
}

var _ = implement((*Backend).combine)

func (b *Backend) combine(o *backend.Combine) {
	y, slots, cols := b.rowsOf(o.Y), b.ints(o.Slot), o.Y[0].Cols()
	weight, out := b.readOr(o.Weight, len(slots), 1), b.readOr(o.Residual, len(slots)/o.K*cols, 0)
	for a, s := range slots {
		if s < 0 {
			continue
		}
		for i := range cols {
			out[a/o.K*cols+i] += weight[a] * y[s*cols+i]
		}
	}
	b.cast(out, cols, o.Out)
}

var _ = implement((*Backend).combineGrad)

func (b *Backend) combineGrad(o *backend.CombineGrad) {
	y, dOut, cols := b.rowsOf(o.Y), b.read(o.DOut), o.DOut.Cols()
	dWeight := make([]float64, o.DWeight.Elems())
	for a, s := range b.ints(o.Slot) {
		for i := 0; s >= 0 && i < cols; i++ {
			dWeight[a] += dOut[a/o.K*cols+i] * y[s*cols+i]
		}
	}
	b.store(o.DWeight, dWeight)
}
