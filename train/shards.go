package train

import (
	"context"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// This file reads and writes tensors of which each rank holds a part: some rows where ranks share the
// optimizer state, and some rows or columns where they share layers.

// place is where a rank is: data counts the groups with batches of their own, tensor the ranks of a group,
// which share layers.
type place struct{ data, tensor int }

func (c Config) placeOf(rank int) place { return place{rank / c.tensor(), rank % c.tensor()} }

func (t *Trainer) place() place { return t.Config.placeOf(t.group.Rank()) }

// firstOf returns the first rank of a group that shares layers.
func (c Config) firstOf(data int) int { return data * c.tensor() }

// part says how the ranks divide a tensor.
type part struct {
	shape   []int // of the full tensor
	split   nn.Split
	sharded bool // the rows of a rank, or of its part by split
}

// region is a range of rows of a full tensor, and of columns: indexes of its second dimension. Ranges
// exclude their ends. Columns of zero are all.
type region struct{ rows, columns [2]int }

// listParts lists the tensors that ranks divide, of masters, moments, and their scales per block.
func (j *Job) listParts() {
	j.parts, j.vocabulary = map[*backend.Tensor]part{}, map[*backend.Tensor]int{}
	for _, p := range j.Model.Params {
		add := func(t *backend.Tensor, rowsOfRow int) {
			if p.Embedding || p.Head {
				j.vocabulary[t] = rowsOfRow * p.Rows
			}
			if !p.Sharded() && p.Split == nn.NotSplit {
				return
			}
			x := part{shape: slices.Clone(t.Shape), split: p.Split, sharded: p.Sharded()}
			if x.shape[0] = rowsOfRow * p.Shape[0]; p.Split == nn.SplitColumns {
				x.shape[1] *= j.Config.tensor()
			}
			j.parts[t] = x
		}
		for _, t := range []*backend.Tensor{p.Master, j.optimizer.m1[p], j.optimizer.m2[p]} {
			if t == nil { // Muon's m2
				continue
			}
			if add(t, 1); t.Block != backend.PerTensor {
				add(t.Scale, t.Scale.Shape[0]/t.Shape[0])
			}
		}
	}
}

// wholeShape returns the shape of the full tensor.
func (j *Job) wholeShape(t *backend.Tensor) []int {
	if p, divided := j.parts[t]; divided {
		return p.shape
	}
	return t.Shape
}

// wholeElems returns the number of elements of the full tensor.
func (j *Job) wholeElems(t *backend.Tensor) int {
	n := 1
	for _, size := range j.wholeShape(t) {
		n *= size
	}
	return n
}

// regionOf returns what a rank holds of a full tensor: all of a replicated one, and less rows than the
// rank's memory has if padding follows.
func (j *Job) regionOf(t *backend.Tensor, rank int) (r region) {
	p, divided := j.parts[t]
	if !divided {
		r.rows[1] = t.Shape[0]
		return r
	}
	at, n := j.Config.placeOf(rank), t.Shape[0]
	from, to := 0, p.shape[0]
	switch p.split {
	case nn.SplitRows:
		size := to / j.Config.tensor()
		from, to = at.tensor*size, (at.tensor+1)*size
	case nn.SplitColumns:
		r.columns = [2]int{at.tensor * t.Shape[1], (at.tensor + 1) * t.Shape[1]}
	}
	if p.sharded {
		from, to = min(to, from+at.data*n), min(to, from+(at.data+1)*n)
	}
	r.rows = [2]int{from, to}
	return r
}

// holds reports whether a rank writes its part of a tensor to a checkpoint: the first rank that holds it.
func (j *Job) holds(t *backend.Tensor, rank int) bool {
	p, divided := j.parts[t]
	at := j.Config.placeOf(rank)
	return (p.sharded || at.data == 0) && (divided && p.split != nn.NotSplit || at.tensor == 0)
}

// copyRegion copies between the full tensor and the first rows of a rank's part of it, both as elements of any
// type; elems is the number of elements at one index of the first two dimensions.
func copyRegion[E any](whole []E, width int, r region, part []E, elems int, toWhole bool) {
	from, to := 0, width
	if r.columns[1] != 0 {
		from, to = r.columns[0], r.columns[1]
	}
	n := (to - from) * elems
	for i := range r.rows[1] - r.rows[0] {
		a := whole[((r.rows[0]+i)*width+from)*elems:][:n]
		b := part[i*n:][:n]
		if toWhole {
			copy(a, b)
		} else {
			copy(b, a)
		}
	}
}

// widths returns the size of the second dimension, 1 for a vector, and the elements at one index of both.
func widths(shape []int) (width, elems int) {
	width, elems = 1, 1
	if len(shape) > 1 {
		width = shape[1]
		for _, n := range shape[2:] {
			elems *= n
		}
	}
	return width, elems
}

// localPart returns this rank's part of a full tensor's values, followed by zeros as padding.
func (t *Trainer) localPart(of *backend.Tensor, x []float32) []float32 {
	if _, divided := t.parts[of]; !divided {
		return x
	}
	local := make([]float32, of.Elems())
	width, elems := widths(t.wholeShape(of))
	copyRegion(x, width, t.regionOf(of, t.group.Rank()), local, elems, false)
	return local
}

// readLocal returns this rank's part of a tensor, padding included.
func (t *Trainer) readLocal(from *backend.Tensor) ([]byte, error) {
	raw := make([]byte, from.Bytes())
	return raw, t.device.Read(from, raw)
}

// localFloats returns the decoded values of this rank's part of a tensor, padding included;
// scales are not applied.
func (t *Trainer) localFloats(from *backend.Tensor) ([]float32, error) {
	raw, err := t.readLocal(from)
	x := make([]float32, from.Elems())
	from.DType.Decode(x, raw)
	return x, err
}

// wholeOf returns the full tensor x of the ranks' parts, in any format. It is for small tensors, since the
// ranks exchange them through rank 0.
func (t *Trainer) wholeOf(ctx context.Context, x *backend.Tensor, part []byte) ([]byte, error) {
	if _, divided := t.parts[x]; !divided {
		return part, nil
	}
	parts, err := t.group.Exchange(ctx, "the parts of "+x.Name, part)
	if err != nil {
		return nil, err
	}
	size := len(part) / x.Elems()
	whole := make([]byte, t.wholeElems(x)*size)
	width, elems := widths(t.wholeShape(x))
	for rank, part := range parts {
		copyRegion(whole, width, t.regionOf(x, rank), part, elems*size, true)
	}
	return whole, nil
}

// maxima returns the largest magnitudes over the ranks of each of x.
func (t *Trainer) maxima(ctx context.Context, x []float32) ([]float32, error) {
	parts, err := t.group.Exchange(ctx, "the largest magnitudes of the state", fp8.AppendFloats(nil, x...))
	if err != nil {
		return nil, err
	}
	top := make([]float32, len(x))
	for _, part := range parts {
		for i := range top {
			top[i] = fp8.MaxAmax(top[i], float32(float(part[4*i:])))
		}
	}
	return top, nil
}
