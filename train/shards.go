package train

import (
	"context"
	"slices"

	"octet/backend"
	"octet/fp8"
)

// This file reads and writes tensors that are sharded over the ranks.

// listShards lists the sharded tensors, masters, moments, and their scales per block, with the
// size of the full tensor's first dimension.
func (j *Job) listShards() {
	j.sharded = map[*backend.Tensor]int{}
	for _, p := range j.Model.Params {
		if !p.Sharded() {
			continue
		}
		for _, t := range []*backend.Tensor{p.Master, j.optimizer.m1[p], j.optimizer.m2[p]} {
			j.sharded[t] = p.Shape[0]
			if t.Block != backend.PerTensor {
				j.sharded[t.Scale] = t.Scale.Shape[0] / t.Shape[0] * p.Shape[0]
			}
		}
	}
}

// wholeShape returns the shape of the full tensor.
func (j *Job) wholeShape(t *backend.Tensor) []int {
	if n, sharded := j.sharded[t]; sharded {
		return append([]int{n}, t.Shape[1:]...)
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

// rowsOf returns the rows of the full tensor that a rank holds: all rows of a replicated
// tensor, and less rows than the rank's memory has if padding follows.
func (j *Job) rowsOf(t *backend.Tensor, rank int) (from, to int) {
	rows, sharded := j.sharded[t]
	if !sharded {
		return 0, t.Shape[0]
	}
	n := t.Shape[0]
	return min(rows, rank*n), min(rows, (rank+1)*n)
}

// localPart returns this rank's rows of a full tensor's values, followed by zeros as padding.
func (t *Trainer) localPart(of *backend.Tensor, x []float32) []float32 {
	if _, sharded := t.sharded[of]; !sharded {
		return x
	}
	from, to := t.rowsOf(of, t.group.Rank())
	cols := of.Elems() / of.Shape[0]
	part := make([]float32, of.Elems())
	copy(part, x[from*cols:to*cols])
	return part
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

// wholeOf returns the rows of the full tensor x of the ranks' parts, in any format. It is for small tensors, since the ranks
// exchange them through rank 0.
func (t *Trainer) wholeOf(ctx context.Context, x *backend.Tensor, part []byte) ([]byte, error) {
	if _, sharded := t.sharded[x]; !sharded {
		return part, nil
	}
	parts, err := t.group.Exchange(ctx, "the rows of "+x.Name, part)
	if err != nil {
		return nil, err
	}
	return slices.Concat(parts...)[:t.sharded[x]*len(part)/x.Shape[0]], nil
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
