package train

import "octet/backend"

// This file reads and writes tensors that are sharded over the ranks. Checkpoints and
// changes of recipe use the full tensors.

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

// wholeBytes returns the size of the full tensor.
func (j *Job) wholeBytes(t *backend.Tensor) int64 {
	return t.Bytes() / int64(t.Shape[0]) * int64(j.wholeShape(t)[0])
}

// shardOf returns the part of a full tensor that a rank holds: all of a replicated tensor, and
// less than the rank's memory if padding follows.
func (j *Job) shardOf(t *backend.Tensor, raw []byte, rank int) []byte {
	if _, sharded := j.sharded[t]; !sharded {
		return raw
	}
	n := int(t.Bytes())
	return raw[min(len(raw), rank*n):min(len(raw), (rank+1)*n)]
}

// read returns a full tensor, from the ranks that hold its shards or from rank 0.
func (t *Trainer) read(from *backend.Tensor) ([]byte, error) {
	raw := make([]byte, t.wholeBytes(from))
	return raw, t.readInto(from, raw)
}

func (t *Trainer) readInto(from *backend.Tensor, raw []byte) error {
	ranks := t.ranks
	if _, sharded := t.sharded[from]; !sharded {
		ranks = ranks[:1]
	}
	for i, r := range ranks {
		part := t.shardOf(from, raw, i)
		if len(part) == int(from.Bytes()) {
			if err := r.backend.Read(from, part); err != nil {
				return err
			}
			continue
		}
		padded := make([]byte, from.Bytes())
		if err := r.backend.Read(from, padded); err != nil {
			return err
		}
		copy(part, padded)
	}
	return nil
}

// write writes a full tensor to all ranks, to each rank its shard. Zeros are the padding.
func (t *Trainer) write(to *backend.Tensor, raw []byte) error {
	for i, r := range t.ranks {
		part := t.shardOf(to, raw, i)
		if n := int(to.Bytes()); len(part) < n {
			part = append(make([]byte, 0, n), part...)[:n]
		}
		if err := r.backend.Write(to, part); err != nil {
			return err
		}
	}
	return nil
}
